"""`commtrace comms`. Importable without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ...common.option_groups import takes
from ..base.commands.choices import DeviceName
from ..ranks.exits import exit_with
from .config import CollectiveName, CommsConfig, DtypeName, OpName, distinct, size_bytes

_COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)
_DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
_OPS: tuple[OpName, ...] = get_args(OpName)
# What `all` stands for: float8 only on request.
_ALL_DTYPES = tuple(name for name in _DTYPES if not name.startswith("float8"))


def _size(text: str | int) -> int:
    try:
        return size_bytes(str(text))  # typer parses defaults as well
    except ValueError as err:
        raise typer.BadParameter(str(err)) from err


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    """A parser that accepts one of the names; typer has none for lists of literals."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def _expanded(names: Sequence[str], every: Sequence[str]) -> tuple[Any, ...]:
    """The distinct names in order, with `all` replaced by `every`."""
    return distinct([word for name in names for word in (every if name == "all" else (name,))])


@dataclass(frozen=True)
class _WhatOptions:
    """What to measure: collectives, sizes, dtypes and reductions."""

    collectives: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLLECTIVE]...",
            parser=_one_of(_COLLECTIVES),
            help=f"Collectives to measure: {', '.join(_COLLECTIVES)}.",
            show_default="all",
        ),
    ] = None
    min_bytes: Annotated[
        int, typer.Option("--min-bytes", "-b", parser=_size, metavar="SIZE", help="Smallest size; K, M, G: 1024-based.")
    ] = 8
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            "-e",
            parser=_size,
            metavar="SIZE",
            help="Largest size.",
            show_default="1G on GPUs, 64M on CPU",
        ),
    ] = CommsConfig.max_bytes
    factor: Annotated[int, typer.Option("--factor", "-f", help="Factor from one size to the next.")] = 2
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            "-d",
            metavar="DTYPE",
            parser=_one_of((*_DTYPES, "all")),
            help=f"Data types: {', '.join(_DTYPES)}, or all, which leaves float8 out; repeatable.",
            show_default="float32",
        ),
    ] = None
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            "-o",
            metavar="OP",
            parser=_one_of((*_OPS, "all")),
            help=f"Reductions: {', '.join(_OPS)}, or all; repeatable.",
            show_default="sum",
        ),
    ] = None
    root: Annotated[int, typer.Option("--root", "-r", help="Root rank, for collectives that have one.")] = 0


@dataclass(frozen=True)
class _HowOptions:
    """How and where to measure."""

    warmup: Annotated[int, typer.Option("--warmup", "-w", help="Untimed calls before the timed calls.")] = 5
    iters: Annotated[int, typer.Option("--iters", "-n", help="Timed calls, back to back.")] = 20
    backend: Annotated[
        str,
        typer.Option(
            help="Backend of torch.distributed: gloo, nccl, ...", show_default="auto: nccl on GPUs, gloo on CPU"
        ),
    ] = "auto"
    workers: Annotated[
        int | None, typer.Option(min=1, help="Ranks to launch here.", show_default="one per GPU, else 2")
    ] = None
    device: Annotated[DeviceName, typer.Option(help="Device that holds the data.")] = "auto"


@dataclass(frozen=True)
class _OutputOptions:
    """What else to capture, and where to write."""

    trace: Annotated[
        bool, typer.Option("--trace", rich_help_panel="Output", help="Also trace some calls after the measurement.")
    ] = False
    trace_iters: Annotated[
        int, typer.Option(min=1, rich_help_panel="Output", help="With --trace: calls to trace per size.")
    ] = 5
    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="Folder for run directories.")] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output", help="Name of the run directory.", show_default="from backend, ranks and time"
        ),
    ] = None


@takes(what=_WhatOptions, how=_HowOptions, output=_OutputOptions)
def comms_command(ctx: typer.Context, *, what: _WhatOptions, how: _HowOptions, output: _OutputOptions) -> None:
    """Measure collectives at many sizes as nccl-tests does, and check their results: the ceiling of this machine.

    The table goes to stdout, details to comms.json in the run directory. Under torchrun this process is one rank;
    otherwise it launches --workers ranks. The exit code is 1 if a result is wrong.

    \b
    Examples:
      commtrace comms
      commtrace comms all_reduce --min-bytes 4M --max-bytes 1G --dtype bfloat16
      commtrace comms all_reduce reduce_scatter --op sum --op max --dtype all --max-bytes 1M
      torchrun --nproc-per-node 8 -m commtrace comms --run-name ceiling
      commtrace bandwidth --ceiling traces/ceiling traces/my-run
    """
    config = CommsConfig(
        collectives=distinct(what.collectives or _COLLECTIVES),
        dtypes=_expanded(what.dtype or ["float32"], _ALL_DTYPES),
        ops=_expanded(what.op or ["sum"], _OPS),
        min_bytes=what.min_bytes,
        max_bytes=what.max_bytes,
        factor=what.factor,
        warmup=how.warmup,
        iters=how.iters,
        root=what.root,
        backend=how.backend,
        device=how.device,
        trace_iters=output.trace_iters if output.trace else 0,
        out=output.out,
        run_name=output.run_name,
    )

    def start() -> int:
        from ..ranks.task import run_task
        from .task import task

        return run_task(task(config), how.workers, ctx.obj)

    exit_with(start)
