"""What run.json and <host>_<rank>.meta.json say.

Readers depend on these names. To what `rank_facts` holds from beginning to end, a session adds what changes: `complete`
and `reason`, `steps` (one entry per step, profiled or not, in ns; `step_clock` says by which clock), `traces`,
`process_groups`, the facts of every mode in `modes.FACTS` (None but for the model's own), the `profiler`'s options, and
`clock_probe`: how far this rank's clock was ahead of rank 0's at the start and at the end, in ns, or why that is not
known in `clock_probe_reason`. `train` adds `dataset_samples`, `full_epoch_steps` (of this rank, in the whole data set,
at the batch size of the last epoch) and `epochs` (`timed_epochs.EpochTime`), after each one when it trains for
`--epochs`; what training.json says of these stands in `training`.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

import torch
from torch import nn

from ..base import run_directory as rundir
from ..base.schedule import Schedule
from ..machine import environment, nvml
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from .step_clock import StepTime


@dataclass(frozen=True)
class Subject:
    """What is captured, as far as the caller tells. `model_name` is None for the class's.

    `batch_size` is per rank, None where ranks have no batches of their own. `size` is that of the whole model, of which
    `model` may be one rank's part; None: that of `model`.

    The model is held weakly: whoever captures must be able to let go of it before the process group ends. `model_known`
    is what `model_facts` says where there is no model to look at.
    """

    model: "weakref.ref[nn.Module] | None" = None
    model_name: str | None = None
    batch_size: int | None = None
    config: Mapping[str, Any] | None = None
    command: Sequence[str] = ()
    size: Mapping[str, int] | None = None
    model_known: Mapping[str, Any] | None = None


def run_facts(name: str, who: Identity, subject: Subject) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "schema_version": rundir.SCHEMA_VERSION,
        "run": name,
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(subject.command),
        "config": dict(subject.config or {}),
        "world_size": who.world_size,
        "backend": parallel.backend(),
        "model": model_facts(subject),
        "versions": environment.versions(),
    }


def rank_facts(who: Identity, where: torch.device, schedule: Schedule, subject: Subject) -> dict[str, Any]:
    """What meta.json says of a rank from beginning to end."""
    device = environment.device(where)
    links, links_reason = nvml.links(device["uuid"])
    return {
        "schema_version": rundir.SCHEMA_VERSION,
        "rank": who.rank,
        "local_rank": who.local_rank,
        "world_size": who.world_size,
        "host": who.host,
        "pid": os.getpid(),
        "worker": rundir.worker_name(who.host, who.rank),
        "device": device,
        "links": links,
        "links_reason": links_reason,
        "schedule": asdict(schedule),
        "batch_size_per_rank": subject.batch_size,
        "model": model_facts(subject),
        "versions": environment.versions(),
        "machine": environment.machine(),
        "settings": environment.settings(),
    }


def model_facts(subject: Subject) -> dict[str, Any] | None:
    """Name, number of parameters, and bytes of parameters and of buffers (which DDP broadcasts); None without one."""
    model = subject.model() if subject.model else None
    if model is None:
        return dict(subject.model_known) if subject.model_known else None
    name = subject.model_name or type(getattr(model, "module", model)).__name__
    return {"name": name, **(subject.size or model_size(model))}


def model_size(model: nn.Module) -> dict[str, int]:
    """Number of parameters, and bytes of parameters and of buffers."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
    }


def step_rows(times: Sequence[StepTime]) -> list[dict[str, Any]]:
    """The `steps` of meta.json."""
    return [asdict(time) for time in times]
