"""The same collective on every rank: which calls belong together, by what right, and how sure that is.

A ladder, best first:

- `comms_id`: the id that torch gives all ranks of a collective of a process group;
- `seq`: the sequence number within the process group;
- `order`: the order within the process group; each rank's window is laid where kinds, sizes, dtypes and times fit;
- `time`: call by call where order alone does not fit, because a trace lacks calls.

Sends and receives go by (source, destination, order); between CPUs as `turns.py` says. What does not fit stays alone
and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .alignment import COINCIDE_NS, Calls, ClockFrame, Flags, Ints, Placement, clock_offset, link_by_ends, place, trend
from .nccl_tests import SYNCHRONISING
from .probes import Ahead, probed
from .schema import CLOCK_PROBES, MATCHES
from .turns import turn

RUNGS = ("comms_id", "seq", "order", "time", "none")
_ORDER, _TIME, _NONE = RUNGS.index("order"), RUNGS.index("time"), RUNGS.index("none")
# Times of GPUs of one host are converted from their own clocks, to within some microseconds.
SAME_CLOCK_SLACK_NS = 20_000

_ROUNDS = 4
# So many coinciding ends tell where a clock is.
_LEAST_SETTLED = 8

_ALONE = "no other rank shows it at that time"
_TOO_MANY = "more ranks show it than its process group has; groups share the name, and their ranks are not known"
_GAPS = "calls are missing in between, and on CPUs their times do not tell where"
_REPEATS = "the calls repeat so regularly that other pairings fit as well"


@dataclass
class _State:
    """Calls as columns of codes, and what has been decided about each."""

    calls: Calls
    rank: Ints
    device: Ints
    member: Ints
    clock: Ints
    group: Ints
    group_size: Ints
    sent: Flags
    pair_on_cpu: Flags
    compatible: Flags
    clocks: ClockFrame
    followed: Flags
    probe: Ahead
    collective: Ints = field(init=False)
    rung: Ints = field(init=False)
    certain: Flags = field(init=False)
    note: NDArray[np.object_] = field(init=False)
    collectives: int = 0

    def __post_init__(self) -> None:
        count = len(self.calls)
        self.collective = np.full(count, -1, dtype=np.int64)
        self.rung = np.full(count, _NONE, dtype=np.int64)
        self.certain = np.ones(count, dtype=bool)
        self.note = np.full(count, None, dtype=object)

    def new(self, count: int) -> Ints:
        """Numbers of that many new collectives."""
        self.collectives += count
        return np.arange(self.collectives - count, self.collectives)

    def alone(self, rows: Ints, note: str) -> None:
        """Calls that belong to nothing else, and why."""
        self.collective[rows] = self.new(len(rows))
        self.rung[rows], self.note[rows] = _NONE, note


def matches(calls: pd.DataFrame, hosts: Mapping[int, str | None], probes: pd.DataFrame | None = None) -> pd.DataFrame:
    """Which collective each call belongs to: one row per call, collectives numbered by first start.

    `hosts` gives the host of each rank, None where it is not known; ranks of one host share a clock. Clock `probes`
    confirm how far a clock is ahead where the calls alone leave a doubt.
    """
    if not len(calls):
        return MATCHES.empty()
    state = _state(calls, hosts, CLOCK_PROBES.empty() if probes is None else probes)
    copies = calls["collective"].isin(["peer_copy"])
    state.alone(np.flatnonzero(copies), "a copy from one GPU to another, one rank's own")
    lone_ends = calls["collective"].isin(["send", "recv"]) & calls["root"].isna()
    state.alone(np.flatnonzero(lone_ends), "its peer is not known")
    for key in ("comms_id", "seq"):
        _by_id(state, calls, key)
    _link_clocks(state)
    anchored = _by_key(state.group, np.flatnonzero((state.collective >= 0) & (state.rung < _ORDER)))
    left = _by_key(state.group, np.flatnonzero(state.collective < 0))
    # Pairs on CPUs tell nothing about clocks, but build on what is known of them: they come last.
    for group, rows in sorted(left.items(), key=lambda item: (bool(state.pair_on_cpu[item[1][0]]), -len(item[1]))):
        if state.pair_on_cpu[rows[0]]:
            _by_turn(state, rows)
        else:
            _by_order(state, rows, anchored.get(group, np.array([], dtype=np.int64)))
    return _table(state, calls)


def _by_key(keys: Ints, rows: Ints) -> dict[int, Ints]:
    """`rows` by their key, each in ascending order."""
    ordered = rows[np.argsort(keys[rows], kind="stable")]
    distinct, starts = np.unique(keys[ordered], return_index=True)
    return dict(zip(distinct.tolist(), np.split(ordered, starts[1:]), strict=True)) if len(rows) else {}


def _table(state: _State, calls: pd.DataFrame) -> pd.DataFrame:
    start = pd.Series(calls["start_ns"].to_numpy()).groupby(state.collective).min().sort_values(kind="stable")
    number = pd.Series(np.arange(len(start)), index=start.index)
    members = np.bincount(state.collective, minlength=state.collectives)[state.collective]
    single = (members == 1) & (state.group_size != 1)
    rung = np.where(single, _NONE, pd.Series(state.rung).groupby(state.collective).transform("max"))
    note = np.where(single & pd.isna(state.note), _ALONE, state.note)
    return MATCHES.conform(pd.DataFrame({
        "call_id": calls["call_id"].to_numpy(),
        "collective_id": number.reindex(state.collective).to_numpy(),
        "matched_by": [RUNGS[r] for r in rung],
        "certain": pd.array(state.certain & ~single, dtype="boolean"),
        "note": note,
    }))  # fmt: skip


_KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "broadcast", "reduce", "gather", "scatter",
    "send_recv",
)  # fmt: skip
_SENDS = len(_KINDS)  # a kernel named SendRecv: one of several kinds, and none of the others
_ANY = _SENDS + 1
_BY_SENDS = ("all_to_all", "gather", "scatter", "send_recv")


def _compatible() -> Flags:
    """Which kinds can be the same collective: equal ones, and what is not known with what it can be."""
    result = np.eye(_ANY + 1, dtype=bool)
    result[_ANY, :] = result[:, _ANY] = True
    for kind in _BY_SENDS:
        result[_SENDS, _KINDS.index(kind)] = result[_KINDS.index(kind), _SENDS] = True
    return result


def _state(calls: pd.DataFrame, hosts: Mapping[int, str | None], probes: pd.DataFrame) -> _State:
    pairs = calls["collective"].isin(["send", "recv"])
    sent, root = calls["collective"].isin(["send"]), calls["root"]
    group = calls.assign(
        source=calls["rank"].astype("Int64").where(sent, root).where(pairs),
        target=root.where(sent, calls["rank"].astype("Int64")).where(pairs),
    ).groupby(["process_group", "pg_ranks", "source", "target"], dropna=False, sort=False)
    ranks = calls["rank"].to_numpy(dtype=np.int64)
    names = sorted({h for h in hosts.values() if h})
    distinct = np.unique(ranks)
    clock_of = [names.index(h) if (h := hosts.get(int(r))) else len(names) + i for i, r in enumerate(distinct)]
    member = calls.groupby(["rank", "device", "cycle"], sort=True).ngroup()
    return _State(
        calls=_columns(calls, pairs),
        rank=ranks,
        device=pd.factorize(calls["device"])[0].astype(np.int64),
        member=member.to_numpy(dtype=np.int64),
        clock=np.array(clock_of)[np.searchsorted(distinct, ranks)],
        group=group.ngroup().to_numpy(dtype=np.int64),
        group_size=_codes(calls["group_size"]),
        sent=sent.to_numpy(),
        pair_on_cpu=(pairs & (calls["device"] == "cpu")).to_numpy(),
        compatible=_compatible(),
        followed=np.zeros(len(names) + len(clock_of), dtype=bool),
        clocks=ClockFrame.unlinked(len(names) + len(clock_of), int(calls["start_ns"].min())),
        probe=probed(probes, dict(zip(distinct.tolist(), clock_of, strict=True)), len(names) + len(clock_of), calls),
    )


def _columns(calls: pd.DataFrame, pairs: pd.Series[bool]) -> Calls:
    kind_of = {name: i for i, name in enumerate(_KINDS)}
    known = calls["collective"].mask(pairs, "send_recv").map(kind_of)
    by_sends = calls["name"].isin([name for name in calls["name"].dropna().unique() if "sendrecv" in name.lower()])
    kind = known.fillna(by_sends.map({True: _SENDS, False: _ANY})).to_numpy(dtype=np.int64)
    start = calls["start_ns"].to_numpy(dtype=np.int64)
    end = start + calls["dur_ns"].to_numpy(dtype=np.int64)
    # Each rank knows only its own part of an uneven all_to_all.
    size = np.where(kind == kind_of["all_to_all"], -1, _codes(calls["size_bytes"]))
    on_cpu = (calls["device"] == "cpu").to_numpy() & calls["issue_ns"].notna().to_numpy()
    return Calls(
        row=np.arange(len(calls)),
        kind=kind,
        dtype=pd.factorize(calls["dtype"])[0].astype(np.int64),
        size=size,
        step=_codes(calls["step"]),
        # Of sends and receives each rank counts its own.
        seq=np.where(pairs, -1, _codes(calls["seq"])),
        comms_id=np.where(pairs, -1, pd.factorize(calls["comms_id"])[0]),
        # On a GPU a send runs until it is received; gloo's may be done before.
        synchronising=np.isin(kind, [kind_of[k] for k in SYNCHRONISING] + [_SENDS, _ANY])
        | ((kind == kind_of["send_recv"]) & (calls["device"] != "cpu").to_numpy()),
        last_start=start,
        first_end=end,
        end=end,
        order=np.where(on_cpu, calls["issue_ns"].fillna(0).to_numpy(dtype=np.int64), end),
    )


def _codes(column: pd.Series[Any]) -> Ints:
    return column.astype("Int64").fillna(-1).to_numpy(dtype=np.int64)


def _by_id(state: _State, calls: pd.DataFrame, key: str) -> None:
    """Calls that carry the same id are one collective, unless they contradict each other."""
    # The sequence number of sends and receives counts each rank's own, so it is not equal on both sides.
    usable = (state.collective < 0) & calls[key].notna().to_numpy() & ~calls["collective"].isin(["send", "recv"])
    rows = np.flatnonzero(usable)
    if not len(rows):
        return
    table = pd.DataFrame({
        "row": rows,
        "id": pd.factorize(calls[key].iloc[rows])[0],
        # The id is a hash of the group's name and the sequence number: disjoint groups of one name share ids.
        "group": state.group[rows] if key == "seq" else pd.factorize(calls["pg_ranks"].iloc[rows])[0],
        "member": state.member[rows],
        "start": state.calls.last_start[rows],
    })  # fmt: skip
    # One collective may run as several kernels; the k-th of each rank belong together.
    ordered = table.sort_values("start", kind="stable")
    table["turn"] = ordered.groupby(["group", "id", "member"]).cumcount()
    table["key"] = table.groupby(["group", "id", "turn"], sort=False).ngroup()
    table["members"] = table.groupby("key")["member"].transform("size")
    agree = np.ones(len(rows), dtype=bool)
    for codes in (_known_kind(state.calls.kind), state.calls.dtype, state.calls.size, state.group_size):
        known = pd.Series(np.where(codes[rows] < 0, np.nan, codes[rows])).groupby(table["key"].to_numpy())
        agree &= ~(known.transform("min") < known.transform("max")).to_numpy()
    turns = table.groupby(["group", "id"])["turn"].transform("max")
    several = turns.gt(0) & (table.groupby(["group", "id"])["members"].transform("nunique") > 1)
    limit = state.group_size[rows]
    too_many = (limit > 0) & (table["members"].to_numpy() > limit)
    bad = ~agree | several.to_numpy() | too_many
    bad = pd.Series(bad).groupby(table["key"].to_numpy()).transform("any").to_numpy()
    state.alone(rows[bad & agree & too_many], _TOO_MANY)
    state.alone(rows[bad & agree & ~too_many], f"its {key} stands more often on one rank than on another")
    state.alone(rows[bad & ~agree], f"its {key} has another kind, dtype or size on another rank")
    good = ~bad & ((table["members"] > 1).to_numpy() | (limit == 1))
    number, keys = pd.factorize(table["key"][good])
    state.collective[rows[good]] = state.new(len(keys))[number]
    state.rung[rows[good]] = RUNGS.index(key)


def _known_kind(kind: Ints) -> Ints:
    return np.where(kind >= _SENDS, -1, kind)


def _link_clocks(state: _State) -> None:
    """Offsets between clocks from the collectives that ids have matched: their ends nearly coincide."""
    rows = np.flatnonzero((state.collective >= 0) & (state.rung < _ORDER) & state.calls.synchronising)
    link_by_ends(state.clocks, state.collective[rows], state.clock[rows], state.calls.end[rows])


def _by_order(state: _State, rows: Ints, anchored: Ints) -> None:
    """Lay the windows of all ranks of one group onto one timeline; `anchored` are its calls that ids have matched."""
    sequences = [own[np.argsort(state.calls.order[own], kind="stable")] for own in _by_key(state.member, rows).values()]
    limit = state.group_size[rows].max()
    if 0 < limit < len(np.unique(state.rank[rows])):
        state.alone(rows, _TOO_MANY)
        return
    sequences.sort(key=len, reverse=True)
    timeline, base = _anchors(state, anchored)
    if not len(timeline):
        timeline, base = _begun(state, sequences[0]), int(state.clock[sequences[0][0]])
        state.followed[base] = True
        sequences = sequences[1:]
    taken = _by_key(state.member, anchored)
    for own in sequences:
        mine = state.collective[taken.get(int(state.member[own[0]]), anchored[:0])]
        timeline = _laid(state, own, timeline, base, mine)


def _by_turn(state: _State, rows: Ints) -> None:
    """Pair the sends from one rank to another with its receives, both on CPUs."""
    ordered = rows[np.argsort(state.calls.order[rows], kind="stable")]
    sends, received = ordered[state.sent[ordered]], ordered[~state.sent[ordered]]
    laid: list[tuple[Ints, Ints, bool]] = []
    for own in _by_key(state.member, received).values():
        own = own[np.argsort(state.calls.order[own], kind="stable")]
        found = _turn(state, sends, own) if len(sends) else None
        if len(sends) and found is None:
            _by_order(state, rows, rows[:0])
            state.certain[rows], state.note[rows] = False, _GAPS
            return
        if found is not None:
            laid.append(found)
            sends = sends[~np.isin(sends, found[0])]
    state.collective[rows], state.rung[rows] = state.new(len(rows)), _ORDER
    for given, taken, certain in laid:
        state.collective[taken] = state.collective[given]
        both = np.concatenate([given, taken])
        state.certain[both], state.note[both] = certain, None if certain else _REPEATS


def _turn(state: _State, sends: Ints, received: Ints) -> tuple[Ints, Ints, bool] | None:
    """Sends and the receives that take them, and whether that is certain; None if they do not fit one upon another."""
    here, there = int(state.clock[sends[0]]), int(state.clock[received[0]])
    slack = SAME_CLOCK_SLACK_NS if here == there else COINCIDE_NS
    found = turn(
        state.calls.take(sends).on_clock(state.clocks, here),
        state.calls.take(received).on_clock(state.clocks, there),
        state.compatible,
        slack if state.clocks.linked(here, there) else None,
    )
    if found is None:
        return None
    low, high = max(0, -found.shift), min(len(received), len(sends) - found.shift)
    return sends[low + found.shift : high + found.shift], received[low:high], found.certain


def _anchors(state: _State, rows: Ints) -> tuple[Calls, int]:
    """The collectives that ids have matched, but not on all ranks: a call without id may belong to them.

    With the clock that their times are on.
    """
    members = np.bincount(state.collective[rows], minlength=1)[state.collective[rows]] if len(rows) else rows
    rows = rows[members < state.group_size[rows]]
    if not len(rows):
        return state.calls.take(rows), -1
    first = np.unique(state.collective[rows], return_index=True)[1]
    order = np.argsort(state.calls.order[rows[first]], kind="stable")
    timeline = state.calls.take(rows[first][order])
    timeline = timeline.on_clock(state.clocks, state.clock[rows[first][order]])
    timeline = Calls(**{**vars(timeline), "row": state.collective[rows[first][order]]})
    place_of = {collective: i for i, collective in enumerate(timeline.row.tolist())}
    for row in np.delete(rows, first):
        one = state.calls.take(np.array([row])).on_clock(state.clocks, int(state.clock[row]))
        _extend(timeline, np.array([place_of[int(state.collective[row])]]), one)
    return timeline, int(state.clock[rows[first][order][0]])


def _begun(state: _State, own: Ints) -> Calls:
    """Every call a collective of its own: the start of a timeline, in the frame of its clock."""
    state.collective[own] = state.new(len(own))
    state.rung[own] = _ORDER
    shown = state.calls.take(own).on_clock(state.clocks, int(state.clock[own[0]]))
    return Calls(**{**vars(shown), "row": state.collective[own]})


def _laid(state: _State, own: Ints, timeline: Calls, base: int, mine: Ints) -> Calls:
    """The timeline with one more rank's calls on it, not where ids have put another of its calls: in `mine`."""
    clock = int(state.clock[own[0]])
    certain, slack = True, SAME_CLOCK_SLACK_NS if clock == base else COINCIDE_NS
    known, followed = state.clocks, state.followed
    if not state.clocks.linked(clock, base):
        state.clocks, state.followed = deepcopy(known), followed.copy()
        offset = clock_offset(state.calls.take(own).on_clock(state.clocks, clock), timeline, state.compatible)
        if offset is None:
            return timeline.joined(_begun(state, own))
        state.clocks.link(clock, base, offset.offset_ns)
        certain = offset.unique or _confirmed(state, clock, base, own)
    free = np.flatnonzero(~np.isin(timeline.row, mine))
    calls, placement = _placed(state, own, timeline.take(free), clock, slack)
    found = placement.position >= 0
    on, at = own[found], free[placement.position[found]]
    state.collective[on] = timeline.row[at]
    state.rung[on] = _ORDER if placement.in_order else _TIME
    state.certain[on] = (
        certain & ~placement.rivalled[found] & ~_far_apart(calls.take(found), timeline.take(at), placement)
    )
    state.note[on[~state.certain[on]]] = _REPEATS
    _extend(timeline, at, calls.take(found))
    rest = own[~found]
    timeline = timeline.joined(_begun(state, rest)) if len(rest) else timeline
    if not certain:  # another group may tell better, and none shall build on a guess
        state.clocks, state.followed = known, followed
    return timeline


