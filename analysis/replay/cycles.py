"""The programs of all ranks, cycle by cycle, from the tables of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ..core.nccl_tests import SYNCHRONISING
from ..core.schema import grouped
from ..core.tables.communication import ANNOTATIONS
from ..core.tables.device_time import CPU_OPERATORS, STREAM_WAITS
from ..metrics.clocks.table import aligned
from ..metrics.device.idle import HostTables
from .cpu_programs import cpu_program
from .host_time import HostTime
from .programs import NONE, RankProgram, gpu_program

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
    stream_waits: pd.DataFrame = field(default_factory=STREAM_WAITS.empty)
    operators: pd.DataFrame = field(default_factory=CPU_OPERATORS.empty)
    annotations: pd.DataFrame = field(default_factory=ANNOTATIONS.empty)


def rank_programs(run: Played) -> Iterator[list[RankProgram]]:
    """The programs of all ranks, cycle by cycle."""
    codes = pd.factorize(run.activities["name"], sort=True)[0]
    activities = run.activities.assign(row=np.arange(len(run.activities)), code=codes)
    calls = _calls(run)
    hosts = HostTables(run.runtime_calls, run.operators, run.annotations, is_read=True)
    names, copies = run.activities["name"].to_numpy(dtype=object), (run.activities["kind"] == "memory").to_numpy()
    for (_, of_cycle), (cycle, called) in zip(
        grouped(activities, ["cycle"]), _by_cycle(run.runtime_calls, activities), strict=True
    ):
        launched = dict(grouped(called, ["rank"]))
        waits, marks = (
            table[table["cycle"] == of_cycle["cycle"].iloc[0]] for table in (run.stream_waits, run.annotations)
        )
        waited, marked = dict(grouped(waits, ["rank"])), dict(grouped(marks, ["rank"]))
        yield [
            replace(
                _program(
                    own.merge(calls, on=ACTIVITY_KEYS, how="left"),
                    launched.get(rank, called.iloc[:0]),
                    waited.get(rank, waits.iloc[:0]),
                    marked.get(rank, marks.iloc[:0]),
                    run.clocks,
                ),
                host=HostTime(rank[0], hosts.host(rank[0], cycle), run.clocks, names, copies),
            )
            for rank, own in grouped(of_cycle, ["rank"])
        ]


def _by_cycle(calls: pd.DataFrame, activities: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(cycle, calls[calls["cycle"] == cycle]) for cycle in sorted(activities["cycle"].unique())]


def _calls(run: Played) -> pd.DataFrame:
    """Of each activity that is a call, or several: its collective, and whom it has to wait for."""
    told = run.participation[["call_id", "collective_id", "waited_for", "wait_ns"]]
    kinds = run.collectives[["collective_id", "collective", "complete"]].rename(columns={"collective": "kind"})
    columns = ["call_id", "collective", "size_bytes", "root", "issue_ns", "dur_ns", *ACTIVITY_KEYS]
    found = run.calls[columns].merge(told, on="call_id").merge(kinds, on="collective_id")
    # On clocks that nothing links, members of a collective seem seconds apart: then each call takes as long as it took.
    linked = found["rank"].map(run.clocks.set_index("rank")["linked"])
    found = found[linked.groupby(found["collective_id"]).transform("nunique") == 1].reset_index(drop=True)
    found["arrived_ns"] = aligned(found["start_ns"], found["rank"], run.clocks)
    found = found.assign(needs=_needs(found), collective_id=_exchanges(found))
    found = found.sort_values("wait_ns", ascending=False, kind="stable", na_position="last")
    found = found.drop_duplicates(ACTIVITY_KEYS).sort_index()
    return found[[*ACTIVITY_KEYS, "collective_id", "needs", "issue_ns"]]


def _needs(calls: pd.DataFrame) -> pd.Series[int]:
    """The rank that each call has to wait for: NONE for all members, itself for nobody.

    What a call waited for need not be all: a late rank waits for nobody, and would if it were not late.
    """
    needs = calls["waited_for"].astype("Int64").fillna(calls["rank"])
    ended, of_collective = calls["arrived_ns"] + calls["dur_ns"], calls.groupby("collective_id")
    needs = needs.mask(calls["kind"].isin(SYNCHRONISING), NONE)
    # The last word is what happened: a call that ended before another member arrived did not need that one.
    arrived_first = ended >= of_collective["arrived_ns"].transform("max")
    is_send = calls["collective"] == "send"
    waited = is_send & (calls["wait_ns"].fillna(0) > _WAITED_NS)
    met_bytes = calls["size_bytes"][waited].min()
    meets = is_send & (calls["size_bytes"] >= met_bytes).fillna(value=False) if waited.any() else is_send & False
    needs = needs.mask(((calls["collective"] == "recv") | meets) & arrived_first, NONE)
    of_root = calls["kind"].isin(("broadcast", "scatter")) & calls["waited_for"].isna() & calls["root"].notna()
    needs = needs.mask(of_root & arrived_first, calls["root"])
    return needs.mask(
        calls["kind"].isin(("reduce", "gather")) & (calls["rank"] == calls["root"]) & arrived_first, NONE
    ).astype("int64")


def _exchanges(calls: pd.DataFrame) -> pd.Series[int]:
    """The number of each call's collective: that of the first of those which share kernels, for messages in batches.

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
    own: pd.DataFrame, called: pd.DataFrame, waited: pd.DataFrame, marks: pd.DataFrame, clocks: pd.DataFrame
) -> RankProgram:
    if (own["device"] == "cpu").all():
        return cpu_program(int(own["rank"].iloc[0]), own, clocks)
    return gpu_program(own, called, waited, marks, clocks)
