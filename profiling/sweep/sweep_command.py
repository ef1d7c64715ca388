"""The options of `sweep`."""

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ...common.option_groups import takes
from ..base.commands.choices import ModelName
from ..base.commands.options import check_run_name
from ..base.libraries import require
from ..errors import UsageError
from ..modes import MODES
from . import bench, grid
from .grid import SweepConfig

_OUT, _EVERY_CELL = "Output", "In every cell, as in train"


def _default(key: str) -> str:
    value = getattr(SweepConfig, key)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str("none" if value is None else value)


def _grid(key: str, text: str) -> Any:
    return typer.Option(help=text, show_default=_default(key), metavar="LIST", rich_help_panel="Grid")


def _shared(key: str, text: str) -> Any:
    return typer.Option(help=text, show_default=_default(key), rich_help_panel=_EVERY_CELL)


@dataclass(frozen=True)
class _GridOptions:
    """The grid."""

    model: Annotated[list[str] | None, _grid("model", f"Models: {', '.join(get_args(ModelName))}.")] = None
    parallel: Annotated[list[str] | None, _grid("parallel", f"Parallel modes: {', '.join(MODES)}.")] = None
    batch_size: Annotated[list[str] | None, _grid("batch_size", "Batch sizes per rank, such as 32,128.")] = None
    workers: Annotated[
        list[str] | None, _grid("workers", "Numbers of ranks, or of GPUs in one process, such as 1,2,4.")
    ] = None
    batch_size_until_oom: Annotated[
        bool | None,
        typer.Option(
            "--batch-size-until-oom",
            help="Beyond the largest batch size, multiply it by 4 until memory or the data set is exhausted.",
            rich_help_panel="Grid",
        ),
    ] = None


@dataclass(frozen=True)
class _CellOptions:
    """Options that are the same in every cell."""

    steps_per_epoch: Annotated[
        int | None,
        _shared("steps_per_epoch", "Steps in the warm-up epoch and in the timed epoch; 0: the whole data set."),
    ] = None
    data: Annotated[str | None, _shared("data", "Data set: synthetic, or cifar10 from --data-root.")] = None
    data_root: Annotated[str | None, _shared("data_root", "Folder that holds cifar-10-batches-py.")] = None
    image_size: Annotated[int | None, _shared("image_size", "Width of synthetic images in pixels.")] = None
    dataset_samples: Annotated[int | None, _shared("dataset_samples", "Synthetic images in an epoch.")] = None
    seed: Annotated[int | None, _shared("seed", "Seed of weights and data.")] = None
    device: Annotated[str | None, _shared("device", "Device to train on: auto, cpu or cuda.")] = None
    amp: Annotated[str | None, _shared("amp", "Compute forward passes in bfloat16 (bf16).")] = None
    channels_last: Annotated[
        bool | None, typer.Option("--channels-last", help="Keep channels last in memory.", rich_help_panel=_EVERY_CELL)
    ] = None
    bucket_cap_mb: Annotated[int | None, _shared("bucket_cap_mb", "MiB in a bucket of DDP's gradients.")] = None
    memory_limit: Annotated[str | None, _shared("memory_limit", "Memory limit per rank: 4GiB, 500MB or bytes.")] = None
    wait: Annotated[int | None, _shared("wait", "Steps after the timed epoch, before the profiler warms up.")] = None
    warmup: Annotated[int | None, _shared("warmup", "Profiled steps to discard.")] = None
    active: Annotated[int | None, _shared("active", "Steps to trace.")] = None


@dataclass(frozen=True)
class _PlaceOptions:
    """Where options come from, and where to write."""

    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these options; the command line overrides it.")
    ] = None
    out: Annotated[
        str | None, typer.Option(help="Folder for the sweep's directory.", show_default="traces", rich_help_panel=_OUT)
    ] = None
    run_name: Annotated[
        str | None,
        typer.Option(
            help="Name of the sweep's directory; if it exists, run only the cells that are not done.",
            show_default="sweep- and the time",
            rich_help_panel=_OUT,
        ),
    ] = None
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the sweep in this directory with its options; options given here may extend the grid.",
            rich_help_panel=_OUT,
        ),
    ] = None


@takes(points=_GridOptions, cells=_CellOptions, place=_PlaceOptions)
def sweep_command(ctx: typer.Context, *, points: _GridOptions, cells: _CellOptions, place: _PlaceOptions) -> None:
    """Time and trace every cell of a grid: models x parallel modes x workers x batch sizes.

    A cell is one train command in its own processes: a warm-up epoch, a timed epoch, then a few traced steps, which are
    never among the timed ones. A sweep may be interrupted at any moment; the same command continues it.

    In a file, options have no leading dashes, and lists are in brackets: workers = [1, 2], run-name = "cifar".

    \b
    Examples:
      commtrace sweep
      commtrace sweep --batch-size 32,128,512,2048 --workers 1,2,4 --steps-per-epoch 0 --run-name grid
      commtrace sweep --resume traces/grid
      commtrace sweep --parallel single --workers 1 --batch-size 32 --batch-size-until-oom
      commtrace sweep --config sweep.toml --run-name cifar --workers 1,2
    """
    require("torchvision")
    bench.check_not_launched()
    options = vars(points) | vars(cells) | {"out": place.out, "run_name": place.run_name}
    given = grid.from_command_line({key: value for key, value in options.items() if value not in (None, ())})
    raise typer.Exit(bench.run_sweep(_request(given, place.config, place.resume, list(ctx.obj))))


def _request(given: dict[str, Any], config: Path | None, resume: Path | None, args: list[str]) -> bench.Request:
    """The folder and the options, from the file and, above it, the command line. Raises UsageError."""
    given = (grid.from_file(config) if config else {}) | given
    if resume is not None and given.keys() & {"out", "run_name"}:
        raise UsageError(f"--resume {resume}: names the directory already; leave --out and --run-name out")
    name = given.get("run_name") or f"sweep-{datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%SZ')}"
    check_run_name(name)
    folder = resume or Path(given.get("out", "traces")) / name
    command_line = ["commtrace", *args]
    return bench.Request(folder, given, command_line, resume=resume is not None)
