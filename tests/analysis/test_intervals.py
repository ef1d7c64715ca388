"""Interval algebra against a brute-force oracle: the set of unit cells that a set of intervals covers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.analysis.core.intervals import Spans, clip, complement, intersect, last, spans, subtract, total, union

END = 24
TIME = st.integers(0, END)
PAIRS = st.lists(st.tuples(TIME, TIME), max_size=8)


def merged(pairs: list[tuple[int, int]]) -> Spans:
    starts = np.array([a for a, _ in pairs], dtype=np.int64)
    ends = np.array([b for _, b in pairs], dtype=np.int64)
    return spans(starts, ends)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {cell for a, b in pairs for cell in range(a, b)}


def cells(found: Spans, low: int = 0, high: int = END) -> set[int]:
    pairs = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    return {cell for a, b in pairs for cell in range(max(a, low), min(b, high))}


def assert_merged(found: Spans) -> None:
    assert found.starts.dtype == found.ends.dtype == np.int64
    assert (found.starts < found.ends).all()
    assert (found.ends[:-1] < found.starts[1:]).all()  # sorted, disjoint, not touching


@given(PAIRS)
def test_spans_cover_what_the_intervals_cover(a):
    assert_merged(merged(a))
    assert cells(merged(a)) == covered(a)


@given(PAIRS)
def test_total_counts_every_covered_cell_once(a):
    assert total(merged(a)) == len(covered(a))
    assert type(total(merged(a))) is int


@given(PAIRS, PAIRS)
def test_union(a, b):
    found = union(merged(a), merged(b))
    assert_merged(found)
    assert cells(found) == covered(a) | covered(b)


@given(PAIRS, PAIRS, PAIRS)
def test_union_of_several(a, b, c):
    assert cells(union(merged(a), merged(b), merged(c))) == covered(a) | covered(b) | covered(c)


@given(PAIRS, PAIRS)
def test_intersect(a, b):
    found = intersect(merged(a), merged(b))
    assert_merged(found)
    assert cells(found) == covered(a) & covered(b)


@given(PAIRS, PAIRS)
def test_subtract(a, b):
    found = subtract(merged(a), merged(b))
    assert_merged(found)
    assert cells(found) == covered(a) - covered(b)


@given(PAIRS, TIME, TIME)
def test_clip(a, start, end):
    found = clip(merged(a), start, end)
    assert_merged(found)
    assert cells(found) == {cell for cell in covered(a) if start <= cell < end}


@given(PAIRS)
def test_complement(a):
    found = complement(merged(a))
    assert_merged(found)
    assert cells(found) == set(range(END)) - covered(a)
    assert total(intersect(found, merged(a))) == 0


@given(PAIRS, PAIRS)
def test_lengths_add_up(a, b):
    x, y = merged(a), merged(b)
    assert total(x) + total(y) == total(union(x, y)) + total(intersect(x, y))
    assert total(x) == total(intersect(x, y)) + total(subtract(x, y))


@given(PAIRS, PAIRS)
def test_order_of_arguments_does_not_matter(a, b):
    for operation in (union, intersect):
        one, other = operation(merged(a), merged(b)), operation(merged(b), merged(a))
        assert one.starts.tolist() == other.starts.tolist()
        assert one.ends.tolist() == other.ends.tolist()


@given(PAIRS)
def test_arguments_are_left_as_they_were(a):
    x = merged(a)
    before = (x.starts.tolist(), x.ends.tolist())
    union(x, x), intersect(x, x), subtract(x, x), clip(x, 3, 9), complement(x)
    assert (x.starts.tolist(), x.ends.tolist()) == before


def test_nanoseconds_since_the_epoch_stay_exact():
    now = 1_759_300_074_123_456_789
    x, y = merged([(now, now + 7)]), merged([(now + 3, now + 5)])
    assert total(subtract(x, y)) == 5
    assert subtract(x, y).ends.tolist() == [now + 3, now + 7]


@pytest.mark.parametrize("operation", [union, intersect, subtract])
def test_nothing_with_nothing_is_nothing(operation):
    assert total(operation(merged([]), merged([]))) == 0


@given(PAIRS, st.integers(0, END + 2))
def test_last_has_the_cells_at_the_end(a, length):
    found = last(merged(a), length)
    assert_merged(found)
    assert cells(found) == set(sorted(covered(a), reverse=True)[:length])
