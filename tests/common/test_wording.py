"""Words for people that depend on numbers."""

import pytest

from commtrace.common.wording import counted, listed, ranges_of, ranks_in_words, shortened


def test_numbers_of_things() -> None:
    assert [counted(number, "trace") for number in (0, 1, 1000)] == ["0 traces", "1 trace", "1,000 traces"]


@pytest.mark.parametrize(("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c")])
def test_lists(words, text) -> None:
    assert listed(words) == text


@pytest.mark.parametrize(("ranks", "text"), [([3], "rank 3"), ([7, 4, 0, 5, 6], "ranks 0, 4-7"), ([0, 1], "ranks 0-1")])
def test_ranks(ranks, text) -> None:
    assert ranks_in_words(ranks) == text


def test_what_is_long_is_shortened() -> None:
    assert ranges_of([0, 1, 2, 5, 7], most=2) == "0-2, 5, ..."
    assert ranges_of(range(0, 60, 2), None).count(",") == 29
    assert shortened(range(3), 3) == "0, 1, 2"
    assert shortened(range(4), 3) == "0, 1, 2, ..."
