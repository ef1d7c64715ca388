"""`commtrace gemm`. Importable without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from ...common.option_groups import takes
from ..base.commands.choices import DeviceName
from ..errors import UsageError
from ..machine import memory
from ..ranks.exits import exit_with
from .config import GemmConfig, GemmDtype

_DTYPES: tuple[GemmDtype, ...] = get_args(GemmDtype)


def _dtypes(names: list[str]) -> tuple[GemmDtype, ...]:
    """The named dtypes, each once. Raises UsageError."""
    for name in names:
        if name not in _DTYPES:
            raise UsageError(f"--dtype {name}: expected one of {', '.join(_DTYPES)}")
    return tuple(dtype for dtype in _DTYPES if dtype in names)


@dataclass(frozen=True)
class _GemmOptions:
    """What to measure, how, and where to write."""

    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            "-d",
            metavar="DTYPE",
            help=f"Types of the matrices: {', '.join(_DTYPES)}; repeatable.",
            show_default="what the device multiplies fast, and float32",
        ),
    ] = None
    size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Multiply N x N matrices; repeatable.",
            show_default="4096, 8192 and 16384 on GPUs, 512 and 1024 on CPU",
        ),
    ] = None
    copy: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Copy so much memory: 4GiB, 500MB or bytes.", show_default="1GiB; 256MiB"),
    ] = None
    warmup: Annotated[int, typer.Option(help="Untimed repetitions before the timed ones.")] = GemmConfig.warmup
    iters: Annotated[int, typer.Option(help="Timed repetitions; their median counts.")] = GemmConfig.iters
    device: Annotated[DeviceName, typer.Option(help="Devices to measure: all GPUs, or the CPU.")] = "auto"
    out: Annotated[
        Path, typer.Option(rich_help_panel="Output", help="Folder in which to make the results' folder.")
    ] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(rich_help_panel="Output", help="Name of the results' folder.", show_default="from time"),
    ] = None


@takes(given=_GemmOptions)
def gemm_command(ctx: typer.Context, *, given: _GemmOptions) -> None:
    """Measure the peak that kernels can reach: products of matrices by dtype, and copies within memory.

    Every GPU of this machine is measured, one after the other. The table goes to stdout, single times to gemm.json in
    the results' folder, which --peak of the other commands takes.

    \b
    Examples:
      commtrace gemm
      commtrace gemm --dtype bfloat16 --size 8192 --run-name peak
      commtrace compute --peak traces/peak traces/my-run
    """
    config = GemmConfig(
        dtypes=_dtypes(given.dtype or []),
        sizes=tuple(dict.fromkeys(given.size or ())),
        copied_bytes=None if given.copy is None else memory.parse_bytes(given.copy, "--copy"),
        warmup=given.warmup,
        iters=given.iters,
        device=given.device,
        out=given.out,
        run_name=given.run_name,
    )

    def start() -> int:
        from .bench import run_gemm

        return run_gemm(config, ctx.obj)

    exit_with(start)
