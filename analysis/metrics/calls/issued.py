"""Calls that CPUs issued, with or without a kernel: their place in the step and group, and batches.

A trace has a record_param_comms for each collective, send or receive that a CPU hands to NCCL. Their order is the same
on all ranks of a process group. So a call's place in that order says which collective it is, without any clock; and a
record without a kernel is a call whose kernel was lost, or never ran.

`batch_isend_irecv` and other coalesced calls run as one kernel, launched under the annotation `nccl:coalesced`. The
records before it on that thread are its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT
from ...core import markers
from ...core.schema import Row
from ...core.steps import NO_STEP, steps_at


def coalesced_parts(records: Iterable[Row], annotations: Sequence[Row], launches: pd.DataFrame) -> dict[int, list[Row]]:
    """The records of each launch under `nccl:coalesced`, by the id() of the annotation.

    These are the records before it on its thread that have no annotation of their own, as sends and receives. A
    collective has one, `nccl:<op>`, before the next record. Either is a part if nothing was launched there, and nothing
    since: within a group of NCCL nothing is. `launches` are all calls of the rank that launched something.
    """
    if not any(a["name"] == markers.COALESCED for a in annotations):
        return {}
    launched_ns = {thread: np.sort(of["start_ns"].to_numpy()) for thread, of in launches.groupby("thread")}
    parts: dict[int, list[Row]] = {}
    waiting: dict[int, _Waiting] = {}
    events = [(r["start_ns"], 0, r) for r in records] + [(a["start_ns"], 1, a) for a in annotations]
    for _, is_annotation, row in sorted(events, key=itemgetter(0, 1)):
        before = waiting.setdefault(row["thread"], _Waiting([], []))
        launched = launched_ns.get(row["thread"], _NOTHING)
        if not is_annotation:
            before.plain.append(row)
        elif row["name"] == markers.COALESCED:
            earlier = launched[: np.searchsorted(launched, row["start_ns"])]
            last_ns = earlier[-1] if len(earlier) else -1
            plain = [record for record in before.plain if record["start_ns"] > last_ns]
            parts[id(row)] = plain or before.annotated
            waiting[row["thread"]] = _Waiting([], [])
        elif before.plain:
            record = before.plain.pop()
            span = (row["start_ns"], row["start_ns"] + row["dur_ns"])
            first, end = np.searchsorted(launched, span)
            if end > first:
                before.annotated.clear()
            else:
                before.annotated.append(record)
    return parts


class _Waiting(NamedTuple):
    """Records of a thread that may be parts of the next launch: without an annotation, and with one."""

    plain: list[Row]
    annotated: list[Row]


_NOTHING = np.array([], dtype=np.int64)


def same_collective(parts: Sequence[Row]) -> bool:
    """Whether these parts form one collective: same group and kind, and none is a send or receive."""
    kinds = {(part["collective"], part.get("process_group"), part.get("pg_ranks")) for part in parts}
    return len(kinds) == 1 and parts[0]["collective"] not in POINT_TO_POINT


def together(parts: Sequence[Row]) -> Row:
    """Merge the parts of one collective into one row; elements and sizes are added if all are known."""
    first = parts[0]
    dtypes = {part.get("dtype") for part in parts}
    sums = {key: _sum([part.get(key) for part in parts]) for key in ("in_elems", "out_elems", "size_bytes")}
    if len(dtypes) > 1:
        return first | {"dtype": None, "in_elems": None, "out_elems": None, "size_bytes": sums["size_bytes"]}
    return first | sums


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def set_steps(rows: Sequence[Row], marks: Iterable[tuple[str, int, int]]) -> None:
    """Set the `step` of each row by its `issue_ns`; `marks` are the annotations of steps, as `steps_at` takes them."""
    times = [row["issue_ns"] for row in rows]
    if not times:
        return
    for row, step in zip(rows, steps_at(np.array(times, dtype=np.int64), marks), strict=True):
        row["step"] = None if step == NO_STEP else int(step)


def number_calls(rows: Iterable[Row]) -> None:
    """Set the `turn` of each row: its place among the calls of its group and peer in its step.

    Rows without a step, or a time of issue, get none.
    """
    counts: dict[tuple[Any, ...], int] = {}
    timed = [row for row in rows if row.get("issue_ns") is not None and row.get("step") is not None]
    for row in sorted(timed, key=lambda r: (r.get("issued_ns", r["issue_ns"]), r["issue_ns"])):
        key = _numbering_key(row)
        row["turn"] = counts[key] = counts.get(key, -1) + 1


def _numbering_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Key of the calls that are numbered together: process group and step; the peer too, if it is a send or receive."""
    pair = (row["collective"], row.get("root")) if row.get("collective") in ("send", "recv") else ()
    return (row["step"], row.get("process_group"), row.get("pg_ranks"), *pair)
