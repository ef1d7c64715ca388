"""Which ranks to trace: against process groups found by reshaping the numbers of all ranks."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.metrics.rank_plan import Layout, cheapest_of_each, rank_plans
from commtrace.cli import main

SIZES = st.integers(1, 4)


def groups_by_reshaping(sizes: dict[str, int], sort: str) -> set[frozenset[int]]:
    """The groups of a sort: the last axis of an array is the innermost dimension."""
    names = list(sizes)[::-1]
    ranks = np.arange(np.prod(list(sizes.values()))).reshape([sizes[name] for name in names])
    own = [names.index(name) for name in sort.split("-")]
    last = np.moveaxis(ranks, own, range(-len(own), 0))
    return {frozenset(group.tolist()) for group in last.reshape(-1, np.prod([sizes[n] for n in sort.split("-")]))}


@settings(max_examples=60, deadline=None)
@given(st.permutations(["tp", "cp", "dp", "pp"]), st.tuples(SIZES, SIZES, SIZES, SIZES), st.integers(1, 8))
def test_plans_show_what_they_say(order, numbers, per_host):
    sizes = dict(zip(order, numbers, strict=True))
    layout = Layout(sizes, per_host)
    for sort in layout.sorts:
        assert {frozenset(group) for group in layout.groups(sort)} == groups_by_reshaping(sizes, sort)
    plans = rank_plans(layout)
    assert [len(plan.ranks) for plan in plans] == sorted(len(plan.ranks) for plan in plans)
    for plan in plans:
        assert plan.hosts == len({rank // per_host for rank in plan.ranks})
        for sort, count in plan.whole.items():
            assert count == sum(group <= set(plan.ranks) for group in groups_by_reshaping(sizes, sort))
    if layout.ranks > 1:
        assert all(cheapest_of_each(layout).whole.values())


def test_the_example_of_the_documentation(capsys):
    assert main(["plan-ranks", "--tp", "8", "--pp", "4", "--dp", "32"]) == 0
    shown = capsys.readouterr().out
    assert "1,024 ranks on 128 hosts" in shown
    assert re.search(r"^one group of each sort +42 +35  pp 1/256, tp 1/128, dp 1/32$", shown, re.MULTILINE)
    assert "Not seen whole: 255 pp groups, 127 tp groups, 31 dp groups." in shown
    chosen = eval(shown.partition(" in ")[2].partition("}:")[0] + "}")
    assert chosen == {*range(8), *range(0, 256, 8), 0, 256, 512, 768}
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--order", "tp-dp"], "must name each of tp, cp, dp, pp once"),
        (["--tp", "0"], "--tp"),
        (["--dp", "2000000"], "the most is 1,048,576"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, options, told):
    assert main(["plan-ranks", *options]) == 2
    assert told in capsys.readouterr().err


def test_one_rank_and_one_group(capsys):
    assert main(["plan-ranks"]) == 0
    assert "communicates with nobody" in capsys.readouterr().out
    assert main(["plan-ranks", "--dp", "16"]) == 0
    shown = capsys.readouterr().out
    assert "0-15" in shown
    assert "Not seen" not in shown
