"""Epoch time by number of workers: speedups and efficiencies of every cell.

Every figure rests on an assumption of who does which part of the work, and is named for it. Definitions:
docs/metrics/scaling.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from ...common.wording import counted
from ...contract.modes import MODES, ONE_WORKER
from ..core.schema import Row, records
from ..core.tables.sweeps import SCALING

Cells = Mapping[tuple[str, str, int, int], Row]

BELIEVABLE_FRAC = 1.05
"""Efficiencies above this are not due to more workers. Caches that hold a smaller part of the work rarely give more."""

_WORDS = {
    "open": "not run yet",
    "out_of_memory": "out of memory",
    "out_of_data": "out of data",
    "failed": "failed",
    "skipped": "skipped",
    "unreadable": "unreadable",
}


def scaling(timings: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, in order, with its gain over the cell with one worker."""
    rows = records(timings)
    cells = by_key(rows)
    return SCALING.frame(_row(row, cells) for row in rows)


def by_key(rows: Iterable[Row]) -> Cells:
    """Index cells by model, mode, workers and batch size per worker."""
    return {(r["model"], r["parallel"], r["workers"], r["batch_size_per_worker"]): r for r in rows}


def baseline(cell: Row, cells: Cells, batch_size: int | None = None) -> tuple[Row | None, str | None]:
    """The timed one-worker cell to compare with, or why there is none.

    It has the same model and batch size per worker (or `batch_size`), and the same mode, else that of one worker alone.
    """
    size = cell["batch_size_per_worker"] if batch_size is None else batch_size
    modes = dict.fromkeys((cell["parallel"], ONE_WORKER))
    candidates = [cells[key] for mode in modes if (key := (cell["model"], mode, 1, size)) in cells]
    timed = [row for row in candidates if row["epoch_ns"] is not None]
    if timed:
        return timed[0], None
    if candidates:
        return None, f"no baseline: {candidates[0]['run']} is {_WORDS[candidates[0]['status']]}"
    return None, f"no baseline: no cell with 1 worker at batch size {size}"


def work(cell: Row, base: Row) -> str | None:
    """How workers divide an epoch, from its samples: shared, repeated, different, or None if not known."""
    samples, alone = cell["dataset_samples"], base["dataset_samples"]
    if samples is None or alone is None:
        return None
    if samples == alone:
        return "shared"
    return "repeated" if samples == cell["workers"] * alone else "different"


def reading_notes(cell: Row) -> list[str]:
    """Notes on how to read the cell's time."""
    if cell["status"] != "done":
        return [cell["reason"] or _WORDS[cell["status"]]]
    if cell["timed_steps"] is not None and cell["timed_steps"] < cell["epoch_steps"]:
        return [f"timed {cell['timed_steps']:,} of {cell['epoch_steps']:,} steps, scaled to a whole epoch"]
    return []


def doubts(cell: Row, scaled: Row) -> Iterator[str]:
    """Yield reasons to doubt the efficiencies of a cell."""
    cores = cell["shared_cores"]
    if cores is not None and cell["workers"] > 1:
        yield f"its {cell['workers']} workers share the {counted(cores, 'core')} that one worker has for itself"
    if too_fast := _too_fast(scaled):
        yield too_fast


def _too_fast(scaled: Row) -> str | None:
    """Why efficiencies cannot be believed; None where they can."""
    highest = max(scaled.get(name) or 0.0 for name in ("strong_efficiency_frac", "weak_efficiency_frac"))
    if highest <= BELIEVABLE_FRAC:
        return None
    why = "is more than workers can have: the baseline is too slow; time both again, longer"
    return f"an efficiency of {highest:.0%} {why}"


def joined(notes: Iterable[str | None]) -> str | None:
    """Join the distinct notes to one text; None without any."""
    return "; ".join(dict.fromkeys(note for note in notes if note)) or None


