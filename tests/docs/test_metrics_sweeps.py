"""The worked examples of the pages on sweeps and trainings."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pytest
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.core.tables import communication as schema
from commtrace.analysis.sweeps.cells import RankEpoch, whole_epoch
from commtrace.analysis.sweeps.scaling import scaling
from commtrace.analysis.sweeps.subtraction import measured_epoch, measured_table, mistakes, subtraction
from commtrace.analysis.training.trainings import training

EXAMPLES = examples("scaling", "subtraction", "training")


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, across_runs)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, across_runs)


def across_runs(given: Given) -> Epochs | Across | Trained:
    """What the given epochs of ranks, cells of a sweep, or epochs of trainings come to."""
    if "epochs" in given:
        return Epochs(schema.TIMINGS.frame([_cell(0, whole_epoch([RankEpoch(**row) for row in given["epochs"]]))]))
    if "timings" in given:
        return _across(given)
    return Trained(schema.TRAINING_EPOCHS.frame(map(_trained, given["training_epochs"])))


@dataclass(frozen=True)
class Epochs:
    """What the timed epochs of one cell's ranks come to."""

    timings: pd.DataFrame


@dataclass(frozen=True)
class Across:
    """The tables across runs, of cells that are given instead of read."""

    timings: pd.DataFrame
    measured: pd.DataFrame

    @property
    def scaling(self) -> pd.DataFrame:
        return scaling(self.timings)

    @property
    def subtraction(self) -> pd.DataFrame:
        return subtraction(self.timings, self.measured)

    def mistakes(self, names: list[str]) -> pd.DataFrame:
        return mistakes(self.timings, names)


@dataclass(frozen=True)
class Trained:
    """The table of trainings, of epochs that are given instead of read."""

    epochs: pd.DataFrame

    @property
    def training(self) -> pd.DataFrame:
        return training(self.epochs)


def _across(given: Given) -> Across:
    """The tables of these cells; steps and collectives are those of the first with several workers."""
    timings = schema.TIMINGS.frame(_cell(number, row) for number, row in enumerate(given["timings"]))
    if "breakdown_steps" not in given:
        return Across(timings, measured_table([]))
    steps = pd.DataFrame(given["breakdown_steps"])
    collectives = pd.DataFrame(given["collectives"]).astype({"busbw_gb_per_s": "Float64"})
    cell = next(row for row in records(timings) if row["workers"] > 1)
    return Across(timings, measured_table([measured_epoch(cell, steps, collectives)]))


def _cell(number: int, row: Row) -> Row:
    plain = {"model": "resnet18", "parallel": "ddp", "workers": 1, "batch_size_per_worker": 32, "status": "done"}
    cell = plain | row
    steps = None
    if cell.get("dataset_samples"):
        steps = -(-cell["dataset_samples"] // (cell["workers"] * cell["batch_size_per_worker"]))
    timed = cell.get("timed_steps") or steps
    name = f"w{cell['workers']}-b{cell['batch_size_per_worker']}"
    return {"cell": number, "run": name, "epoch_steps": steps, **cell, "timed_steps": timed}


def _trained(row: Row) -> Row:
    plain = {"model": "resnet18", "data": "cifar10", "parallel": "ddp", "optimizer": "sgd", "lr_scaling": "none",
             "planned_epochs": 5, "phase": "timed", "batch_size_per_worker": 32, "train_samples": 6400,
             "test_samples": 100, "dataset_samples": 6400, "lr": 0.1, "train_loss": 1.0, "test_loss": 1.0,
             "train_accuracy_frac": 0.5, "test_accuracy_frac": 0.5, "steps": 10, "epoch_steps": 10, "step_ns": 1,
             "data_ns": 0}  # fmt: skip
    found = plain | {name: float(v) if isinstance(v, str) else v for name, v in row.items()}
    workers, batch = found["workers"], found["batch_size_per_worker"]
    return {"run": f"w{workers}-b{batch}", "global_batch_size": workers * batch, **found}
