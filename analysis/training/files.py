"""Read run directories of `train --epochs`: one row per training and epoch.

training.json has the epochs that were finished, run.json the options.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import pandas as pd

from ...contract.reading import OtherVersion, typed
from ...contract.run import RUN_FILE, TrainedRun
from ...contract.training import TRAINING_FILE, TrainedEpoch, TrainingFile
from ..core.escaping import encodable
from ..core.schema import Row
from ..core.small_files import NotJson, read_json
from ..core.tables.training import TRAINING_EPOCHS
from ..errors import AnalysisError, DamagedTraining, NoTraining, UnreadableFile


@dataclass(frozen=True)
class Trainings:
    """Epochs of one or more trainings: TRAINING_EPOCHS. `failed` lists what could not be used."""

    epochs: pd.DataFrame
    failed: tuple[str, ...] = ()


def load_trainings(paths: Sequence[Path], *, keep_going: bool = False) -> Trainings:
    """Load the trainings at `paths`: run directories, or folders of them; each training once.

    With `keep_going`, what cannot be read is named in `failed`. Raises UnreadableFile, DamagedTraining, NoTraining.
    """
    failed: list[str] = []
    rows_of: dict[Path, list[Row]] = {}
    for path in paths:
        try:
            for folder in _folders(path):
                _add(rows_of, folder, failed if keep_going else None)
        except AnalysisError as err:
            if not keep_going:
                raise
            failed.append(str(err))
    if not rows_of:
        raise NoTraining(f"{paths[0]}: no training could be used: " + "; ".join(failed))
    names = Counter(rows[0]["run"] for rows in rows_of.values())
    rows = [
        {**row, "training": number, "run": row["run"] if names[row["run"]] == 1 else encodable(str(folder))}
        for number, (folder, rows_of_run) in enumerate(rows_of.items())
        for row in rows_of_run
    ]
    return Trainings(TRAINING_EPOCHS.frame(rows), tuple(failed))


def _add(rows_of: dict[Path, list[Row]], folder: Path, failed: list[str] | None) -> None:
    """Read one run directory into `rows_of`; a failure is added to `failed`, or raised if it is None."""
    key = folder.resolve()
    if key in rows_of:
        return
    try:
        rows_of[key] = _rows(folder)
    except AnalysisError as err:
        if failed is None:
            raise
        failed.append(str(err))


def _folders(path: Path) -> list[Path]:
    """The run directories at `path`: itself, or those in it with a training. Raises UnreadableFile, NoTraining."""
    if path.name == TRAINING_FILE:
        return [path.parent]
    try:
        if not path.exists():
            raise NoTraining(f"{path}: no such file or directory; expected a run directory of `train --epochs`")
        if not path.is_dir():
            raise NoTraining(f"{path}: is a file; expected a run directory of `train --epochs`")
        if (path / TRAINING_FILE).exists() or (path / RUN_FILE).exists():
            return [path]
        inner = sorted(each.parent for each in path.glob(f"*/{TRAINING_FILE}"))
    except OSError as err:  # a folder on the way may not be entered, or the name is too long
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    if not inner:
        raise NoTraining(
            f"{path}: holds no training; expected {TRAINING_FILE} in it or in its folders, as "
            "`commtrace train --epochs 5` writes it"
        )
    return inner


def _rows(folder: Path) -> list[Row]:
    """The epochs of one training. Raises UnreadableFile, DamagedTraining, NoTraining."""
    path = folder / TRAINING_FILE
    content, config = _read(path, TrainingFile), _read(folder / RUN_FILE, TrainedRun).config
    numbers = [epoch.epoch for epoch in content.epochs]
    if numbers != list(range(len(numbers))) or len(numbers) > content.planned_epochs:
        raise DamagedTraining(
            f"{path}: expected epochs from 0, each once, and {content.planned_epochs} at most; found "
            f"{', '.join(map(str, numbers[:9]))}; copy it again, or train again"
        )
    same = {
        "run": encodable(folder.resolve().name),
        "model": config.model,
        "data": config.data,
        "parallel": config.parallel,
        "workers": content.workers,
        "optimizer": content.optimizer,
        "lr_scaling": content.lr_scaling,
        "planned_epochs": content.planned_epochs,
        "dataset_samples": content.dataset_samples,
    }
    return [same | _epoch_row(epoch) for epoch in content.epochs]


def _epoch_row(epoch: TrainedEpoch) -> Row:
    return {
        "after_epochs": epoch.epoch + 1,
        "phase": epoch.phase,
        "batch_size_per_worker": epoch.batch_size,
        "global_batch_size": epoch.global_batch_size,
        "lr": epoch.last_lr,
        "train_loss": epoch.train.loss,
        "train_accuracy_frac": epoch.train.accuracy,
        "train_samples": epoch.train.samples,
        "test_loss": epoch.test.loss,
        "test_accuracy_frac": epoch.test.accuracy,
        "test_samples": epoch.test.samples,
        "steps": epoch.steps,
        "epoch_steps": epoch.full_steps,
        "step_ns": epoch.step_ns,
        "data_ns": epoch.data_ns,
    }


_File = TypeVar("_File")


def _read(path: Path, kind: type[_File]) -> _File:
    try:
        return typed(read_json(path), kind)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise NoTraining(
            f"{path}: is not there; expected a run directory of `train --epochs`, which has it once the first epoch is "
            "tested"
        ) from err
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except OtherVersion as err:
        raise DamagedTraining(f"{path}: {err}") from err
    except (NotJson, msgspec.ValidationError) as err:
        raise DamagedTraining(f"{path}: is not as a training writes it: {err}; copy it again, or train again") from err
