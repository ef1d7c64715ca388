"""Measure layer by layer, and record each at once."""

import os
import sys
from collections.abc import Callable, Sequence

import torch

from ...contract.rank import STILL_RUNNING
from ...contract.single import LAYERS_FILE, LayersFile
from ..base import run_directory as rundir
from ..base.console.messages import tell
from ..base.console.progress import Reporter
from ..errors import OutOfMemoryError, UsageError
from ..machine import environment, measurement, memory
from ..ranks import process_group as parallel
from .config import LayersConfig
from .formats import FormatName, written
from .measure import Plan, measured
from .memory_use import memory_use
from .results import LayersResults
from .subjects import LayerSubject, subjects, whole_models

Save = Callable[[str | None], None]


def run_layers(config: LayersConfig, command: Sequence[str], output_format: FormatName = "table") -> int:
    """Measure, print the table in this format, and write layers.json; the exit code. Raises ProfilingError."""
    if parallel.under_torchrun():
        raise UsageError("layers measures one device; run it without torchrun")
    where = parallel.rank_device(config.device, 0)
    folder = config.run_dir(where.type)
    rundir.check_free(folder)
    todo = [[one] for one in subjects(config, where)] if config.against is None else [whole_models(config, where)]
    rundir.create_empty(folder)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler, which counts allocations, writes to stderr
    results, path = LayersResults(_facts(config, where, command)), folder / LAYERS_FILE
    plan = Plan(config.warmup, config.iters, config.power_s, where, environment.device(where).uuid)

    def save(reason: str | None) -> None:
        rundir.write_json(path, results.file(reason))

    with measurement.recorded(save):
        if config.memory_limit_bytes is not None:
            _limit(config.memory_limit_bytes, where)
        _measure(todo, plan, results, save)
    tell(written(results, output_format))
    print(path, file=sys.stderr)
    return 0


def _measure(todo: Sequence[Sequence[LayerSubject]], plan: Plan, results: LayersResults, save: Save) -> None:
    """Measure one after the other; those that stand together in turns."""
    with Reporter(rank=0, steps=len(todo), unit="layer") as reporter:
        for number, together in enumerate(todo):
            name = " and ".join(subject.name for subject in together)
            if not reporter.advance(number, name):
                reporter.say(f"layer {number + 1:>3}/{len(todo)}  {name}")
            results.rows += measured(together, plan)
            save(STILL_RUNNING)


def _limit(limit_bytes: int, where: torch.device) -> None:
    """Limit the memory of the layers. Raises OutOfMemoryError if more is in use already."""
    memory.wake(where)
    memory_use(lambda: torch.ones(1), lambda _: None, where)  # the profiler has threads too
    used_bytes = memory.status_bytes("VmData") if where.type == "cpu" else None
    if used_bytes is not None and used_bytes >= limit_bytes:
        raise OutOfMemoryError(
            f"--memory-limit {limit_bytes}: this process uses {used_bytes} bytes before it measures anything; raise it"
        )
    memory.limit(limit_bytes, where.index)


def _facts(config: LayersConfig, where: torch.device, command: Sequence[str]) -> LayersFile:
    return LayersFile(
        **measurement.measurement_head("layers", config.as_json(), where, command),
        memory_is_of=(
            "torch's CUDA allocator" if where.type == "cuda" else "torch's CPU allocator, as its profiler sees it"
        ),
    )
