"""What the rungs of the ladder read, and what they yield.

A rung reads the `State`: calls as columns of codes, and all that is known about them so far. It yields findings, which
the ladder applies: a `Decision` about calls, a `Grouping` into process groups, `Clocks`, or `StepsIgnored`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ....common.nccl_tests import SYNCHRONISING
from ...core.arrays import Flags, Ints
from ...core.kinds import name_on_all_ranks
from ...core.schema import text_codes
from ..clocks.frame import ClockFrame
from ..clocks.probes import Ahead, probed
from ..timelines.entries import CALL_KINDS, Entries

Notes = NDArray[np.object_]

RUNGS = ("comms_id", "seq", "step", "order", "time", "none")
BY_STEP, BY_ORDER, BY_TIME, UNMATCHED = (RUNGS.index(name) for name in ("step", "order", "time", "none"))

ALONE = "no other rank shows it at that time"
TOO_MANY = "more ranks show it than its process group has; groups share the name, and their ranks are not known"
REPEATS = "the calls repeat so regularly that other pairings fit as well"
OTHERS_MAYBE = "other ranks may show it too, but the calls repeat so regularly that several pairings fit"
STEPS_ALONE = "only the numbers of steps join it to ranks of other hosts, and neither clocks nor times confirm them"
OTHER_STEP = "it was issued in another step than the others"
FAR_APART = "it ends much earlier or later than the others, so it may be another call"
AMBIGUOUS = "its process group is not known, and several would fit"

SAME_CLOCK_SLACK_NS = 20_000
"""Times of GPUs of one host are converted from their own clocks, to within some microseconds."""
# Two more kinds, for kernels whose names say little. SendRecv may be any kind that NCCL makes of sends.
SENDS = len(CALL_KINDS)
ANY = SENDS + 1  # any kind at all
_BY_SENDS = ("all_to_all", "gather", "scatter", "send_recv")


class Decision(NamedTuple):
    """What a rung decides about some calls.

    `rows` are positions in the table of calls, each once; every other field is one value, or one value per row. Calls
    with one number in `collective` are one collective; numbers from `State.collectives` on are new, -1 is undecided.
    `rung` indexes `RUNGS`. Where `group_assumed`, the process group was inferred and another one would fit as well:
    such a call is never certain. `note` is a reason to doubt, or None.
    """

    rows: Ints
    collective: Ints | int
    rung: Ints | int
    certain: Flags | bool
    group_assumed: Flags | bool
    note: Notes | str | None


class Grouping(NamedTuple):
    """The process group of `rows` as a rung infers it: code and size, by row.

    `named` gives name and ranks of groups, by code; the name is None where nothing tells it.
    """

    rows: Ints
    group: Ints
    group_size: Ints
    named: Mapping[int, tuple[str | None, tuple[int, ...]]]


class StepsIgnored(NamedTuple):
    """Calls whose steps are to be ignored, because their rank numbers steps differently; `rows` has a flag per call."""

    rows: Flags


@dataclass(frozen=True)
class Clocks:
    """What is known about the clocks of ranks, one clock per rank, in order of rank.

    `hosts` gives a code for the host of each clock, `probe` what the clock probe measured, by host, and `frame` how far
    each clock is ahead. `ends_ns` is how far apart the ends of one collective may be, in ns.
    """

    hosts: Ints
    probe: Ahead
    frame: ClockFrame
    ends_ns: int = 0

    def on_own_hosts(self, clocks: list[int]) -> Clocks:
        """Give each of these clocks a host of its own, which no probe has measured. Only before clocks are linked."""
        hosts, (ahead, uncertainty) = self.hosts.copy(), (self.probe.ns, self.probe.uncertainty_ns)
        hosts[clocks] = len(ahead) + np.arange(len(clocks))
        unknown = np.full((len(clocks), 2), np.nan)
        probe = Ahead(np.concatenate([ahead, unknown]), np.concatenate([uncertainty, unknown]))
        return replace(self, hosts=hosts, probe=probe, frame=ClockFrame.unlinked(hosts, int(self.frame.origin_ns[0])))

    def probed_apart(self, part: int, base: int) -> tuple[float, float] | None:
        """How far component `part` of the clocks is ahead of `base` by the clock probe, and how wrong that may be.

        Both in ns. None where the probe did not measure both components.
        """
        ahead = []
        for component in (part, base):
            clocks = np.flatnonzero(self.frame.component == component)
            known = clocks[~np.isnan(self.probe.ns[self.hosts[clocks], 0])]
            if not len(known):
                return None
            host = self.hosts[known[0]]
            level = self.probe.ns[host].mean() - self.frame.offset_ns[known[0]]
            ahead.append((float(level), float(self.probe.uncertainty_ns[host].max() + np.ptp(self.probe.ns[host]))))
        return ahead[0][0] - ahead[1][0], ahead[0][1] + ahead[1][1]


Finding = Decision | Grouping | StepsIgnored | Clocks
"""What a rung may yield."""
Findings = Iterator[Finding]
"""What a rung yields, in turn: each finding is applied before the rung goes on, and may rest on those before."""


@dataclass
class State:
    """Calls as columns, all of shape (calls,), and what is known about each. Rungs only read it: `apply` changes it.

    Given: `calls` has times by the clocks of their ranks. `clock` is the position of the call's rank in `ranks`, and
    `member` a code for its rank, device and cycle. `sent` says which are sends, `pair_on_cpu` which are sends and
    receives of CPUs, `named_by_trace` of which the trace names the process group. `compatible`, of shape (kinds,
    kinds), says which kinds may be one collective.

    Inferred: the `clocks`; a code for the process `group` of each call, and the size of the group, -1 if not known;
    `named`, the name and ranks of groups that no trace names, by code; and what `Decision` says about each call.
    """

    calls: Entries
    clock: Ints
    member: Ints
    group: Ints
    group_size: Ints
    sent: Flags
    pair_on_cpu: Flags
    on_cpu: Flags
    named_by_trace: Flags
    ranks: Ints
    compatible: Flags
    clocks: Clocks
    collective: Ints = field(init=False)
    rung: Ints = field(init=False)
    certain: Flags = field(init=False)
    group_assumed: Flags = field(init=False)
    note: Notes = field(init=False)
    collectives: int = 0
    groups: int = 0
    named: dict[int, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.calls)
        self.collective = np.full(count, -1, dtype=np.int64)
        self.rung = np.full(count, UNMATCHED, dtype=np.int64)
        self.certain = np.ones(count, dtype=bool)
        self.group_assumed = np.zeros(count, dtype=bool)
        self.note = np.full(count, None, dtype=object)
        # pandas hands out columns that cannot be written into.
        self.group, self.group_size = self.group.copy(), self.group_size.copy()
        self.groups = int(self.group.max(initial=0))

    def apply(self, finding: Finding) -> None:
        """Change the state as the finding says. Only the ladder calls this."""
        match finding:
            case Decision(rows, collective, rung, certain, group_assumed, note):
                self.collective[rows], self.rung[rows], self.certain[rows] = collective, rung, certain
                self.group_assumed[rows], self.note[rows] = group_assumed, note
                self.collectives = max(self.collectives, int(np.max(collective, initial=-1)) + 1)
            case Grouping(rows, group, group_size, named):
                self.group[rows], self.group_size[rows] = group, group_size
                self.named |= named
                self.groups = max(self.groups, int(group.max(initial=0)), *named)
            case StepsIgnored(rows):
                self.calls = replace(self.calls, step=np.where(rows, -1, self.calls.step))
            case Clocks():
                self.clocks = finding

    def decided(self, rows: Ints) -> Decision:
        """The decision that holds for these calls so far; a rung replaces the fields that it decides anew."""
        return Decision(
            rows, self.collective[rows], self.rung[rows], self.certain[rows], self.group_assumed[rows], self.note[rows]
        )

    def together(self, rows: Ints, number: Ints, rung: int) -> Decision:
        """Decide that the calls with one `number`, from 0 on, are one new collective."""
        return self.decided(rows)._replace(collective=self.collectives + number, rung=rung)

    def alone(self, rows: Ints, note: str) -> Decision:
        """Decide that each call belongs to no other one; `note` says why."""
        return self.together(rows, np.arange(len(rows)), UNMATCHED)._replace(note=note)

    def undecided(self, rows: Ints) -> Decision:
        """Undo the decision on these calls, so that later rungs look at them; a doubt about their group stays."""
        group_assumed = self.group_assumed[rows]
        note: Notes = np.full(len(rows), None)
        note[group_assumed] = AMBIGUOUS
        return Decision(rows, collective=-1, rung=UNMATCHED, certain=True, group_assumed=group_assumed, note=note)

    def shown(self, rows: Ints) -> Entries:
        """These calls on the common clock of their component, sorted by `order`."""
        calls, clock = self.calls.take(rows), self.clock[rows]
        calls = calls.earlier(self.clocks.frame.ahead(clock, calls.end))
        return calls.take(np.argsort(calls.order, kind="stable"))

    def timeline(self, rows: Ints) -> Entries:
        """The collectives of these calls, which all have one, on the common clock of their component."""
        if not len(rows):
            return self.calls.take(rows)
        calls = self.calls.take(rows)
        shown = calls.earlier(self.clocks.frame.ahead(self.clock[rows], calls.end))
        return shown.of_collectives(self.collective[rows])


def state_of(calls: pd.DataFrame, hosts: Mapping[int, str | None], probes: pd.DataFrame) -> State:
    """The state before any rung, with nothing decided.

    `calls` and `probes` are the tables of calls and of clock probes. `hosts` gives the host of each rank, None where it
    is not known: such a rank has a clock of its own.
    """
    pairs, sent = calls["collective"].isin(["send", "recv"]), calls["collective"].isin(["send"])
    ranks = calls["rank"].to_numpy(dtype=np.int64)
    distinct = np.unique(ranks)
    names = sorted({h for h in hosts.values() if h})
    numbered = [names.index(h) if (h := hosts.get(int(r))) else len(names) + i for i, r in enumerate(distinct)]
    host_of = np.unique(numbered, return_inverse=True)[1].astype(np.int64)
    on_cpu = (calls["device"] == "cpu").to_numpy()
    known = dict(zip(distinct.tolist(), host_of.tolist(), strict=True))
    return State(
        calls=_columns(calls, pairs),
        clock=np.searchsorted(distinct, ranks),
        member=calls.groupby(["rank", "device", "cycle"], sort=True).ngroup().to_numpy(dtype=np.int64),
        group=group_codes(calls),
        group_size=codes(calls["group_size"]),
        sent=sent.to_numpy(),
        pair_on_cpu=pairs.to_numpy() & on_cpu,
        on_cpu=on_cpu,
        named_by_trace=calls["process_group"].notna().to_numpy(),
        ranks=distinct,
        compatible=_compatible(),
        clocks=Clocks(
            hosts=host_of,
            probe=probed(probes, known, int(host_of.max()) + 1, calls),
            frame=ClockFrame.unlinked(host_of, int(calls["start_ns"].min())),
        ),
    )


def codes(column: pd.Series[Any]) -> Ints:
    """The column as integers, -1 for NA; always a copy, which may be changed."""
    return column.astype("Int64").fillna(-1).to_numpy(dtype=np.int64, copy=True)


def group_codes(rows: pd.DataFrame) -> Ints:
    """A code for the process group of each row, by name and ranks; for messages also by sender and receiver."""
    pairs, sent = rows["collective"].isin(["send", "recv"]), rows["collective"].isin(["send"])
    rank, peer = rows["rank"].astype("Int64"), rows["root"]
    keys = pd.DataFrame({
        "name": text_codes(rows["process_group"])[0],
        "ranks": text_codes(rows["pg_ranks"])[0],
        "source": rank.where(sent, peer).where(pairs).array,
        "target": peer.where(sent, rank).where(pairs).array,
    })  # fmt: skip
    return keys.groupby(list(keys), dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)


def rows_by_key(keys: Ints, rows: Ints) -> dict[int, Ints]:
    """Group `rows` by their key in `keys`, which has one for every call; the rows of a key keep their order."""
    ordered = rows[np.argsort(keys[rows], kind="stable")]
    distinct, starts = np.unique(keys[ordered], return_index=True)
    return dict(zip(distinct.tolist(), np.split(ordered, starts[1:]), strict=True)) if len(rows) else {}


def known_kind(kind: Ints) -> Ints:
    """The kinds, with -1 for SENDS and ANY, which are no single kind."""
    return np.where(kind >= SENDS, -1, kind)


def kind_codes(calls: pd.DataFrame) -> Ints:
    """The kind of each row's collective: an index of CALL_KINDS, or SENDS or ANY."""
    of_name = {name: i for i, name in enumerate(CALL_KINDS)}
    kinds = calls["collective"].mask(calls["collective"].isin(["send", "recv"]), "send_recv").map(of_name)
    if "name" not in calls:
        return kinds.fillna(ANY).to_numpy(dtype=np.int64)
    by_sends = calls["name"].isin([name for name in calls["name"].dropna().unique() if "sendrecv" in name.lower()])
    return kinds.fillna(by_sends.map({True: SENDS, False: ANY})).to_numpy(dtype=np.int64)


