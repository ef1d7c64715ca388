"""Build the programs of all ranks, cycle by cycle, from the tables of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ...common.nccl_tests import POINT_TO_POINT, SYNCHRONISING
from ..core.kinds import MEMORY
from ..core.schema import grouped
from ..core.tables.communication import ANNOTATIONS
from ..core.tables.events import STREAM_WAITS
from ..metrics.clocks.table import aligned
from ..metrics.compute.contention import Slowdown
from ..metrics.device.idle import HostTables
from ..metrics.periods import Period
from .cpu_programs import cpu_program, with_ends_of_messages
from .host_time import HostTime
from .programs import NONE, RankProgram, Recent, gpu_program

ACTIVITY_KEYS = ["rank", "cycle", "device", "stream", "start_ns"]
"""What tells an activity, and the call that it is."""
_WAITED_NS = 20_000
"""A send that waits longer for its receiver shows that messages of its size or more wait for it."""


@dataclass(frozen=True)
class Played:
    """The tables of a run that a replay needs."""

    activities: pd.DataFrame
    runtime_calls: pd.DataFrame
    calls: pd.DataFrame
    participation: pd.DataFrame
    collectives: pd.DataFrame
    clocks: pd.DataFrame
    hosts: HostTables
    stream_waits: pd.DataFrame = field(default_factory=STREAM_WAITS.empty)
    annotations: pd.DataFrame = field(default_factory=ANNOTATIONS.empty)
    slowdown: Callable[[], Mapping[int, Slowdown]] = dict
    """How many times as long compute takes beside communication, by rank as far as it is known."""
    period: Period | None = None
    """After how many steps these repeat, if they do."""


def rank_programs(run: Played) -> Iterator[list[RankProgram]]:
    """Yield the programs of all ranks for each cycle."""
    codes = pd.factorize(run.activities["name"], sort=True)[0]
    activities = run.activities.assign(row=np.arange(len(run.activities)), code=codes)
    calls = _calls(run)
    sending = set(run.calls["rank"][run.calls["collective"].isin(POINT_TO_POINT)])
    recent = Recent(period=run.period)
    names, copies = run.activities["name"], (run.activities["kind"] == MEMORY).to_numpy(dtype=bool)
    for (_, of_cycle), (cycle, called) in zip(
        grouped(activities, ["cycle"]), _by_cycle(run.runtime_calls, activities), strict=True
    ):
        launched = dict(grouped(called, ["rank"]))
        waits, marks = (
            table[table["cycle"] == of_cycle["cycle"].iloc[0]] for table in (run.stream_waits, run.annotations)
        )
        waited, marked = dict(grouped(waits, ["rank"])), dict(grouped(marks, ["rank"]))
        members = [
            replace(
                _program(
                    of_rank.merge(calls, on=ACTIVITY_KEYS, how="left"),
                    launched.get(rank, called.iloc[:0]),
                    waited.get(rank, waits.iloc[:0]),
                    marked.get(rank, marks.iloc[:0]),
                    run.clocks,
                ),
                host=HostTime(rank[0], cycle, run.hosts, run.clocks, names, copies),
                is_sending=rank[0] in sending,
                slowdown=run.slowdown,
                recent=recent,
            )
            for rank, of_rank in grouped(of_cycle, ["rank"])
        ]
        overlap = any(program.overlaps.any() for program in members)
        yield with_ends_of_messages(members) if overlap else members


def _by_cycle(calls: pd.DataFrame, activities: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(cycle, calls[calls["cycle"] == cycle]) for cycle in sorted(activities["cycle"].unique())]


def _calls(run: Played) -> pd.DataFrame:
    """The collective of each activity that is a call, and the rank that it has to wait for."""
    waits = run.participation[["call_id", "collective_id", "waited_for", "wait_ns"]]
    kinds = run.collectives[["collective_id", "collective", "complete"]].rename(columns={"collective": "kind"})
    columns = ["call_id", "collective", "size_bytes", "root", "issue_ns", "dur_ns", *ACTIVITY_KEYS]
    calls = run.calls[columns].merge(waits, on="call_id").merge(kinds, on="collective_id")
    # On clocks that nothing links, members of a collective seem seconds apart: then each call takes as long as it took.
    linked = calls["rank"].map(run.clocks.set_index("rank")["linked"])
    calls = calls[linked.groupby(calls["collective_id"]).transform("nunique") == 1].reset_index(drop=True)
    calls["arrived_ns"] = aligned(calls["start_ns"], calls["rank"], run.clocks)
    calls = calls.assign(needs=_needs(calls), collective_id=_exchanges(calls))
    # Of messages in one batch, what the last to come waited for counts.
    calls = calls.assign(
        waits=calls["wait_ns"].fillna(0),
        waits_for_itself=calls["needs"] == calls["rank"],
        is_split=calls["wait_ns"].notna(),
    )
    calls = calls.sort_values(["waits", "waits_for_itself"], ascending=[False, True], kind="stable")
    calls = calls.drop_duplicates(ACTIVITY_KEYS).sort_index()
    return calls[[*ACTIVITY_KEYS, "collective_id", "needs", "issue_ns", "is_split"]]


def _needs(calls: pd.DataFrame) -> pd.Series[int]:
    """The rank that each call has to wait for: NONE for all members, the call's own rank for nobody.

    What a call waited for need not be all: a late rank waits for nobody, and would if it were not late. But a call that
    ended before another member arrived did not need that one.
    """
    ranks, of_collective = calls["rank"].astype("Int64"), calls.groupby("collective_id")["rank"]
    others = of_collective.transform("sum") - ranks
    came_last = calls.groupby("collective_id")["arrived_ns"].transform("max")
    can_wait = (of_collective.transform("size") > 1) & (calls["arrived_ns"] + calls["dur_ns"] >= came_last)
    rooted, root = calls["kind"], calls["root"].astype("Int64")
    needs = calls["waited_for"].astype("Int64").fillna(ranks)
    peer = can_wait & (of_collective.transform("size") == 2) & (calls["collective"].eq("recv") | _meets(calls))
    needs = needs.mask(peer & (needs == ranks), others)
    needs = needs.mask(can_wait & rooted.isin(("broadcast", "scatter")) & (needs == ranks) & root.notna(), root)
    needs = needs.mask(can_wait & rooted.isin(("reduce", "gather")) & (ranks == root).fillna(value=False), NONE)
    return needs.mask(calls["kind"].isin(SYNCHRONISING), NONE).astype("int64")


def _meets(calls: pd.DataFrame) -> pd.Series[bool]:
    """Whether a send is at least as large as the smallest that waited; smaller ones may end early."""
    is_send = calls["collective"] == "send"
    least_bytes = calls["size_bytes"][is_send & (calls["wait_ns"].fillna(0) > _WAITED_NS)].min()
    large: pd.Series[bool] = (calls["size_bytes"] >= least_bytes).fillna(value=False).astype(bool)
    return is_send & large


def _exchanges(calls: pd.DataFrame) -> pd.Series[int]:
    """Number of each call's collective; messages that share kernels get the number of the first.

    A batch of messages is one kernel on each side. Where a rank would have two kernels in one exchange, they are left
    as they are.
    """
    kernel = calls.groupby(ACTIVITY_KEYS, sort=False).ngroup()
    several = kernel.map(kernel.value_counts()) > 1
    number, shared = calls["collective_id"], calls["collective_id"].isin(calls["collective_id"][several])
    result = number.copy()
    while True:
        lowest = result.groupby(kernel).transform("min")
        lowest = lowest.groupby(number).transform("min")
        if (lowest == result).all():
            break
        result = lowest
    twice = kernel.groupby([result, calls["rank"]]).transform("nunique") > 1
    unclear = twice.groupby(result).transform("any")
    return result.where(shared & ~unclear, number)


def _program(
    activities: pd.DataFrame, called: pd.DataFrame, waited: pd.DataFrame, marks: pd.DataFrame, clocks: pd.DataFrame
) -> RankProgram:
    if (activities["device"] == "cpu").all():
        return cpu_program(int(activities["rank"].iloc[0]), activities, clocks)
    return gpu_program(activities, called, waited, marks, clocks)
