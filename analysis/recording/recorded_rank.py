"""Find the global rank of a process from its records of collectives, as files of dynolog have no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...common.nccl_tests import SYNCHRONISING, collective_name
from ..core.markers import RECORD

_DEFAULT_GROUP = "0"


def recorded_rank(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The global rank that all these records agree on; None if none says it or they disagree.

    `Rank` is a process's place in its group where no rank has another part than the others; of a rooted collective it
    is the root, of a send or receive the peer. The groups list global ranks; c10d names the group of all ranks "0".
    Source: ProcessGroupNCCL.cpp, RECORD_PARAM_COMMS_DATA of each collective; torch/csrc/profiler/util.cpp.
    """
    places = {
        (row["root"], row.get("pg_ranks"), row.get("process_group") == _DEFAULT_GROUP)
        for row in rows
        if row.get("source") == RECORD
        and row.get("root") is not None
        and 0 <= row["root"] < (row.get("group_size") or 0)
        and collective_name(row.get("op") or "") in SYNCHRONISING
    }
    ranks = {_global_rank(*place) for place in places} - {None}
    return ranks.pop() if len(ranks) == 1 else None


def _global_rank(place: int, pg_ranks: str | None, is_of_all: bool) -> int | None:
    listed = (pg_ranks or "").split()
    if place < len(listed):
        return int(listed[place])
    return place if is_of_all and not listed else None
