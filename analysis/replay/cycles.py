"""The programs of all ranks, cycle by cycle, from the tables of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ..core.kinds import MEMORY
from ..core.nccl_tests import SYNCHRONISING
from ..core.schema import grouped
from ..core.tables.communication import ANNOTATIONS
from ..core.tables.device_time import CPU_OPERATORS, STREAM_WAITS
from ..metrics.device.idle import HostTables
from .cpu_programs import cpu_program
from .host_time import HostTime
from .programs import NONE, RankProgram, gpu_program

ACTIVITY_KEYS = ["rank", "cycle", "device", "stream", "start_ns"]
"""What tells an activity, and the call that it is."""


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
    names, copies = run.activities["name"], (run.activities["kind"] == MEMORY).to_numpy(dtype=bool)
    for (_, of_cycle), (cycle, called) in zip(
        grouped(activities, ["cycle"]), _by_cycle(run.runtime_calls, activities), strict=True
    ):
        launched = dict(grouped(called, ["rank"]))
        waited = dict(grouped(run.stream_waits[run.stream_waits["cycle"] == of_cycle["cycle"].iloc[0]], ["rank"]))
        yield [
            replace(
                _program(
                    own.merge(calls, on=ACTIVITY_KEYS, how="left"),
                    launched.get(rank, called.iloc[:0]),
                    waited.get(rank, run.stream_waits.iloc[:0]),
                    run.clocks,
                ),
                host=HostTime(rank[0], cycle, hosts, run.clocks, names, copies),
            )
            for rank, own in grouped(of_cycle, ["rank"])
        ]


def _by_cycle(calls: pd.DataFrame, activities: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(cycle, calls[calls["cycle"] == cycle]) for cycle in sorted(activities["cycle"].unique())]


def _calls(run: Played) -> pd.DataFrame:
    """Of each call: its place among the activities, its collective, and whom it had to wait for."""
    told = run.participation[["call_id", "collective_id", "waited_for"]]
    kinds = run.collectives[["collective_id", "collective", "complete"]].rename(columns={"collective": "kind"})
    found = (
        run.calls[["call_id", "issue_ns", *ACTIVITY_KEYS]].merge(told, on="call_id").merge(kinds, on="collective_id")
    )
    # On clocks that nothing links, members of a collective seem seconds apart: then each call takes as long as it took.
    linked = found["rank"].map(run.clocks.set_index("rank")["linked"])
    found = found[linked.groupby(found["collective_id"]).transform("nunique") == 1]
    together = found["kind"].isin(SYNCHRONISING)
    needs = found["waited_for"].astype("Int64").fillna(found["rank"])
    found = found.assign(needs=needs.mask(together, NONE).astype("int64"))
    return found.drop_duplicates(ACTIVITY_KEYS)[[*ACTIVITY_KEYS, "collective_id", "needs", "issue_ns"]]


def _program(own: pd.DataFrame, called: pd.DataFrame, waited: pd.DataFrame, clocks: pd.DataFrame) -> RankProgram:
    if (own["device"] == "cpu").all():
        return cpu_program(int(own["rank"].iloc[0]), own, clocks)
    return gpu_program(own, called, waited, clocks)