def _confirmed(state: _State, clock: int, base: int, own: Ints) -> bool:
    """Does the clock probe say the same as the offset just found, and could it not say it of another pairing too?"""
    probe = state.probe
    found = state.clocks.offset_ns[clock] - state.clocks.offset_ns[base]
    within = float((probe.uncertainty_ns[clock] + probe.uncertainty_ns[base]).max()) + COINCIDE_NS
    apart = float(np.abs(found - probe.ns[clock] + probe.ns[base]).max())
    calls = state.calls.take(own)
    unknown = bool((calls.kind >= _SENDS).any() or (calls.size < 0).any())
    alike = pd.Series(calls.end).groupby([0 * calls.kind, 0 * calls.size] if unknown else [calls.kind, calls.size])
    return apart <= within and not bool((alike.diff().abs() <= 2 * within).any())


def _far_apart(calls: Calls, timeline: Calls, placement: Placement) -> Flags:
    """Of calls placed one by one, those that end farther from their collective than nearly all others do."""
    apart = np.abs(calls.end - timeline.end)
    if placement.in_order or not calls.synchronising.any():
        return np.zeros(len(calls), dtype=bool)
    usual = max(float(np.quantile(apart[calls.synchronising], 0.9)), SAME_CLOCK_SLACK_NS / 4)
    far: Flags = calls.synchronising & (apart > 2 * usual)
    return far


