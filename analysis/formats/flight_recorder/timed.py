"""The calls of a dump that say how long they took, as TORCH_NCCL_ENABLE_TIMING=1 lets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ...core.markers import COALESCED
from ...core.nccl_tests import dtype_name, elements
from ...errors import DamagedTrace
from .dump import Dump, GroupName, dump_content, dump_of

_MS = 1_000_000


class TimedCall(NamedTuple):
    """One call: when it was issued, by its rank's clock, and how long its kernel took."""

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
    """A dump, and those of its calls that have a duration."""

    dump: Dump
    calls: list[TimedCall]


def read_timed(path: Path) -> TimedDump:
    """What one file holds. Raises TraceError."""
    content = dump_content(path)
    try:
        dump = dump_of(content)
        entries = [entry for entry in content.get("entries") or [] if entry.get("duration_ms") is not None]
        return TimedDump(dump, [_call(entry, dump) for entry in entries])
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as err:
        what = f"{type(err).__name__}: {err}"
        raise DamagedTrace(f"{path}: an entry is not as torch writes it ({what[:200]}); dump it again") from err


def _call(entry: dict[str, Any], dump: Dump) -> TimedCall:
    name = entry["profiling_name"]
    kind = dump.kinds[name]
    given, got = entry.get("input_sizes") or [], entry.get("output_sizes") or []
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or [None]
    alone = bool(entry.get("is_p2p")) or name == COALESCED
    return TimedCall(
        group=dump.numbers[entry["pg_id"]],
        kind=kind,
        seq=None if alone else int(entry["collective_seq_id"]),
        issued_ns=int(entry["time_created_ns"]),
        dur_ns=round(float(entry["duration_ms"]) * _MS),
        dtype=dtype_name(dtypes[0]),
        in_elems=elements(given),
        out_elems=elements(got),
    )
