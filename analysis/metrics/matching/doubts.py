"""What makes matching doubt: times against steps, times against names of hosts, and groups that no trace names.

Two facts about collectives are evidence here, as they hold for any program. No rank leaves a synchronising collective
before all have arrived, so calls of which one had ended before another began are not the same. And all ranks leave it
at nearly the same time, so ends that coincide for call after call are no accident.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Ints
from ..clocks.ends import COINCIDE_NS, RESOLUTION_NS
from ..timelines.entries import PAIR, Entries
from ..timelines.offsets import LEAST_COINCIDING, Lane, Offset, offset, offset_at
from .numbering import level_ns, most_shared, sides_by_group, steps_of_hosts
from .state import AMBIGUOUS, BY_STEP, SENDS, UNMATCHED, Decision, Findings, State, StepsIgnored, rows_by_key

# Of what a rank issued in steps: if more than this contradicts times, its steps are numbered differently.
_CONTRADICTED_FRAC = 0.1
# By this factor ends must be closer together to be a better fit.
_CLEARLY = 2.0
# Evidence in nats from which ranks certainly waited for each other, and by how much one must be late to be evidence.
_SURELY_COUPLED, _LATE_NS = 5.0, 8_000
# So many of the ranks that could take part must be seen to wait for each other.
_NEARLY_ALL = 0.75
# Two ranks do not share a clock if more than this part of their calls has no partner on it.
_OFTEN_ALONE = 0.2


def steps_contradicted(state: State) -> Findings:
    """Undo what steps have matched where times contradict it.

    Times contradict steps on one clock, if calls of a collective do not overlap, or a message is received before it is
    sent. Between hosts they do if ends coincide elsewhere (`numbering`).
    """
    matched = (state.rung == BY_STEP) & ~state.on_cpu
    meeting, pairs = np.flatnonzero(matched & _meeting(state)), np.flatnonzero(matched & (state.calls.kind == PAIR))
    rows = np.concatenate([meeting, pairs])
    if not len(rows):
        return
    apart = np.concatenate([_apart_on_host(state, meeting), _received_before_sent(state, pairs)])
    bad = _contradicted(state, rows, apart)
    # A contradiction has two explanations: the rank numbers its steps differently, or its host's name is wrong and it
    # has another clock. The second is tried first, as times can confirm it: at some constant offset ends coincide.
    while bad and (parted := _own_clocks(state, np.flatnonzero(_meeting(state)), bad)):
        yield state.clocks.on_own_hosts(parted)
        apart = np.concatenate([_apart_on_host(state, meeting), _received_before_sent(state, pairs)])
        bad = _contradicted(state, rows, apart)
    yield from _without_steps(state, np.isin(state.clock, list(bad)))
    # Of ranks that are right on the whole, single calls may still be wrong, as where one rank issued something else.
    impossible = rows[apart > COINCIDE_NS]
    yield state.undecided(impossible[state.rung[impossible] == BY_STEP])
    yield _single_undecided(state)
    contradicted, doubts = steps_of_hosts(state, _meeting(state))
    yield from doubts
    for host in contradicted:
        yield from _without_steps(state, state.clocks.hosts[state.clock] == host)


def _contradicted(state: State, rows: Ints, apart: Ints) -> set[int]:
    """The clocks where times contradict more than a few of the calls that steps have matched.

    `apart`, in ns and of the shape of `rows`, says by how much each call fails to overlap with its collective.
    """
    wrong = pd.Series(apart > COINCIDE_NS).groupby(state.clock[rows]).mean()
    return set(wrong.index[wrong > _CONTRADICTED_FRAC].tolist())


def _own_clocks(state: State, rows: Ints, bad: set[int]) -> list[int]:
    """The clocks among `bad` that are not those of their hosts: with another offset, steps and times agree much better.

    A host's name may be wrong: containers and copies of machines share names, not clocks. If so, what steps match ends
    a constant time apart, to within what one collective's ends differ, and what coincides on the raw clocks does so by
    chance: it is less, or scatters as widely as is looked for. If steps are numbered differently, it is the reverse.
    """
    parted, hosts = [], state.clocks.hosts
    for host in np.unique(hosts[list(bad)]).tolist():
        of_host = rows[hosts[state.clock[rows]] == host]
        # What steps have not matched counts as well: in a loop, nearly all of it fits the shared clock.
        lanes = sides_by_group(state, of_host, np.arange(len(hosts)))
        clocks = np.unique(state.clock[of_host]).tolist()
        for clock in sorted(bad.intersection(clocks)):
            shared = most_shared(lanes, clock, [c for c in clocks if c != clock])
            if shared and _has_own_clock(state, shared[0][1]):
                parted.append(clock)
    return parted


def clocks_off_host(state: State) -> list[int]:
    """The clocks of ranks that are not those of their hosts: their calls fit far better at another offset than at none.

    This needs no ids and no steps. On a shared clock, nearly all that two ranks show of common groups ends together. On
    two clocks, as of containers that share the name of a host, some calls end together by chance, but then they do not
    overlap, or their ends scatter as widely as is looked for. Only then other offsets are tried.
    """
    rows = np.flatnonzero(_meeting(state) & ((state.collective < 0) | (state.rung == BY_STEP)))
    lanes: dict[int, dict[int, Entries]] = {}
    for group, rows_of_group in rows_by_key(state.group, rows).items():
        for clock, part in rows_by_key(state.clock, rows_of_group).items():
            lanes.setdefault(group, {})[clock] = state.shown(part)
    off_host, hosts = [], state.clocks.hosts
    for of_host in rows_by_key(hosts, np.arange(len(hosts))).values():
        first, *others = of_host.tolist()
        for clock in others:
            shared = [Lane(parts[clock], parts[first]) for parts in lanes.values() if clock in parts and first in parts]
            if shared and _are_two_clocks(state, shared):
                off_host.append(clock)
    return off_host


def _are_two_clocks(state: State, lanes: list[Lane]) -> bool:
    """Whether two ranks of a host have two clocks, by their calls of common groups."""
    origin_ns = int(lanes[0].theirs.end[0])
    raw = offset_at(lanes, state.compatible, 0.0, origin_ns)
    # GPUs of one host are converted to its clock to within some microseconds: ends farther apart are of two clocks.
    if raw is not None and abs(raw.level_ns) <= COINCIDE_NS / 3:
        lone = raw.unmatched > _OFTEN_ALONE * (2 * raw.coinciding + raw.unmatched)
        if not lone and raw.disjoint_frac <= _CONTRADICTED_FRAC and raw.spread_ns < COINCIDE_NS / 3:
            return False
    best = offset(lanes, state.compatible, origin_ns)
    if best is None or best.coinciding < 2 * LEAST_COINCIDING or abs(best.level_ns) <= 2 * COINCIDE_NS:
        return False
    if raw is None:
        # Nothing overlaps on the clock that should be shared: windows may be disjoint, and a loop fits anywhere.
        return best.unique
    # On a clock that is shared, calls that end together have met: if they did not, coincidences are chance.
    if raw.disjoint_frac > _CONTRADICTED_FRAC >= best.disjoint_frac and best.coinciding > raw.coinciding:
        return True
    return _fits_far_better(best, raw)


def _has_own_clock(state: State, lanes: list[Lane]) -> bool:
    """Whether ends coincide better where steps put two ranks of a host than on the clock that they should share."""
    origin_ns = int(lanes[0].theirs.end[0])
    by_steps, raw = (offset_at(lanes, state.compatible, at, origin_ns) for at in (level_ns(lanes), 0.0))
    if by_steps is None or by_steps.coinciding < LEAST_COINCIDING or abs(by_steps.level_ns) <= 2 * COINCIDE_NS:
        return False
    if raw is None:
        # Nothing overlaps on the clock that should be shared, so it contradicts nothing: only times can say.
        best = offset([Lane(*(side.without_steps() for side in lane)) for lane in lanes], state.compatible, origin_ns)
        return best is not None and best.unique and abs(best.level_ns - by_steps.level_ns) <= 2 * COINCIDE_NS
    return _fits_far_better(by_steps, raw)


def _fits_far_better(offset: Offset, raw: Offset) -> bool:
    """Whether twice as many ends coincide at an offset as on the clock that is shared, or as many far more closely."""
    if offset.coinciding >= 2 * raw.coinciding:
        return True
    return offset.coinciding >= raw.coinciding and offset.spread_ns * _CLEARLY < raw.spread_ns


def _meeting(state: State) -> Flags:
    """Calls on GPUs that no rank leaves before all have arrived; without messages, as a small one may be left early."""
    meeting: Flags = state.calls.synchronising & (state.calls.kind != PAIR) & ~state.on_cpu
    return meeting


def _without_steps(state: State, of_ranks: Flags) -> Findings:
    """Ignore the steps of these calls, all those of some ranks, and undo what steps have matched for them."""
    yield state.undecided(np.flatnonzero(of_ranks & (state.rung == BY_STEP)))
    yield StepsIgnored(of_ranks)
    yield _single_undecided(state)


def _single_undecided(state: State) -> Decision:
    """Undo the decision on calls that steps had matched with others, which have been undone since."""
    rows = np.flatnonzero(state.rung == BY_STEP)
    members = np.bincount(state.collective[rows], minlength=1)
    return state.undecided(rows[members[state.collective[rows]] < 2])


def _apart_on_host(state: State, rows: Ints) -> Ints:
    """By how much each call fails to overlap with the others of its collective on its host, in ns; shape of `rows`.

    What is positive is impossible: no rank leaves before all have arrived.
    """
    if not len(rows):
        return rows
    hosts = state.clocks.hosts
    place = state.collective[rows] * (hosts.max() + 1) + hosts[state.clock[rows]]
    start, end = state.calls.last_start[rows], state.calls.end[rows]
    # At least half of the calls are right, so medians are.
    table = pd.DataFrame({"place": place, "start": start - start.min(), "end": end - start.min()})
    middle = table.groupby("place", sort=False)[["start", "end"]].transform("median")
    early, late = (table["start"] - middle["end"]).to_numpy(), (middle["start"] - table["end"]).to_numpy()
    apart: Ints = np.maximum(early, late).astype(np.int64)
    return apart


def _received_before_sent(state: State, rows: Ints) -> Ints:
    """By how much the message of each send or receive was received before it was sent, in ns; 0 between hosts.

    `rows` are sends and receives that have been paired; the result has their shape.
    """
    number = np.unique(state.collective[rows], return_inverse=True)[1]
    sent = state.sent[rows]
    start, end = np.zeros((2, number.max(initial=-1) + 1), dtype=np.int64)
    start[number[sent]] = state.calls.last_start[rows[sent]]
    end[number[~sent]] = state.calls.end[rows[~sent]]
    host, of_call = np.full((2, len(start)), -1), state.clocks.hosts[state.clock[rows]]
    host[0, number[sent]], host[1, number[~sent]] = of_call[sent], of_call[~sent]
    apart: Ints = np.where(host[0] == host[1], start - end, 0)[number]
    return apart


def on_one_clock(state: State, rows: Ints) -> tuple[Ints, Ints]:
    """Starts and ends of calls on one clock, in ns; shape of `rows`.

    Clocks that cannot be compared are put where the ends of common collectives coincide.
    """
    clock, frame = state.clock[rows], state.clocks.frame
    start, end = (frame.common(clock, times[rows]) for times in (state.calls.last_start, state.calls.end))
    part = frame.component[clock]
    if (part == part[0]).all():
        return start, end
    table = pd.DataFrame({"collective": state.collective[rows], "part": part, "end": end - end.min()})
    of_part = table.pivot_table(index="collective", columns="part", values="end", aggfunc="min")
    base = of_part.count().idxmax()
    apart = of_part.sub(of_part[base], axis=0).median().fillna(0).round().astype("int64")
    ahead = apart.reindex(part).to_numpy()
    return start - ahead, end - ahead


def doubtful_groups(state: State, unknown: Ints, streams: Ints, world_size: int) -> Findings:
    """Doubt collectives of `unknown` process groups, and kernels named SendRecv, unless ranks waited for each other.

    If the group is not known, calls at the same time may be of several communicators; SendRecv may be a message. Ranks
    waited for each other if one came later than all others by far more than their ends are apart: with several
    communicators, those that did not wait for it would have ended earlier. Siblings of a tensor parallel group send in
    step as well, so nearly all ranks that could take part must be among those that waited.

    `unknown` are rows, `streams` is by call. What ran on the same streams is taken for one communicator.
    """
    sending = np.flatnonzero(state.calls.kind == SENDS)
    rows = np.union1d(unknown, sending)
    rows = rows[(state.rung[rows] != UNMATCHED) & (state.collective[rows] >= 0)]
    if not len(rows):
        return
    table = _coupled(state, np.flatnonzero(np.isin(state.collective, state.collective[rows])), streams)
    alike = table.groupby(["communicator", "members"])
    coupled = alike["coupled_nats"].sum() >= _SURELY_COUPLED
    together = alike["end_skew_ns"].median() <= alike["start_skew_ns"].median() / 2 + RESOLUTION_NS
    sets: dict[int, list[frozenset[int]]] = {}
    for communicator, members in coupled.index[coupled & together]:
        sets.setdefault(communicator, []).append(members)
    good = [
        any(
            known.issuperset(members) and len(known) >= _NEARLY_ALL * (size if size > 0 else world_size)
            for known in sets.get(communicator, ())
        )
        and (size <= 0 or len(members) <= size)
        for communicator, members, size in zip(table["communicator"], table["members"], table["size"], strict=True)
    ]
    bad = rows[np.isin(state.collective[rows], table.index[~np.array(good, dtype=bool)])]
    yield state.decided(bad)._replace(group_assumed=True, note=AMBIGUOUS)


def _coupled(state: State, rows: Ints, streams: Ints) -> pd.DataFrame:
    """One row per collective: its communicator (by group and streams), its members, and how clearly one held up all.

    `coupled_nats` says how improbable it is that ends coincide by chance though the last rank came that late.
    """
    clock = state.clock[rows]
    start, end = on_one_clock(state, rows)
    calls = pd.DataFrame({"collective": state.collective[rows], "clock": clock, "start": start, "end": end})
    calls["runs_on"] = list(zip(clock.tolist(), streams[rows].tolist(), strict=True))
    grouped = calls.sort_values(["collective", "start"]).groupby("collective")
    sizes = grouped.size()
    before = grouped["start"].nth(-2).set_axis(sizes.index[sizes > 1]).reindex(sizes.index)
    late_ns = (grouped["start"].last() - before).fillna(0)
    skew_ns = grouped["end"].max() - grouped["end"].min()
    group = pd.Series(state.group[rows]).groupby(calls["collective"]).first()
    nats = np.log((late_ns.clip(lower=1) / (skew_ns + RESOLUTION_NS)).to_numpy(dtype=np.float64))
    return pd.DataFrame({
        "communicator": pd.factorize(pd.Series(list(zip(group, grouped["runs_on"].agg(frozenset), strict=True))))[0],
        "members": grouped["clock"].agg(frozenset),
        "size": pd.Series(state.group_size[rows]).groupby(calls["collective"]).max(),
        "coupled_nats": np.where(late_ns > _LATE_NS, nats, 0.0),
        "start_skew_ns": grouped["start"].last() - grouped["start"].first(),
        "end_skew_ns": skew_ns,
    })  # fmt: skip
