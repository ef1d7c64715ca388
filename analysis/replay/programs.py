"""What each rank did in one cycle as arrays: activities by stream, calls of its CPU, and collectives.

All times are on the common clock, in ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.nccl_tests import SYNCHRONISING
from ..core.schema import grouped
from ..core.steps import NO_STEP
from ..metrics.clocks.frame import Flags, Ints
from ..metrics.clocks.table import aligned

NONE = -1
LONG_AGO = np.iinfo(np.int64).min // 4
ACTIVITY_KEYS = ["rank", "cycle", "device", "stream", "start_ns"]
"""What tells an activity, and the call that it is."""
_LONG_NS, _SOON = 200_000, 0.5


@dataclass(frozen=True)
class Played:
    """The tables of a run that a replay needs."""

    activities: pd.DataFrame
    runtime_calls: pd.DataFrame
    calls: pd.DataFrame
    participation: pd.DataFrame
    collectives: pd.DataFrame
    clocks: pd.DataFrame


@dataclass(frozen=True)
class RankProgram:
    """One rank in one cycle. Of `n` activities, by stream and start: columns of shape (n,); NONE is not known.

    `row` are those of the table, `lane` numbers devices and streams, `name` the names; `collective` is what an activity
    is a call of, `needs` the rank that it had to wait for, NONE for all members. `launch` is the position of the CPU's
    call, whose columns, in order of start, begin with `call_`.
    """

    rank: int
    row: Ints
    lane: Ints
    device: NDArray[Any]
    name: Ints
    start: Ints
    end: Ints
    step: Ints
    is_comm: Flags
    collective: Ints
    needs: Ints
    launch: Ints
    call_start: Ints
    call_end: Ints
    call_name: NDArray[Any]
    call_thread: Ints

    def __len__(self) -> int:
        return len(self.start)


def steps_of(program: RankProgram) -> Ints:
    """The step of each activity, NO_STEP for none; 0 for all where none are marked."""
    return program.step if (program.step >= 0).any() else np.zeros_like(program.step)


def rank_programs(run: Played) -> Iterator[list[RankProgram]]:
    """The programs of all ranks, cycle by cycle."""
    names = pd.factorize(run.activities["name"], sort=True)[0]
    activities = run.activities.assign(row=np.arange(len(run.activities)), code=names)
    calls = _calls(run)
    for (_, of_cycle), (_, called) in zip(
        grouped(activities, ["cycle"]), _by_cycle(run.runtime_calls, activities), strict=True
    ):
        launched = dict(grouped(called, ["rank"]))
        nothing = called.iloc[:0]
        yield [
            _program(rank, own, launched.get((rank,), nothing), calls, run.clocks)
            for (rank,), own in grouped(of_cycle, ["rank"])
        ]


def _by_cycle(calls: pd.DataFrame, activities: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(cycle, calls[calls["cycle"] == cycle]) for cycle in sorted(activities["cycle"].unique())]


def _calls(run: Played) -> pd.DataFrame:
    """Of each call: its place among the activities, its collective, and whom it had to wait for."""
    told = run.participation[["call_id", "collective_id", "waited_for"]]
    kinds = run.collectives[["collective_id", "collective", "complete"]].rename(columns={"collective": "kind"})
    found = run.calls[["call_id", *ACTIVITY_KEYS]].merge(told, on="call_id").merge(kinds, on="collective_id")
    together = found["kind"].isin(SYNCHRONISING)
    needs = found["waited_for"].astype("Int64").fillna(found["rank"])
    found = found.assign(needs=needs.mask(together, NONE).astype("int64"))
    return found.drop_duplicates(ACTIVITY_KEYS)[[*ACTIVITY_KEYS, "collective_id", "needs"]]


def _program(
    rank: int, own: pd.DataFrame, called: pd.DataFrame, calls: pd.DataFrame, clocks: pd.DataFrame
) -> RankProgram:
    own = own.merge(calls, on=ACTIVITY_KEYS, how="left")
    lane = pd.MultiIndex.from_frame(own[["device", "stream"]]).factorize(sort=True)[0]
    start = aligned(own["start_ns"], own["rank"], clocks).to_numpy()
    end = start + own["dur_ns"].to_numpy()
    order = np.lexsort((end, start, lane))
    called = called.assign(start_ns=aligned(called["start_ns"], called["rank"], clocks)) if len(called) else called
    called = _with_hidden_waits(called.sort_values("start_ns", kind="stable"), own["correlation"], end)
    launch = _launches(own["correlation"], called["correlation"])
    call_start = called["start_ns"].to_numpy()
    return RankProgram(
        rank=rank,
        row=own["row"].to_numpy()[order],
        lane=lane[order],
        device=own["device"].to_numpy()[order],
        name=own["code"].to_numpy()[order],
        start=start[order],
        end=end[order],
        step=own["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)[order],
        is_comm=(own["kind"] == "comm").to_numpy(dtype=bool)[order],
        collective=own["collective_id"].to_numpy(dtype=np.int64, na_value=NONE)[order],
        needs=own["needs"].to_numpy(dtype=np.int64, na_value=NONE)[order],
        launch=launch[order],
        call_start=call_start,
        call_end=call_start + called["dur_ns"].to_numpy(),
        call_name=called["name"].to_numpy(dtype=object),
        call_thread=called["thread"].to_numpy(),
    )


def _with_hidden_waits(called: pd.DataFrame, correlation: pd.Series[int], end: Any) -> pd.DataFrame:
    """The calls of a rank, with those added in which its CPU must have waited, if only launches were recorded.

    These are where a long time passes between two calls, all that was launched ends in it, and the next call follows
    soon. `called` are in order of start.
    """
    is_launch = called["correlation"].isin(correlation.dropna())
    if not len(called) or not is_launch.all():
        return called
    begin = called["start_ns"].to_numpy()
    done = begin + called["dur_ns"].to_numpy()
    position = _launches(correlation, called["correlation"])
    known = position != NONE
    last_end = np.full(len(called), LONG_AGO)
    np.maximum.at(last_end, position[known], end[known])
    last_end = np.maximum.accumulate(last_end)
    gap, after = begin[1:] - done[:-1], begin[1:] - last_end[:-1]
    hidden = np.flatnonzero((gap > _LONG_NS) & (after >= 0) & (after < gap * _SOON))
    added = called.iloc[hidden].assign(
        name="cudaDeviceSynchronize", start_ns=done[hidden], dur_ns=last_end[hidden] - done[hidden]
    )
    added["correlation"] = pd.array([None] * len(added), dtype="Int64")
    return pd.concat([called, added.astype(called.dtypes)]).sort_values("start_ns", kind="stable")


def _launches(of_activity: pd.Series[int], of_call: pd.Series[int]) -> Ints:
    """The position of the first call with the correlation of each activity."""
    known = np.flatnonzero(of_call.notna())
    calls = pd.Series(known, index=of_call.iloc[known].to_numpy(dtype=np.int64))
    first = calls[~calls.index.duplicated()]
    at = first.index.get_indexer(pd.Index(of_activity.to_numpy(dtype=np.int64, na_value=LONG_AGO)))
    found: Ints = np.where(at >= 0, first.to_numpy()[at] if len(first) else NONE, NONE)
    return found
