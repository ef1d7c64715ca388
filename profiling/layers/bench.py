"""Measure one layer after another, and record each as soon as it is done."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch

from .. import environment, memory, parallel, rundir
from ..errors import UsageError
from ..interrupts import BLOCKED_GRACE_S, Interrupts
from ..progress import Reporter
from .config import LayersConfig
from .measure import Plan, measured
from .results import LAYERS_FILE, SCHEMA_VERSION, UNFINISHED, Results
from .subjects import subjects


def run(config: LayersConfig, command: Sequence[str]) -> int:
    """Measure, print the table, and write layers.json; the exit code. Raises ProfilingError."""
    if parallel.under_torchrun():
        raise UsageError("layers measures one device: expected no launcher, found torchrun's; run it alone")
    where = parallel.device(config.device, 0)
    folder = config.run_dir(where.type)
    rundir.create(folder)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler, which sees allocations, talks on stderr
    facts = _facts(config, where, command)
    results = Results(facts)
    if config.memory_limit_bytes is not None:
        memory.limit(config.memory_limit_bytes, where.index)
    path = folder / LAYERS_FILE
    rundir.write_json(path, results.as_json(UNFINISHED))
    interrupts = Interrupts(lambda: None, lambda _: None, BLOCKED_GRACE_S)
    reason: str | None = UNFINISHED
    interrupts.start()
    try:
        _measure(config, where, results, path)
        reason = None
    except BaseException as err:
        reason = f"interrupted by {interrupts.received.name}" if interrupts.received else str(err)
        raise
    finally:
        with interrupts.held():
            rundir.write_json(path, results.as_json(reason))
            interrupts.stop()
    print("\n".join(results.lines()))
    print(path, file=sys.stderr)
    return 0


def _measure(config: LayersConfig, where: torch.device, results: Results, path: Path) -> None:
    plan = Plan(config.warmup, config.iters, config.power_s, where, environment.device(where)["uuid"])
    todo = list(subjects(config, where))
    with Reporter(rank=0, steps=len(todo), unit="layer") as reporter:
        for number, subject in enumerate(todo, 1):
            results.rows.append(measured(subject, plan))
            rundir.write_json(path, results.as_json(UNFINISHED))
            reporter.advance(number, subject.name)


def _facts(config: LayersConfig, where: torch.device, command: Sequence[str]) -> dict[str, object]:
    return {
        "tool": "commtrace layers",
        "schema_version": SCHEMA_VERSION,
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "config": config.as_json(),
        "memory_is_of": (
            "torch's CUDA allocator" if where.type == "cuda" else "torch's CPU allocator, as its profiler sees it"
        ),
        "device": environment.device(where),
        "versions": environment.versions(),
        "machine": environment.machine(),
        "settings": environment.settings(),
    }
