"""`commtrace lab`. Importable without torch."""

import re
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from ...contract.lab import ExperimentName
from ..base.commands.choices import DeviceName
from ..base.commands.options import check_run_name
from ..base.libraries import require
from ..errors import UsageError
from ..sweep.bench import check_not_launched

_NAMES: tuple[ExperimentName, ...] = get_args(ExperimentName)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def experiment_numbers(text: str | None) -> list[int]:
    """`1-3,6` as numbers, for None all. Raises UsageError."""
    if text is None:
        return [*range(1, len(_NAMES) + 1)]
    numbers = set[int]()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= len(_NAMES):
            raise UsageError(f"--experiments {text}: expected numbers from 1 to {len(_NAMES)}, such as 1-3,5")
        numbers |= {*range(first, last + 1)}
    return sorted(numbers)


def lab_command(
    ctx: typer.Context,
    *,
    experiments: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Only these experiments, such as 1-3,5.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: a look at everything, in less time.")] = False,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Train on CIFAR-10 from this folder, which holds cifar-10-batches-py.", show_default="synthetic images"
        ),
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="Device to measure on.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with its commands, and stop.")] = False,
    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="Folder for the lab's directory.")] = Path(
        "traces"
    ),
    run_name: Annotated[
        str,
        typer.Option(
            rich_help_panel="Output", help="Name of the lab's directory; if it exists, measure only what is missing."
        ),
    ] = "lab",
) -> None:
    """Measure this machine: run eight experiments, one command after another, and write one page on them.

    \b
    1  batch size: time of an epoch on one device, until memory or data end
    2  speedup: more workers at several batch sizes
    3  communication: compute and communication of an epoch, as measured
    4  all-reduce: time and bandwidth by size
    5  large batch: loss and accuracy beside the small batch
    6  layers: time, memory and power of every layer
    7  swap: VGG-16 with ReLU after the max pool, beside plain VGG-16
    8  capacity: how many layers a device can train

    Sizes follow from the GPUs, cores and memory: minutes on two cores, on GPUs whole epochs of CIFAR-10's size. An
    experiment that fails says why, and the others go on. A lab may be interrupted at any moment; the same command
    continues it. The page is lab.html in its directory.

    \b
    Examples:
      commtrace lab --dry-run
      commtrace lab
      commtrace lab --quick --run-name quick-lab
      commtrace lab --experiments 1-3
      commtrace lab --data-root data --run-name cifar-lab
    """
    for library in ("torch", "torchvision"):
        require(library)
    check_not_launched()
    check_run_name(run_name)
    chosen = experiment_numbers(experiments)
    from . import bench
    from .machine import this_machine
    from .plan import plan

    here = this_machine(device)
    root = None if data_root is None else str(data_root)
    options = [here.device, *(["quick"] if quick else []), *(["CIFAR-10"] if root else [])]
    planned = plan(here, quick=quick, data_root=root)
    request = bench.LabRequest(out / run_name, here.name, planned, options, chosen, list(ctx.obj))
    if dry_run:
        sys.stdout.write(f"{bench.plan_text(bench.planned(request), chosen, commands=True)}\n")
        return
    raise typer.Exit(bench.run_lab(request))
