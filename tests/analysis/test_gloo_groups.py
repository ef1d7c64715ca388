"""Process groups of gloo, which no event names: each has threads of its own, and its members run the same calls."""

import random
from itertools import product

import pytest
from builders import US, Trace, analysed

KINDS = {"allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "barrier": "barrier"}


class Rank:
    def __init__(self, number, world, groups, host, rng):
        names = {str(place): ranks for place, ranks in enumerate([range(world), *groups])}
        self.trace = Trace(number, world, groups=names, backend="gloo", device_names=(), host=host)
        threads = rng.sample(range(100, 300), 2 * len(groups))
        self.threads = {group: threads[2 * place : 2 * place + 2] for place, group in enumerate(groups)}
        self.now = 0


def axes(shape):
    """The groups along each axis of a mesh of ranks."""
    places = list(product(*map(range, shape)))
    for axis in range(len(shape)):
        lines = {}
        for rank, place in enumerate(places):
            lines.setdefault((*place[:axis], *place[axis + 1 :]), []).append(rank)
        yield [tuple(line) for line in lines.values()]


@pytest.mark.quick_cases("0-2")
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_calls_are_of_the_groups_whose_members_met(tmp_path, seed, hosts):
    rng = random.Random(seed)
    shape = [(2, 2), (2, 3), (3, 2), (2, 2, 2)][seed % 4]
    lines = list(axes(shape))
    world = sum(map(len, lines[0]))
    ranks = [
        Rank(
            number, world, [group for axis in lines for group in axis if number in group], f"node{number % hosts}", rng
        )
        for number in range(world)
    ]
    apart = rng.randint(10**5, 10**6) * US
    ahead = [apart * (number % hosts) for number in range(world)]
    truth = {}
    for step in range(1, 4):
        began = [rank.now for rank in ranks]
        for _ in range(rng.randint(12, 16)):
            axis, op, elems = rng.choice(lines), rng.choice(list(KINDS)), rng.choice([10, 20])
            for group in axis:
                came = {number: ranks[number].now + rng.randint(20, 3000) for number in group}
                end = max(came.values()) + rng.randint(20, 60)
                for number, start in came.items():
                    rank, shift = ranks[number], ahead[number]
                    dims = [] if op == "barrier" else [[[elems]], [], []]
                    rank.trace.c10d(op, (start - 5) * US + shift, 2 * US, dims=dims, types=["TensorList", "", ""])
                    left, thread = end + rng.randint(0, 5), rng.choice(rank.threads[group])
                    dims = [[elems]] if dims else []
                    at = start * US + shift
                    rank.trace.gloo(KINDS[op], at, (left - start) * US, dims=dims, types=["float"], thread=thread)
                    truth[number, at] = " ".join(map(str, group)), (max(came.values()) - start) * US
                    rank.now = left + 5
        for rank, since, shift in zip(ranks, began, ahead, strict=True):
            rank.trace.step(step, since * US + shift, rank.now * US + shift)
            rank.now += 1
    found = analysed(tmp_path, *(rank.trace for rank in ranks))
    base = ranks[0].trace.base_ns
    calls = found.calls
    told = {
        (r, t - base): ranks for r, t, ranks in zip(calls["rank"], calls["start_ns"], calls["pg_ranks"], strict=True)
    }
    assert calls["pg_ranks"].notna().all()
    assert told == {call: group for call, (group, _) in truth.items()}
    if hosts == 1:
        split = found.participation
        waits = {(r, t - base): ns for r, t, ns in zip(split["rank"], split["start_ns"], split["wait_ns"], strict=True)}
        assert waits == {call: wait for call, (_, wait) in truth.items()}