def _row(cell: Row, cells: Cells) -> Row:
    notes = reading_notes(cell)
    row = {**{name: cell.get(name) for name in SCALING.columns}}
    if cell["epoch_ns"] is None:
        return row | {"note": joined(notes)}
    if cell["dataset_samples"] is not None:
        row["samples_per_s"] = cell["dataset_samples"] / (cell["epoch_ns"] / 1e9)
    base, why_not = baseline(cell, cells)
    if base is None:
        notes.append(str(why_not))
    else:
        row |= {"baseline": base["run"], "epoch_work": work(cell, base)}
        row |= _against(cell, base, notes)
    row["speedup_same_batch"] = _same_batch(cell, cells, notes)
    return row | {"note": joined([*doubts(cell, row), *notes])}


def _against(cell: Row, base: Row, notes: list[str]) -> Row:
    """Speedups and efficiencies over the baseline; reasons for NA are added to `notes`."""
    shared = work(cell, base)
    if shared == "different":
        notes.append(
            f"its epoch has {cell['dataset_samples']:,} samples, that of {base['run']} {base['dataset_samples']:,}"
        )
        return {}
    workers, ratio = cell["workers"], base["epoch_ns"] / cell["epoch_ns"]
    if shared == "repeated":
        notes.append("each worker does a whole epoch, so there is no strong scaling")
    return {
        "speedup_fixed_work": ratio,
        "speedup_scaled_work": workers * ratio,
        "strong_efficiency_frac": None if shared == "repeated" else ratio / workers,
        "weak_efficiency_frac": _weak_efficiency(cell, base, ratio, notes),
    }


def _weak_efficiency(cell: Row, base: Row, ratio: float, notes: list[str]) -> float | None:
    if cell["epoch_steps"] is None or base["epoch_steps"] is None:
        notes.append("weak efficiency: the steps of an epoch are not known (dataset_samples)")
        return None
    if not _own_batches(cell):
        notes.append("weak efficiency: the workers share each batch")
        return None
    return float(ratio * cell["epoch_steps"] / base["epoch_steps"])


def _same_batch(cell: Row, cells: Cells, notes: list[str]) -> float | None:
    """T1 / TN at the same global batch size; the reason for NA is added to `notes`."""
    own_batches = _own_batches(cell)
    if own_batches is None:
        notes.append("same batch: the steps of an epoch, which tell the global batch size, are not known")
        return None
    size = cell["batch_size_per_worker"] * (cell["workers"] if own_batches else 1)
    base, why_not = baseline(cell, cells, size)
    if base is None:
        notes.append(f"same batch: {str(why_not).removeprefix('no baseline: ')}")
        return None
    if work(cell, base) not in ("shared", None):
        notes.append("same batch: the epochs differ in their samples")
        return None
    return float(base["epoch_ns"] / cell["epoch_ns"])


def _own_batches(cell: Row) -> bool | None:
    """Whether every worker takes its own batch per step, from the steps of an epoch; None if not known.

    The last batch of an epoch may be a part of one, or left out.
    """
    workers, size, samples = cell["workers"], cell["batch_size_per_worker"], cell["dataset_samples"]
    if workers == 1:
        return True
    if cell["epoch_steps"] is None or samples is None:
        return None if MODES[cell["parallel"]].shares_batch else True
    if abs(cell["epoch_steps"] - samples / (workers * size)) < 1:
        return True
    return False if abs(cell["epoch_steps"] - samples / size) < 1 else None


def scaling_verdict(table: pd.DataFrame) -> str:
    """A sentence on the gain over one worker of the comparable cell with the most workers."""
    rows = [row for row in records(table) if row["workers"] > 1 and row["weak_efficiency_frac"] is not None]
    if not rows:
        return "no cell with several workers can be compared with one worker"
    row = max(rows, key=lambda one: one["workers"])
    of = f"{row['model']} {row['parallel']}, {counted(row['workers'], 'worker')}"
    if too_fast := _too_fast(row):
        return f"NA: {of}: {too_fast}"
    if row["strong_efficiency_frac"] is not None:
        gain = f"an epoch is {row['speedup_fixed_work']:.2f} times as fast as with one (T1 / TN: they share its work)"
        return f"{of}: {gain}, a strong efficiency of {row['strong_efficiency_frac']:.0%}"
    return f"{of}: a step has a weak efficiency of {row['weak_efficiency_frac']:.0%} (the work per worker is fixed)"
