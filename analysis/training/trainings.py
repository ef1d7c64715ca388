"""Compare trainings after the same number of epochs: accuracy lost and time gained by a large batch.

Definitions: docs/metrics/training.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import pandas as pd

from ...common.wording import counted
from ..core.schema import Row, records
from ..core.tables.training import TRAINING

# Most reports compare after the fifth epoch.
_AFTER_EPOCHS = 5
_SCORES = ("train_loss", "train_accuracy_frac", "test_loss", "test_accuracy_frac")
_COPIED = (
    "training", "run", "model", "data", "parallel", "workers", "optimizer", "lr_scaling", "batch_size_per_worker",
    "global_batch_size", "planned_epochs",
)  # fmt: skip


def training(epochs: pd.DataFrame, *, baseline: int | None = None, after_epochs: int | None = None) -> pd.DataFrame:
    """One row per training: results after `after_epochs`, beside those of the training numbered `baseline`.

    Left out, the baseline is that with the smallest global batch, of these that with fewest workers; and they are
    compared after 5 epochs, or as many as the baseline finished, if these are fewer.
    """
    by_number = {number: list(rows) for number, rows in groupby(records(epochs), key=lambda row: row["training"])}
    if not by_number:
        return TRAINING.empty()
    base = by_number[_smallest(by_number) if baseline is None else baseline]
    after = min(_AFTER_EPOCHS, len(base)) if after_epochs is None else after_epochs
    rows_of_trainings = [_alone(rows, after) for rows in by_number.values()]
    base_row = next(row for row in rows_of_trainings if row["training"] == base[0]["training"])
    samples = {number: rows[0]["dataset_samples"] for number, rows in by_number.items()}
    return TRAINING.frame(_compared(row, base_row, samples) for row in rows_of_trainings)


def _smallest(by_number: Mapping[int, Sequence[Row]]) -> int:
    return min(by_number, key=lambda n: (by_number[n][0]["global_batch_size"], by_number[n][0]["workers"], n))


def _alone(rows: Sequence[Row], after: int) -> Row:
    """Columns of a training that need no other; `notes` is a list."""
    first, notes = rows[0], list[str]()
    row: Row = {name: first[name] for name in _COPIED}
    row |= {"finished_epochs": len(rows), "after_epochs": after, "notes": notes}
    if after <= len(rows):
        chosen = rows[after - 1]
        row |= {name: chosen[name] for name in ("lr", *_SCORES)}
        notes += _score_notes(chosen)
        if len(rows) < first["planned_epochs"]:
            notes.append(f"after {len(rows)} of its {counted(first['planned_epochs'], 'epoch')}")
    else:
        notes.append(f"no epoch {after}: it has {len(rows)} of its {counted(first['planned_epochs'], 'epoch')}")
    largest = max(each["global_batch_size"] for each in rows[:after])
    if largest != first["global_batch_size"]:
        notes.append(f"its global batch grows to {largest:,}")
    return row | _times(rows, notes)


def _score_notes(epoch: Row) -> list[str]:
    lost = [name for name in ("train_loss", "test_loss") if epoch[name] is None]
    return (
        [f"{' and '.join(lost)} {'are' if len(lost) > 1 else 'is'} not finite: the training diverged"] if lost else []
    )


def _times(rows: Sequence[Row], notes: list[str]) -> Row:
    """Columns of time; remarks are added to `notes`."""
    later = rows[1:] or rows
    if len(rows) == 1:
        notes.append("its time is that of the first epoch, which warms up")
    if any(row["steps"] < row["epoch_steps"] for row in later):
        notes.append(
            f"trained {later[-1]['steps']:,} of {later[-1]['epoch_steps']:,} steps per epoch, its time is scaled to a "
            "whole epoch"
        )
    return {
        "epoch_ns": _median([_whole(row, "step_ns") for row in later]),
        "data_ns": _median([_whole(row, "data_ns") for row in later]),
    }


def _median(values: Sequence[int]) -> int:
    """The median, rounded down."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def _whole(row: Row, name: str) -> int:
    """Scale a time over `steps` to the steps of a whole epoch, in ns."""
    return int((row[name] * row["epoch_steps"] + row["steps"] // 2) // row["steps"])


def _compared(row: Row, base: Row, samples: Mapping[int, int]) -> Row:
    """The row beside its baseline. `samples` are those of a whole epoch, by training."""
    notes = list(row["notes"])
    result = row | {"baseline": base["run"]}
    unlike = [f"{name} {base[name]}" for name in ("model", "data") if row[name] != base[name]]
    ours, theirs = samples[row["training"]], samples[base["training"]]
    if unlike:
        notes.append(f"not compared: the baseline has {' and '.join(unlike)}")
        return result | {"note": _joined(notes)}
    if "test_loss" in row and "test_loss" not in base:
        notes.append(f"no difference: the baseline has {counted(base['finished_epochs'], 'epoch')}")
    result["test_loss_difference"] = _difference(row, base, "test_loss")
    result["test_accuracy_difference_frac"] = _difference(row, base, "test_accuracy_frac")
    if ours == theirs:
        result["speedup_over_baseline"] = base["epoch_ns"] / row["epoch_ns"]
    else:
        notes.append(f"no speedup: its epoch has {ours:,} images, that of the baseline {theirs:,}")
    return result | {"note": _joined(notes)}


def _joined(notes: Sequence[str]) -> str | None:
    return "; ".join(notes) or None


def _difference(row: Row, base: Row, name: str) -> float | None:
    ours, theirs = row.get(name), base.get(name)
    return None if ours is None or theirs is None else float(ours - theirs)


def training_verdict(table: pd.DataFrame) -> str:
    """A sentence on the most accurate training on test images, and its lead over the baseline."""
    scored = [row for row in records(table) if row["test_accuracy_frac"] is not None]
    best = max(scored, key=lambda row: float(row["test_accuracy_frac"]))
    epochs = counted(best["after_epochs"], "epoch")
    said = f"{best['run']} is the most accurate after {epochs}: {best['test_accuracy_frac']:.1%}"
    more = best["test_accuracy_difference_frac"]
    return f"{said}, {100 * more:.1f} points more than the baseline" if more else said
