"""Sweep directories made in memory, as the sweep of `profiling` writes them: sweep.json, and a run directory per cell.

write_sweep(tmp_path, [Cell(workers=1, epoch_s=10), Cell(workers=2, epoch_s=6, traced=traces_of(2, ...))])
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import Trace

BASE_NS = 1_759_300_074_000_000_000
RESNET18 = {"name": "resnet18", "parameters": 11_173_962, "bytes": 44_695_848, "buffer_bytes": 38_560}


@dataclass(frozen=True)
class Cell:
    """One cell; `epoch_s` is what a whole epoch takes, of all ranks or of each. `steps` bounds the timed epoch."""

    workers: int = 1
    batch: int = 32
    epoch_s: float | Sequence[float] = 10.0
    parallel: str = "ddp"
    model: str = "resnet18"
    status: str = "done"
    reason: str | None = None
    steps: int | None = None
    data_s: float = 0.5
    samples: int = 50_000
    traced: Sequence[Trace] = ()

    @property
    def run(self) -> str:
        return f"{self.model}-{self.parallel}-w{self.workers}-b{self.batch}"

    @property
    def ranks(self) -> int:
        return 1 if self.parallel == "dp" else self.workers

    @property
    def full_steps(self) -> int:
        return math.ceil(self.samples / (self.workers * self.batch))

    def seconds_of(self, rank: int) -> float:
        return self.epoch_s[rank] if isinstance(self.epoch_s, Sequence) else self.epoch_s

    def listed(self) -> dict[str, Any]:
        """Its entry in sweep.json."""
        return {
            "run": self.run, "model": self.model, "parallel": self.parallel, "workers": self.workers,
            "batch_size_per_rank": self.batch, "status": self.status, "reason": self.reason,
        }  # fmt: skip

    def side(self, rank: int) -> dict[str, Any]:
        """What meta.json of a rank says, as far as it concerns timings."""
        steps = self.steps or self.full_steps
        share = steps / self.full_steps
        step_ns, data_ns = round(self.seconds_of(rank) * 1e9 * share), round(self.data_s * 1e9 * share)
        epochs = [
            {
                "epoch": number, "phase": phase, "steps": steps, "samples": min(steps * self.batch, self.samples),
                "start_unix_ns": BASE_NS, "dur_ns": factor * (step_ns + data_ns), "data_ns": factor * data_ns,
                "step_ns": factor * step_ns,
            }
            for number, (phase, factor) in enumerate([("warmup", 3), ("timed", 1)])
        ]  # fmt: skip
        return {
            "schema_version": 1, "rank": rank, "world_size": self.ranks, "host": "node", "worker": f"node_{rank}",
            "batch_size_per_rank": None if self.parallel == "pipeline" else self.batch,
            "model": RESNET18, "complete": True, "reason": None, "epochs": epochs,
            "dataset_samples": self.samples, "full_epoch_steps": self.full_steps,
            "dp": {"devices": [{"index": n} for n in range(self.workers)]} if self.parallel == "dp" else None,
        }  # fmt: skip

    def write(self, folder: Path) -> Path:
        """The run directory."""
        run_dir = folder / self.run
        config = {
            "model": self.model, "parallel": self.parallel, "batch_size": self.batch, "image_size": 32,
            "steps_per_epoch": self.steps,
        }  # fmt: skip
        run = {"schema_version": 1, "run": self.run, "config": config, "world_size": self.ranks}
        write_json(run_dir / "run.json", run)
        for rank in range(self.ranks):
            write_json(run_dir / f"node_{rank}.meta.json", self.side(rank))
        for trace in self.traced:
            trace.write(run_dir)
        return run_dir


def write_sweep(folder: Path, cells: Sequence[Cell]) -> Path:
    """The sweep directory: sweep.json with all cells, and the run directories of those that are done."""
    listed = [cell.listed() for cell in cells]
    content = {"schema_version": 1, "sweep": folder.name, "created_utc": "2026-01-01T00:00:00+00:00",
               "command": ["commtrace", "sweep"], "config": {}, "cells": listed}  # fmt: skip
    write_json(folder / "sweep.json", content)
    for cell in cells:
        if cell.status == "done":
            cell.write(folder)
    return folder


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def edited(path: Path, **changes: Any) -> Path:
    """A JSON file with other values; None takes a key away."""
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    return write_json(path, {key: value for key, value in content.items() if value is not None})
