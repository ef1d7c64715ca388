"""Read calls with durations from a dump, which TORCH_NCCL_ENABLE_TIMING=1 records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ....common.nccl_tests import dtype_name, elements
from ...core.markers import COALESCED
from ...errors import DamagedTrace
from ...recording.plain_content import budget_of, scalar_text, whole_number
from .dump import Dump, GroupName, Taking, dump_content, dump_of

_MS = 1_000_000


class TimedCall(NamedTuple):
    """One call: its time of issue on its rank's clock, and the duration of its kernel."""

    group: GroupName
    kind: str
    seq: int | None
    """Of sends, receives and batches None: their numbers say nothing about other ranks."""
    issued_ns: int
    dur_ns: int
    dtype: str | None
    in_elems: int | None
    out_elems: int | None


class TimedDump(NamedTuple):
    """A dump, and its calls that have a duration."""

    dump: Dump
    calls: list[TimedCall]


def read_timed(path: Path, limit_bytes: int | None = None) -> TimedDump:
    """Read one file. Raises TraceError; TooLarge if it needs more memory than `limit_bytes`."""
    budget = budget_of(path, limit_bytes)
    content = dump_content(path, budget)
    try:
        dump = dump_of(content, str(path), budget)
        entries = [entry for entry in content.get("entries") or [] if entry.get("duration_ms") is not None]
        taking = Taking(f"{path}: what it holds", budget)
        return TimedDump(dump, [_call(entry, dump, taking) for entry in entries])
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as err:
        what = f"{type(err).__name__}: {err}"
        raise DamagedTrace(f"{path}: an entry is not as torch writes it ({what[:200]}); dump it again") from err


def _call(entry: dict[str, Any], dump: Dump, taking: Taking) -> TimedCall:
    name = entry["profiling_name"]
    kind = dump.kinds[name]
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or [None]
    alone = bool(entry.get("is_p2p")) or name == COALESCED
    return TimedCall(
        group=dump.numbers[entry["pg_id"]],
        kind=kind,
        seq=None if alone else whole_number(entry["collective_seq_id"]),
        issued_ns=whole_number(entry["time_created_ns"]),
        dur_ns=whole_number(round(float(entry["duration_ms"]) * _MS)),
        dtype=None if dtypes[0] is None else dtype_name(scalar_text(dtypes[0])),
        in_elems=elements(taking.shapes(entry.get("input_sizes"))),
        out_elems=elements(taking.shapes(entry.get("output_sizes"))),
    )
