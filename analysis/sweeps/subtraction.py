"""Communication as a difference of epoch times, beside what traces of the same cells measured.

Definitions: docs/metrics/subtraction.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from ...common.nccl_tests import bus_factor
from ...contract.modes import MODES
from ..core.schema import Row, records
from ..core.tables.sweeps import MEASURED, MISTAKES, SUBTRACTION
from .by_hand import KNOWN_MISTAKES, Estimate, Facts, Unknown
from .scaling import Cells, baseline, by_key, joined, reading_notes, work

_SUMMED = (
    "window_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns",
    "exposed_unsplit_ns",
)  # fmt: skip


@dataclass(frozen=True)
class _Subtracted:
    """The result of subtraction for a cell; `notes` explain each None."""

    baseline: str | None
    compute_ns: int | None
    comm_ns: int | None
    estimate: Estimate | None
    notes: tuple[str, ...]


def subtraction(timings: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One row per cell with more than one worker. `measured` has the cells with traces, and may be empty."""
    rows = records(timings)
    cells = by_key(rows)
    measured_of = {row["cell"]: row for row in records(measured)}
    return SUBTRACTION.frame(_row(row, cells, measured_of.get(row["cell"])) for row in rows if row["workers"] > 1)


def mistakes(timings: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """One row per cell with more than one worker and per mistake: bandwidth with and without it."""
    rows = records(timings)
    cells = by_key(rows)
    return MISTAKES.frame(_mistaken(row, cells, name) for row in rows if row["workers"] > 1 for name in names)


def measured_epoch(cell: Row, breakdown_steps: pd.DataFrame, collectives: pd.DataFrame) -> Row:
    """A row of MEASURED: the traced steps of the cell, scaled to a whole epoch."""
    steps = breakdown_steps["step"].nunique()
    row: Row = {"cell": cell["cell"], "traced_steps": steps, "busbw_gb_per_s": _bus_bandwidth(collectives)}
    notes = []
    if not steps:
        notes.append("no step in its traces")
    elif cell["epoch_steps"] is None:
        notes.append("the steps of an epoch are not known")
    else:
        row |= {name: _per_epoch(breakdown_steps[name], cell["epoch_steps"]) for name in _SUMMED}
        if row["exposed_wait_ns"] is None:
            notes.append("its communication could not be split into wait and transfer")
    if row["busbw_gb_per_s"] is None:
        notes.append("no all_reduce in its traces that could be measured on all ranks")
    return row | {"note": joined(notes)}


def measured_table(rows: Iterable[Row]) -> pd.DataFrame:
    """The table of these rows."""
    return MEASURED.frame(rows)


def _per_epoch(values: pd.Series[int], epoch_steps: int) -> int | None:
    """Mean over ranks, devices and steps, times the steps of an epoch; None if any is NA."""
    if values.isna().any():
        return None
    count = len(values)
    return (int(values.sum()) * epoch_steps + count // 2) // count


def _bus_bandwidth(collectives: pd.DataFrame) -> float | None:
    """Sum of bytes x bus factor over sum of transfer times of all all_reduces, in GB/s; None without any."""
    all_reduces = collectives[(collectives["collective"] == "all_reduce") & collectives["busbw_gb_per_s"].notna()]
    if not len(all_reduces):
        return None
    moved = (all_reduces["busbw_gb_per_s"] * all_reduces["transfer_ns"]).sum()
    return float(moved / all_reduces["transfer_ns"].sum())


def _row(cell: Row, cells: Cells, measured: Row | None) -> Row:
    known = _subtracted(cell, cells)
    traces = {name: (measured or {}).get(name) for name in MEASURED.columns if name != "cell"}
    notes = [*known.notes, traces.pop("note")]
    if cell["status"] == "done" and measured is None:
        notes.append("no traces")
    return {
        **{name: cell.get(name) for name in SUBTRACTION.columns},
        **traces,
        "baseline": known.baseline,
        "subtracted_compute_ns": known.compute_ns,
        "subtracted_comm_ns": known.comm_ns,
        "not_compute_ns": _minus(cell["epoch_ns"], traces["compute_ns"]),
        "loader_ns": cell["data_ns"],
        "difference_ns": _minus(known.comm_ns, traces["exposed_comm_ns"]),
        "message_bytes": _message_bytes(cell),
        "subtracted_busbw_gb_per_s": _positive(known),
        "note": joined(notes),
    }


def _subtracted(cell: Row, cells: Cells) -> _Subtracted:
    notes = reading_notes(cell)
    if cell["epoch_ns"] is None:
        return _Subtracted(None, None, None, None, tuple(notes))
    base, why_not = baseline(cell, cells)
    if base is None:
        return _Subtracted(None, None, None, None, (*notes, str(why_not)))
    if work(cell, base) not in ("shared", None):
        notes.append(f"the workers do not share the epoch of {base['run']}, so T1 / N is not their compute")
        return _Subtracted(base["run"], None, None, None, tuple(notes))
    compute_ns = (base["epoch_ns"] + cell["workers"] // 2) // cell["workers"]
    comm_ns = cell["epoch_ns"] - compute_ns
    estimate, reason = _estimate(cell, comm_ns)
    return _Subtracted(base["run"], compute_ns, comm_ns, estimate, tuple([*notes, reason] if reason else notes))


def _estimate(cell: Row, comm_ns: int) -> tuple[Estimate | None, str | None]:
    """The bandwidth by hand, or why there is none."""
    size = _message_bytes(cell)
    if not MODES[cell["parallel"]].reduces_whole:
        return None, f"bandwidth by subtraction: {cell['parallel']} does not reduce whole gradients in every step"
    if size is None:
        return None, "bandwidth by subtraction: the parameters of the model are not known"
    if cell["epoch_steps"] is None:
        return None, "bandwidth by subtraction: the steps of an epoch are not known (dataset_samples)"
    estimate = Estimate(size, bus_factor("all_reduce", cell["workers"]), cell["epoch_steps"], comm_ns)
    return estimate, None if comm_ns > 0 else "subtraction leaves no time for communication, so no bandwidth"


def _message_bytes(cell: Row) -> int | None:
    return cell["parameters_bytes"] if MODES[cell["parallel"]].reduces_whole else None


def _positive(known: _Subtracted) -> float | None:
    return known.estimate.gb_per_s if known.estimate is not None and known.estimate.time_ns > 0 else None


def _minus(value: int | None, other: int | None) -> int | None:
    return None if value is None or other is None else value - other


def _mistaken(cell: Row, cells: Cells, name: str) -> Row:
    known, mistake = _subtracted(cell, cells), KNOWN_MISTAKES[name]
    row: Row = {
        **{column: cell.get(column) for column in MISTAKES.columns},
        "mistake": name,
        "reports": mistake.reports,
        "subtracted_comm_ns": known.comm_ns,
        "subtracted_busbw_gb_per_s": _positive(known),
    }
    if known.estimate is None:
        return row | {"note": joined(known.notes)}
    try:
        made, because = mistake.make(known.estimate, _facts(cell))
    except Unknown as err:
        return row | {"note": joined([*known.notes, str(err)])}
    return row | {
        "mistaken_busbw_gb_per_s": made.gb_per_s if made.time_ns > 0 else None,
        "mistaken_factor": made.over(known.estimate),
        "because": because,
        "note": joined(known.notes),
    }


def _facts(cell: Row) -> Facts:
    elems = cell["parameters_elems"]
    return Facts(
        batch_size_per_worker=cell["batch_size_per_worker"],
        item_bytes=cell["parameters_bytes"] / elems if elems else None,
        dataset_samples=cell["dataset_samples"],
        sample_bytes=cell["sample_bytes"],
        loader_ns=cell["data_ns"],
    )
