"""Run directories of trainings made in memory, as `train --epochs` writes them: run.json and training.json.

write_training(tmp_path / "small", Trained(scores=[(1.2, 0.56), (0.9, 0.7)]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep_builders import write_json


@dataclass(frozen=True)
class Trained:
    """One training; `scores` are loss and accuracy on the test images after every epoch, a loss of None diverged.

    `steps` bounds every epoch. `grows` holds the batch size of later epochs, by epoch.
    """

    workers: int = 1
    batch: int = 32
    scores: Sequence[tuple[float | None, float]] = ((1.0, 0.5),)
    planned: int = 5
    epoch_s: float = 10.0
    samples: int = 50_000
    steps: int | None = None
    grows: tuple[tuple[int, int], ...] = ()
    model: str = "resnet18"
    data: str = "cifar10"
    parallel: str = "ddp"
    optimizer: str = "sgd"

    def content(self) -> dict[str, Any]:
        """training.json."""
        return {
            "schema_version": 1, "planned_epochs": self.planned, "dataset_samples": self.samples,
            "workers": self.workers, "optimizer": self.optimizer, "lr_scaling": "none", "lr_reference_batch": 256,
            "base_lr": 0.1, "full_lr": 0.1, "warmup_steps": 0,
            "epochs": [self.epoch(number, *score) for number, score in enumerate(self.scores)],
        }  # fmt: skip

    def epoch(self, number: int, loss: float | None, accuracy: float) -> dict[str, Any]:
        batch = next((size for begin, size in reversed(self.grows) if begin <= number), self.batch)
        full = math.ceil(self.samples / (self.workers * batch))
        steps = self.steps or full
        step_ns = round(self.epoch_s * 1e9 * steps / full) * (3 if number == 0 else 1)
        return {
            "epoch": number, "phase": "timed", "batch_size": batch, "global_batch_size": self.workers * batch,
            "steps": steps, "full_steps": full, "first_lr": 0.1, "last_lr": 0.1,
            "train": {"loss": loss, "accuracy": accuracy / 2, "samples": steps * self.workers * batch},
            "test": {"loss": loss, "accuracy": accuracy, "samples": 10_000},
            "dur_ns": step_ns + 500, "data_ns": 500, "step_ns": step_ns,
        }  # fmt: skip


def write_training(run_dir: Path, training: Trained) -> Path:
    """The run directory."""
    config = {"model": training.model, "parallel": training.parallel, "data": training.data}
    write_json(run_dir / "run.json", {"schema_version": 1, "run": run_dir.name, "config": config, "world_size": 1})
    write_json(run_dir / "training.json", training.content())
    return run_dir