def _placed(state: _State, own: Ints, timeline: Calls, clock: int, slack: int) -> tuple[Calls, Placement]:
    """The calls on the timeline's clock, and where they lie; a clock is followed where it drifts."""
    for _ in range(_ROUNDS):
        calls = state.calls.take(own).on_clock(state.clocks, clock)
        placement = place(calls, timeline, state.compatible, slack)
        if state.followed[clock]:
            break
        found = (placement.position >= 0) & calls.synchronising
        apart = (calls.end[found] - timeline.end[placement.position[found]]).astype(np.float64)
        drift = trend(calls.end[found] - state.clocks.origin_ns, apart)
        if drift is None:
            break
        state.clocks.correct(clock, *drift)
    if not state.followed[clock]:
        slack = _settle(state, clock, calls, timeline, placement, slack)
        calls = state.calls.take(own).on_clock(state.clocks, clock)
        placement = place(calls, timeline, state.compatible, slack)
    state.followed[clock] = True
    return calls, placement


def _settle(state: _State, clock: int, calls: Calls, timeline: Calls, placement: Placement, slack: int) -> int:
    """Put the clock where the ends say; the slack that is then left, for ends scatter less than clocks may differ."""
    found = (placement.position >= 0) & calls.synchronising
    apart = (calls.end[found] - timeline.end[placement.position[found]]).astype(np.float64)
    if len(apart) < _LEAST_SETTLED:
        return slack
    level = float(np.median(apart))
    state.clocks.correct(clock, level, 0.0)
    scatter = float(np.quantile(np.abs(apart - level), 0.9))
    return min(slack, max(SAME_CLOCK_SLACK_NS // 4, round(scatter)))


def _extend(timeline: Calls, at: Ints, calls: Calls) -> None:
    """Let the collectives at these positions have the calls as members."""
    timeline.last_start[at] = np.maximum(timeline.last_start[at], calls.last_start)
    timeline.first_end[at] = np.minimum(timeline.first_end[at], calls.first_end)
    for mine, theirs, unknown in (
        (timeline.kind, calls.kind, timeline.kind[at] >= _SENDS),
        (timeline.dtype, calls.dtype, timeline.dtype[at] < 0),
        (timeline.size, calls.size, timeline.size[at] < 0),
        (timeline.step, calls.step, timeline.step[at] < 0),
        (timeline.seq, calls.seq, timeline.seq[at] < 0),
        (timeline.comms_id, calls.comms_id, timeline.comms_id[at] < 0),
    ):
        mine[at] = np.where(unknown, theirs, mine[at])
