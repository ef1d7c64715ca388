"""Make the tables of a run that need no clock and no compute from dumps with durations.

A dump says when a call was issued and how long its kernel took, not when that began. No rank can end a collective such
as all_reduce before the last one has come, and that one does not wait: so its duration, the shortest, is the transfer,
and what others took longer they waited. Definition: docs/metrics/flight-recorder.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ...common.nccl_tests import SYNCHRONISING, NoFormula, bus_factor, item_bytes, size_elems
from ..catalog import described
from ..core.budget import GB, Budget, default_limit_bytes
from ..core.tables.communication import MATCHES, MEMBERS
from ..errors import NothingMeasured, TraceError
from ..formats.flight_recorder.dump import listed_ranks
from ..formats.flight_recorder.timed import TimedCall, TimedDump, read_timed
from ..hang.files import DUMPS, looks_like_dumps
from ..hang.reading import possible_ranks
from ..reading.executor import Processes, cores, results
from ..reading.named_ranks import ranks_of
from ..tables.bandwidth import bandwidth
from ..tables.calls import CALLS
from ..tables.clocks import CLOCKS
from ..tables.collectives import COLLECTIVES, collectives
from ..tables.fits import fits
from ..tables.participation import participation, split_calls
from ..tables.roles import GROUPS
from .offer import TIMED_TABLES, name_of_dumps, no_such_table

_SOURCE = "dump"
_WORTH_A_PROCESS = 16  # files
_CALL_BYTES = 3_300  # in all tables
_NOTE = (
    "from dumps of the flight recorder: start is when a call was issued, waiting what it took longer than the shortest "
    "call of its collective"
)


@dataclass(frozen=True)
class TimedDumps:
    """Tables of dumps with durations, described in docs/tables.md; values that need clocks or compute are NA."""

    name: str
    dumps: dict[int, TimedDump]
    failed: list[str]

    @property
    def notes(self) -> list[str]:
        """Differences from tables of traces."""
        return [_NOTE]

    @cached_property
    @described
    def calls(self) -> pd.DataFrame:
        """One row per rank and call that has a duration."""
        rows = [_row(rank, call) for rank, timed in self.dumps.items() for call in timed.calls]
        rows.sort(key=lambda row: (row["rank"], row["start_ns"]))
        return CALLS.frame(row | {"call_id": number} for number, row in enumerate(rows))

    @cached_property
    def _matches(self) -> pd.DataFrame:
        """Match calls of one group and number; sends, receives and batches stay alone."""
        calls = self.calls
        keys = ["process_group", "pg_ranks", "seq"]
        alone = calls["seq"].isna() | calls.duplicated(["rank", *keys], keep=False)
        place = calls.groupby(keys, dropna=False, sort=False).ngroup().where(~alone, -1 - calls["call_id"])
        numbers = pd.factorize(place)[0]
        return MATCHES.conform(
            pd.DataFrame(
                {
                    "call_id": calls["call_id"],
                    "collective_id": numbers,
                    "matched_by": alone.map({True: "none", False: "seq"}),
                    "certain": ~alone,
                    "note": alone.map({True: "its number says nothing about other ranks", False: None}),
                    **dict.fromkeys(("found_collective", "found_process_group", "found_pg_ranks", "found_group_size")),
                }
            )
        )

    @cached_property
    def _clocks(self) -> pd.DataFrame:
        """The clocks of the ranks, none linked."""
        nothing = {"offset_ns": 0, "drift_ppm": 0.0, "origin_ns": 0, "basis": "dumps hold no ends"}
        nothing |= {"uncertainty_ns": 0, "bent_uncertainty_ns": 0}
        known = dict.fromkeys(("host", "bends", "probe_offset_ns", "probe_uncertainty_ns", "partial"))
        return CLOCKS.frame({"rank": rank, "linked": rank, **nothing, **known} for rank in self.dumps)

    @cached_property
    @described
    def participation(self) -> pd.DataFrame:
        """One row per call: its wait is the time above the shortest call of its collective."""
        return participation(self._members, self.calls, self.collectives)

    @cached_property
    def _members(self) -> pd.DataFrame:
        table = split_calls(self.calls, self._matches, self._clocks, None)
        calls = table.merge(self._whole.rename("whole"), left_on="collective_id", right_index=True)
        wait = table["wait_clock_free_ns"].where(calls["whole"].to_numpy())
        one = table["wait_ns"]  # of groups of one rank
        table = table.assign(wait_ns=wait.fillna(one), wait_low_ns=wait.fillna(one))
        return MEMBERS.conform(table.assign(transfer_ns=table["dur_ns"] - table["wait_ns"]))

    @cached_property
    @described
    def collectives(self) -> pd.DataFrame:
        """One row per collective; its transfer is the shortest duration of its ranks."""
        table = self._collectives
        transfer = table["min_dur_ns"].astype("Int64").where(self._whole.to_numpy())
        algbw = table["size_bytes"].astype("Float64").where(table["size_bytes"] > 0) / transfer.where(transfer > 0)
        factor = pd.Series(
            [_factor(*pair) for pair in zip(table["collective"], table["group_size"], strict=True)],
            dtype="Float64",
        )
        return COLLECTIVES.conform(
            table.assign(transfer_ns=transfer, algbw_gb_per_s=algbw, busbw_gb_per_s=algbw * factor)
        )

    @cached_property
    def _collectives(self) -> pd.DataFrame:
        bare = split_calls(self.calls, self._matches, self._clocks, None)
        return collectives(self.calls, self._matches, bare, self._clocks, None)

    @cached_property
    def _whole(self) -> pd.Series[bool]:
        """Whether all ranks of each collective are there, so that the last one did not wait."""
        collectives = self._collectives
        several = collectives["ranks"].str.contains(" ", regex=False)
        whole = (
            collectives["complete"] & collectives["certain"] & several & collectives["collective"].isin(SYNCHRONISING)
        )
        return pd.Series(whole.fillna(False).astype(bool).to_numpy(), index=collectives["collective_id"])

    @cached_property
    @described
    def bandwidth(self) -> pd.DataFrame:
        """Bandwidth as nccl-tests defines it, by group, collective, dtype and size."""
        return bandwidth(self.collectives, self._members, GROUPS.empty(), None)

    @cached_property
    @described
    def fits(self) -> pd.DataFrame:
        """Latency and bandwidth of every collective, fitted over sizes."""
        return fits(self.collectives)

    def table(self, name: str) -> pd.DataFrame:
        """The table of this name. Raises NothingMeasured for tables that dumps cannot give."""
        if name not in TIMED_TABLES:
            raise no_such_table(self.name)
        table: pd.DataFrame = getattr(self, name)
        return table


def timed_dumps(
    paths: Sequence[Path], *, keep_going: bool = False, workers: int | None = None, memory_gb: float | None = None
) -> TimedDumps | None:
    """The dumps at `paths`, None if there are none. Options as in `find_hang`. Raises AnalysisError."""
    if not looks_like_dumps(paths):
        return None
    files = DUMPS.named(paths)
    limit_bytes = default_limit_bytes() if memory_gb is None else int(memory_gb * GB)
    budget = Budget(limit_bytes)
    readers = max(1, min(workers or cores(), len(files) // _WORTH_A_PROCESS))
    outcomes: list[TimedDump | TraceError] = []
    with Processes(readers if readers > 1 else 0) as executor:
        for one in results(executor, _read, ((path, limit_bytes // readers) for path in files)):
            outcomes.append(one)
            if isinstance(one, TimedDump):
                needed_bytes = one.dump.kept_bytes + len(one.calls) * _CALL_BYTES
                budget.draw(f"{files[len(outcomes) - 1]}: with all dumps before it", needed_bytes)
    errors = [one for one in outcomes if isinstance(one, TraceError)]
    if errors and (not keep_going or len(errors) == len(outcomes)):
        raise errors[0]
    usable = [(path, one) for path, one in zip(files, outcomes, strict=True) if isinstance(one, TimedDump)]
    ranks = ranks_of([path for path, _ in usable], possible_ranks([(path, timed.dump) for path, timed in usable]))
    of_rank = dict(sorted(zip(ranks, (timed for _, timed in usable), strict=True)))
    name = name_of_dumps(paths)
    if not any(timed.calls for timed in of_rank.values()):
        raise NothingMeasured(
            f"{name}: no call in these dumps has a duration; record with TORCH_NCCL_ENABLE_TIMING=1 (gloo never has "
            "any), or use commtrace hang, which needs none"
        )
    return TimedDumps(name, of_rank, list(map(str, errors)))


def _read(path: Path, limit_bytes: int) -> TimedDump | TraceError:
    try:
        return read_timed(path, limit_bytes)
    except TraceError as err:
        return err


def _row(rank: int, call: TimedCall) -> dict[str, Any]:
    """A row of `calls` without its number."""
    members = listed_ranks(call.group.ranks)
    nothing = dict.fromkeys(("step", "in_split", "out_split", "comms_id", "root", "turn", "batch", "partial"))
    return nothing | {
        "rank": rank,
        "cycle": 0,
        "device": "0",
        "stream": 0,
        "name": call.kind,
        "collective": call.kind if _is_known(call.kind) else None,
        "process_group": call.group.name,
        "pg_ranks": " ".join(map(str, sorted(members))) or None,
        "group_size": len(members) or None,
        "dtype": call.dtype,
        "in_elems": call.in_elems,
        "out_elems": call.out_elems,
        "size_bytes": _size_bytes(call),
        "seq": call.seq,
        "issue_ns": call.issued_ns,
        "start_ns": call.issued_ns,
        "dur_ns": call.dur_ns,
        "metadata_from": _SOURCE,
    }


def _is_known(kind: str) -> bool:
    try:
        size_elems(kind, 0, 0)
    except NoFormula:
        return False
    return True


def _size_bytes(call: TimedCall) -> int | None:
    if call.dtype is None or call.in_elems is None or call.out_elems is None:
        return None
    try:
        return size_elems(call.kind, call.in_elems, call.out_elems) * item_bytes(call.dtype)
    except NoFormula:
        return None


def _factor(collective: Any, group_size: Any) -> float | None:
    if pd.isna(collective) or pd.isna(group_size) or collective == "barrier":
        return None
    return bus_factor(collective, int(group_size))
