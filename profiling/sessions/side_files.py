"""The content of run.json and <host>_<rank>.meta.json.

Their fields are described in `commtrace.contract`. To what `rank_facts` holds from beginning to end a session adds what
changes; `train` adds its epochs, after each one when it trains for `--epochs`.
"""

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import torch
from torch import nn

from ...contract.rank import ProfilerOptions, RankFile, ScheduleFacts
from ...contract.run import ModelSize, RunFile
from ..base import run_directory as rundir
from ..base.schedule import Schedule
from ..machine import environment, nvml
from ..machine.commit import commit
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from .step_clock import clock_name


@dataclass(frozen=True)
class Subject:
    """What is captured, as the caller describes it. `model_name` is None for the name of the class.

    `batch_size` is per rank, None where ranks have no batches of their own. `size` is that of the whole model, of which
    `model` may be one rank's part, and needs no name; None: that of `model`.

    The model is held weakly: whoever captures must be able to let go of it before the process group ends. `model_known`
    is what `model_facts` says where there is no model to look at.
    """

    model: "weakref.ref[nn.Module] | None" = None
    model_name: str | None = None
    batch_size: int | None = None
    config: Mapping[str, Any] | None = None
    command: Sequence[str] = ()
    size: ModelSize | None = None
    model_known: ModelSize | None = None


def run_facts(name: str, who: Identity, subject: Subject) -> RunFile:
    """The content of run.json."""
    return RunFile(
        run=name,
        created_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(subject.command),
        config=dict(subject.config or {}),
        world_size=who.world_size,
        backend=parallel.backend(),
        model=model_facts(subject),
        versions=environment.versions(),
        commit=commit(),
    )


def rank_facts(
    who: Identity, where: torch.device, schedule: Schedule, subject: Subject, profiler: ProfilerOptions
) -> RankFile:
    """The fields of meta.json that do not change during a capture."""
    device = environment.device(where)
    links, links_reason = nvml.links(device.uuid)
    return RankFile(
        rank=who.rank,
        local_rank=who.local_rank,
        world_size=who.world_size,
        host=who.host,
        pid=os.getpid(),
        worker=rundir.worker_name(who.host, who.rank),
        device=device,
        links=links,
        links_reason=links_reason,
        schedule=schedule_facts(schedule),
        batch_size_per_rank=subject.batch_size,
        model=model_facts(subject),
        versions=environment.versions(),
        machine=environment.machine(),
        settings=environment.settings(),
        numerics=environment.numerics(),
        profiler=profiler,
        step_clock=clock_name(where),
    )


def schedule_facts(schedule: Schedule) -> ScheduleFacts:
    """The profiler's cycles as side files have them."""
    return ScheduleFacts(schedule.wait, schedule.warmup, schedule.active, schedule.repeat)


def model_facts(subject: Subject) -> ModelSize | None:
    """Size and name of the model; None without one."""
    model = subject.model() if subject.model else None
    if model is None:
        return subject.model_known
    size = subject.size or model_size(model)
    return replace(size, name=subject.model_name or type(getattr(model, "module", model)).__name__)


def model_size(model: nn.Module) -> ModelSize:
    """The size of a model, without a name."""
    parameters = list(model.parameters())
    return ModelSize(
        name=None,
        parameters=sum(p.numel() for p in parameters),
        bytes=sum(p.numel() * p.element_size() for p in parameters),
        buffer_bytes=sum(b.numel() * b.element_size() for b in model.buffers()),
    )
