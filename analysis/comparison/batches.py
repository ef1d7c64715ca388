"""Memory of runs with different batches, and the largest batch that would fit. Model: `metrics/memory/batches`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..core.schema import Row, records
from ..errors import NothingMeasured
from ..metrics.memory.batches import BatchFit, BatchPeak, largest_batch
from ..metrics.memory.table import SINCE_CAPTURE
from ..tables.memory import BATCH_MEMORY

if TYPE_CHECKING:
    import pandas as pd

_NO_OUTSIDE = "what is used outside of torch is not known: capture with --memory, or give --limit"


class RunMemory(Protocol):
    """What has the tables of memory: an `Analysis`, or a `SnapshotAnalysis`."""

    def table(self, name: str, /) -> pd.DataFrame:
        """The table of this name."""


@dataclass(frozen=True)
class BatchFits:
    """The largest batch that each device has memory for."""

    batch_memory: pd.DataFrame


def fit_batches(*runs: RunMemory, batches: Sequence[int], limit_bytes: int | None = None) -> BatchFits:
    """Find the largest batch that fits each device, in samples per rank, from runs with these `batches`.

    torch's allocator may take `limit_bytes`; if not given, what the device has without what is used outside of torch.
    Raises ValueError unless there is a batch for each run, NothingMeasured if no device has allocations in each.
    """
    if len(runs) != len(batches):
        raise ValueError(f"{len(batches)} batches for {len(runs)} runs, expected one for each")
    of_runs = [_devices(run, batch) for run, batch in zip(runs, batches, strict=True)]
    keys = [key for key in of_runs[0] if all(key in one for one in of_runs)] if of_runs else []
    if not keys:
        raise NothingMeasured("no device has allocations with totals in each run; capture with profile_memory=True")
    return BatchFits(BATCH_MEMORY.frame(_row(key, [one[key] for one in of_runs], limit_bytes) for key in keys))


_Device = tuple[Row, BatchPeak]


def _devices(run: RunMemory, batch: int) -> dict[tuple[int, str], _Device]:
    """The row of `memory` of each GPU, or of CPUs where there are none, with its peaks; not without totals."""
    rows = [row for row in records(run.table("memory")) if row["peak_reserved_bytes"] is not None]
    rows = [row for row in rows if row["device"] != "cpu"] or rows
    steps = records(run.table("memory_steps"))
    found = {}
    for row in rows:
        key = row["rank"], row["device"]
        own = [step["peak_allocated_bytes"] for step in steps if (step["rank"], step["device"]) == key]
        least, most = min(own[1:], default=row["peak_allocated_bytes"]), row["peak_allocated_bytes"]
        found[key] = row, BatchPeak(batch, least, most, max(most, row["peak_reserved_bytes"]))
    return found


def _row(key: tuple[int, str], devices: Sequence[_Device], limit_bytes: int | None) -> Row:
    rank, device = key
    peaks = [peak for _, peak in devices]
    limit, why = _limit([row for row, _ in devices], limit_bytes)
    fit: BatchFit = largest_batch(peaks, limit)
    return {
        "rank": rank,
        "device": device,
        "batches": ", ".join(f"{one.batch:,}" for one in sorted(peaks)),
        "fixed_bytes": None if fit.line is None else round(fit.line.fixed_bytes),
        "per_sample_bytes": None if fit.line is None else round(fit.line.per_sample_bytes),
        "limit_bytes": limit,
        "low_samples": None if why else fit.low,
        "high_samples": fit.high,
        "note": "; ".join(filter(None, (fit.note, why))) or None,
    }


def _limit(rows: Sequence[Row], given: int | None) -> tuple[int | None, str | None]:
    """What the allocator may take, and why a batch that seems to fit may not."""
    since_capture = SINCE_CAPTURE if rows[0]["device"] == "cpu" else None
    if given is not None:
        return given, since_capture
    whole = min((row["device_bytes"] for row in rows if row["device_bytes"] is not None), default=None)
    outside = max((row["outside_bytes"] for row in rows if row["outside_bytes"] is not None), default=None)
    if whole is None:
        return None, since_capture
    return whole - (outside or 0), since_capture or (_NO_OUTSIDE if outside is None else None)