def _compatible() -> Flags:
    """Which kinds may be one collective: equal ones, and SENDS and ANY with what they may be; shape (kinds, kinds)."""
    result = np.eye(ANY + 1, dtype=bool)
    result[ANY, :] = result[:, ANY] = True
    for kind in _BY_SENDS:
        result[SENDS, CALL_KINDS.index(kind)] = result[CALL_KINDS.index(kind), SENDS] = True
    return result


def _columns(calls: pd.DataFrame, pairs: pd.Series[bool]) -> Entries:
    """The table of calls as entries, in its order; `pairs` says which are sends and receives."""
    kind = kind_codes(calls)
    start = calls["start_ns"].to_numpy(dtype=np.int64)
    end = start + calls["dur_ns"].to_numpy(dtype=np.int64)
    on_cpu = (calls["device"] == "cpu").to_numpy()
    issued = on_cpu & calls["issue_ns"].notna().to_numpy()
    # All ranks of a collective run the same kernel.
    kernels = {name: name_on_all_ranks(name) for name in calls["name"].dropna().unique()}
    return Entries(
        row=np.arange(len(calls)),
        kind=kind,
        dtype=pd.factorize(calls["dtype"])[0].astype(np.int64),
        # Each rank knows only its own part of an uneven all_to_all.
        size=np.where(kind == CALL_KINDS.index("all_to_all"), -1, codes(calls["size_bytes"])),
        name=np.where(on_cpu, -1, pd.factorize(calls["name"].map(kernels))[0]),
        step=codes(calls["step"]),
        # Each rank counts its own sends and receives.
        seq=np.where(pairs, -1, codes(calls["seq"])),
        comms_id=np.where(pairs, -1, pd.factorize(calls["comms_id"])[0]),
        # On a GPU a send runs until it is received; gloo's may be done before.
        synchronising=np.isin(kind, [*(CALL_KINDS.index(k) for k in SYNCHRONISING), SENDS, ANY])
        | ((kind == CALL_KINDS.index("send_recv")) & ~on_cpu),
        last_start=start,
        first_end=end,
        end=end,
        order=np.where(issued, calls["issue_ns"].fillna(0).to_numpy(dtype=np.int64), end),
        until=_until(calls, end),
    )


def _until(calls: pd.DataFrame, end: Ints) -> Ints:
    """The end of the last call of the window in which each call was recorded, in ns.

    What was launched before the profiler started is recorded as well, but only what the device still reports: the last
    of it may be missing. So it is a window of its own, beside the calls of which the launch is known.
    """
    window = calls.groupby(["rank", "device", "cycle", calls["issue_ns"].isna().to_numpy()], sort=False).ngroup()
    last: Ints = pd.Series(end).groupby(window.to_numpy()).transform("max").to_numpy(dtype=np.int64)
    return last
