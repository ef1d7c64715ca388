"""Whether hosts number their steps alike: what steps join between clocks that nothing else compares.

Steps say which calls belong together only if the ranks count them alike. A rank that was restarted, or whose profiler
began elsewhere, does not, and in a loop the calls of another step look the same. Between ranks of one host, their
common clock decides (`doubts`). Between hosts one of three witnesses must agree with the steps:

- ids of other calls, which were issued in the same steps, or were not;
- times, if ends coincide where the steps put them, and at no other offset as well;
- the clocks of the hosts as they are, or as a clock probe has measured them, if they agree to a part of a step.

If times fit far better elsewhere, steps are wrong. If no witness agrees, they stay as a guess, on which nothing rests.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Floats, Ints
from ..clocks.ends import COINCIDE_NS
from ..clocks.medians import trend
from ..timelines.entries import Entries
from ..timelines.offsets import Lane, Offset, offset, offset_at
from .state import BY_STEP, SAME_CLOCK_SLACK_NS, STEPS_ALONE, Finding, State, StepsIgnored, rows_by_key

# By this factor ends must be closer together to be a better fit.
_CLEARLY = 2.0
# If more than this part contradicts the steps, they are numbered differently.
_CONTRADICTED_FRAC = 0.1
# How many moments are tried at which a clock may have been set, and how many calls must be impossible to count.
_DIVISIONS, _LEAST_MISSED = 30, 2
# Fewer ends that coincide do not contradict steps.
_LEAST_BETTER = 8
# Clocks that were never compared may be off by more than a step, and half of all offsets lie within a quarter of some
# step: one that is merely the nearest is not enough.
_NEAR_FRAC = 0.25
_NEVER_NS = 1 << 62
# Ends that come so close at nearly all collectives agree with the steps.
_CLOSE_NS, _NEARLY_ALL = 20_000, 0.9
# With so many other hosts each one is compared.
_MOST_COMPARED = 8


class Numbered(Enum):
    """What witnesses say about the steps of two hosts."""

    ALIKE = "alike"
    DIFFERENTLY = "differently"
    NOT_KNOWN = "not known"


class StepsOfHosts(NamedTuple):
    """The hosts whose steps are contradicted, and doubts about what joins others without a witness."""

    contradicted: list[int]
    doubts: list[Finding]


def steps_of_hosts(state: State, meeting: Flags) -> StepsOfHosts:
    """Which hosts number their steps differently, and which matches between hosts no witness confirms.

    `meeting` says which calls no rank leaves before all have arrived.
    """
    hosts = state.clocks.hosts
    lanes = sides_by_group(state, np.flatnonzero(meeting), hosts)
    present = np.unique(hosts[state.clock[meeting & (state.rung == BY_STEP)]]).tolist()
    part = {host: host for host in present}
    wrong: list[int] = []
    for host in present[1:]:
        others = [other for other in present if other < host and other not in wrong]
        # With the first it shares most, so only that one may say that its steps are wrong; any may confirm them.
        for place, (other, shared) in enumerate(most_shared(lanes, host, others)):
            if part[other] == part[host]:
                continue
            numbered = _numbered(state, shared, state.clocks.probed_apart(host, other))
            if numbered is Numbered.DIFFERENTLY and place == 0:
                wrong.append(host)
                break
            if numbered is Numbered.ALIKE:
                joined = part[host]
                part |= {known: part[other] for known in part if part[known] == joined}
    return StepsOfHosts(wrong, _doubts_between(state, {host: of for host, of in part.items() if host not in wrong}))


def sides_by_group(state: State, rows: Ints, side: Ints) -> dict[int, dict[int, Entries]]:
    """What each side shows of each group: side by side, its collectives, and calls that are not matched.

    `rows` are the calls to use, and `side` says to which side each clock belongs: the clock itself, or its host. Calls
    that are not matched are those of one rank, the one that shows most, and their `row` is negative.
    """
    shown: dict[int, dict[int, Entries]] = {}
    for group, of_group in rows_by_key(state.group, rows).items():
        for which, rows_of_side in rows_by_key(side[state.clock], of_group).items():
            shows_most = np.bincount(state.clock[rows_of_side]).argmax()
            calls = state.shown(
                rows_of_side[(state.collective[rows_of_side] >= 0) | (state.clock[rows_of_side] == shows_most)]
            )
            number = np.where(state.collective[calls.row] >= 0, state.collective[calls.row], -1 - calls.row)
            shown.setdefault(group, {})[which] = calls.of_collectives(number)
    return shown


def most_shared(lanes: dict[int, dict[int, Entries]], host: int, others: list[int]) -> list[tuple[int, list[Lane]]]:
    """The hosts with which this one shares collectives, those with most first, and what both show of common groups.

    `lanes` comes from `sides_by_group`.
    """
    counted = []
    for other in others[:: -(-len(others) // _MOST_COMPARED) or 1]:
        shared = [Lane(parts[host], parts[other]) for parts in lanes.values() if host in parts and other in parts]
        counted.append((sum(len(common(lane)[0]) for lane in shared), other, shared))
    counted.sort(key=lambda counts: -counts[0])
    return [(other, shared) for count, other, shared in counted if count]


def common(lane: Lane) -> tuple[Ints, Ints]:
    """The collectives that both sides show: their positions in ours, and in theirs."""
    _, i, j = np.intersect1d(lane.ours.row, lane.theirs.row, return_indices=True)
    return i, j


def level_ns(lanes: list[Lane]) -> float:
    """How much later we end common collectives than they do, in ns: the median, by raw clocks."""
    pairs = [(lane, *common(lane)) for lane in lanes]
    return float(np.median(np.concatenate([lane.ours.end[i] - lane.theirs.end[j] for lane, i, j in pairs])))


def _numbered(state: State, lanes: list[Lane], probed: tuple[float, float] | None) -> Numbered:
    """Whether two hosts number their steps alike: by ids, else by times, else by their clocks.

    `probed` is how far the clock of the first host is ahead by the clock probe, and how wrong that may be, in ns.
    """
    alike = _same_steps_by_ids(state, lanes)
    if len(alike):
        # What carries an id is the same collective on both sides, so its steps are known to be the same step.
        return Numbered.ALIKE if alike.mean() > 1 - _CONTRADICTED_FRAC else Numbered.DIFFERENTLY
    # Without ids, times are the witness: do ends coincide where the steps put them, and nowhere else?
    level, origin_ns = level_ns(lanes), int(lanes[0].theirs.end[0])
    # The steps are in question, so they are no evidence.
    times = [Lane(*(side.without_steps() for side in lane)) for lane in lanes]
    here = offset_at(times, state.compatible, level, origin_ns)
    never_met, near = _never_met(lanes), _are_near(lanes, level, probed)
    met = _NEARLY_ALL * sum(len(common(lane)[0]) for lane in lanes)
    if near and not never_met and here is not None and here.coinciding >= met and here.spread_ns <= _CLOSE_NS:
        # Three witnesses agree, so another offset at which ends come close is that of a loop.
        return Numbered.ALIKE
    best = offset(times, state.compatible, origin_ns, probed)
    elsewhere = best is not None and abs(best.level_ns - level) > 2 * COINCIDE_NS
    if never_met or (best is not None and elsewhere and _is_clearly_better(best, here)):
        return Numbered.DIFFERENTLY
    if best is not None and best.unique and not elsewhere:
        return Numbered.ALIKE
    return Numbered.ALIKE if near else Numbered.NOT_KNOWN


def _are_near(lanes: list[Lane], level: float, probed: tuple[float, float] | None) -> bool:
    """Whether the clocks of two hosts, as they are or as probed, are where the steps put them.

    In a loop each shift by whole steps fits the times, and puts the clocks apart by as many steps: two witnesses that
    do not know of each other, the numbers and the clocks of the hosts, agree on one of these shifts.
    """
    ahead, unsure = probed or (0.0, 0.0)
    return abs(level - ahead) + unsure < _NEAR_FRAC * _step_ns(lanes)


def _same_steps_by_ids(state: State, lanes: list[Lane]) -> Flags:
    """Whether each collective that ids have matched was issued in steps of one number on both sides."""
    by_id = np.unique(state.collective[(state.rung < BY_STEP) & (state.collective >= 0)])
    same = []
    for lane in lanes:
        (ours, theirs), (i, j) = lane, common(lane)
        known = np.isin(ours.row[i], by_id) & (ours.step[i] >= 0) & (theirs.step[j] >= 0)
        same.append((ours.step[i] == theirs.step[j])[known])
    return np.concatenate(same)


def _is_clearly_better(best: Offset, here: Offset | None) -> bool:
    """Whether far more ends coincide at the best offset, or as many do far more closely."""
    if best.coinciding < _LEAST_BETTER:
        return False
    if here is None or best.coinciding > 4 * here.coinciding:
        return True
    return best.spread_ns * _CLEARLY < here.spread_ns and 2 * best.coinciding >= here.coinciding


def _step_ns(lanes: list[Lane]) -> float:
    """How long a step takes: from its first call to that of the next one, or to its last where there is only one."""
    lengths = []
    for side in (side for lane in lanes for side in lane):
        known = side.take(side.step >= 0)
        if not len(known):
            continue
        step, number = np.unique(known.step, return_inverse=True)
        begin, end = np.full(len(step), _NEVER_NS), np.full(len(step), -_NEVER_NS)
        np.minimum.at(begin, number, known.last_start)
        np.maximum.at(end, number, known.end)
        between = np.diff(begin)[np.diff(step) == 1]
        lengths.append(float(np.median(between if len(between) else end - begin)))
    return min(lengths, default=0.0)


def _doubts_between(state: State, part: dict[int, int]) -> list[Finding]:
    """Doubt what steps alone join across parts, which are hosts whose steps are known to be numbered alike.

    `part` gives the part of each host. Of each collective the calls of one part stay certain. That is the part with
    most calls in all, if it takes part, so that it is the same hosts that stay certain; else the one with most calls of
    the collective. Steps of hosts outside of the largest part are ignored from then on.
    """
    if len(set(part.values())) < 2:
        return []
    hosts = state.clocks.hosts
    of_host = np.full(int(hosts.max()) + 1, -1)
    of_host[list(part)] = list(part.values())
    rows = np.flatnonzero(state.rung == BY_STEP)
    of_call = of_host[hosts[state.clock[rows]]]
    rows, of_call = rows[of_call >= 0], of_call[of_call >= 0]
    main = np.bincount(of_call).argmax()
    table = pd.DataFrame({"collective": state.collective[rows], "part": of_call, "is_main": of_call == main})
    sizes = table.groupby(["collective", "part"], as_index=False).agg(
        calls=("is_main", "size"), is_main=("is_main", "any")
    )
    largest = sizes.sort_values(["is_main", "calls"]).drop_duplicates("collective", keep="last").set_index("collective")
    doubtful = rows[(table["collective"].map(largest["part"]) != table["part"]).to_numpy()]
    others = np.flatnonzero((of_host != main) & (of_host >= 0))
    return [
        state.decided(doubtful)._replace(certain=False, note=STEPS_ALONE),
        StepsIgnored(np.isin(hosts[state.clock], others)),
    ]


def _never_met(lanes: list[Lane]) -> bool:
    """Whether too many of the calls that steps have matched between two hosts cannot overlap at any offset.

    No rank leaves before all have arrived. So calls that belong together overlap at the offset by which their ends
    differ. The ends of others differ by what ranks do in between, which changes from call to call. A clock may drift,
    and may have been set once: that explains two offsets, one after the other, but no more.
    """
    apart, missed, at = [], [], []
    for lane in lanes:
        (ours, theirs), (i, j) = lane, common(lane)
        apart.append(ours.end[i] - theirs.end[j])
        missed.append((ours.last_start[i] - theirs.first_end[j], theirs.last_start[j] - ours.first_end[i]))
        at.append(theirs.end[j])
    order = np.argsort(np.concatenate(at), kind="stable")
    late, early = np.concatenate(missed, axis=1)[:, order].astype(np.float64)
    ends, since = np.concatenate(apart)[order].astype(np.float64), np.concatenate(at)[order]
    line = trend(since - since[0], ends)
    drift = line.slope * (since - since[0]) if line is not None and line.significant else np.zeros(len(ends))
    late, early, ends = late - drift, early + drift, ends - drift
    return all(
        _are_wrong(np.concatenate([_missed(late[part], early[part], ends[part]) for part in parts]))
        for parts in _in_two(len(ends))
    )


def _in_two(count: int) -> Iterator[list[slice]]:
    """Ways to divide `count` calls into parts with one offset each: not at all, or into two at some moment."""
    yield [slice(count)]
    for begin in np.unique(np.linspace(0, count, _DIVISIONS + 2).astype(np.int64))[1:-1].tolist():
        yield [slice(begin), slice(begin, count)]


def _missed(late: Floats, early: Floats, ends: Floats) -> Flags:
    """Which calls do not overlap at the offset by which most ends differ; all of shape (calls,), in ns.

    `late` is our start minus their end, `early` their start minus our end, and `ends` our end minus theirs.
    """
    level = np.median(ends)
    missed: Flags = np.maximum(late - level, early + level) > SAME_CLOCK_SLACK_NS
    return missed


def _are_wrong(missed: Flags) -> bool:
    """Whether too many calls do not overlap."""
    return int(missed.sum()) >= _LEAST_MISSED and bool(missed.mean() > _CONTRADICTED_FRAC)
