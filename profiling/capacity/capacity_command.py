"""`commtrace capacity`. Importable without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...common.option_groups import takes
from ..base.commands.choices import DeviceName
from ..machine import memory
from ..ranks.exits import exit_with
from .config import CapacityConfig, GrowName, share


@dataclass(frozen=True)
class _StackOptions:
    """What to stack, and on which devices."""

    grow: Annotated[GrowName, typer.Option(help="Kind of layers to add until memory is exhausted.")] = (
        CapacityConfig.grow
    )
    fixed: Annotated[int, typer.Option(help="Number of layers of the other kind.")] = CapacityConfig.fixed
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="CONV+LINEAR",
            help="Split this stack over --devices instead of searching for the largest one; 138+62, for example.",
        ),
    ] = None
    devices: Annotated[int, typer.Option(help="Number of GPUs, or on CPU of processes with a memory limit each.")] = 1
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory limit per device: 4GiB, 500MB or bytes; on CPU for all that its process allocates.",
            show_default="none on a GPU; required on CPU",
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(help="Samples in the input.")] = CapacityConfig.batch_size
    channels: Annotated[int, typer.Option(help="Channels of the input and of every convolution.")] = (
        CapacityConfig.channels
    )
    image_size: Annotated[int, typer.Option(help="Width of the input in pixels.")] = CapacityConfig.image_size


@dataclass(frozen=True)
class _HowOptions:
    """How to measure, and where to write."""

    warmup: Annotated[int, typer.Option(help="Untimed steps before the timed ones.")] = CapacityConfig.warmup
    iters: Annotated[int, typer.Option(help="Timed steps.")] = CapacityConfig.iters
    max_tries: Annotated[int, typer.Option(help="Most tries in one search, each in its own process.")] = (
        CapacityConfig.max_tries
    )
    device: Annotated[DeviceName, typer.Option(help="Device that runs the layers.")] = "auto"
    out: Annotated[
        Path, typer.Option(rich_help_panel="Output", help="Folder in which to make the results' folder.")
    ] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output", help="Name of the results' folder.", show_default="from device and time"
        ),
    ] = None


@takes(stacked=_StackOptions, how=_HowOptions)
def capacity_command(ctx: typer.Context, *, stacked: _StackOptions, how: _HowOptions) -> None:
    """Find how many convolutions and linear layers a device can train, and how a larger stack splits over several.

    The table goes to stdout, every try to capacity.json in the results' folder.

    \b
    Examples:
      commtrace capacity
      commtrace capacity --devices 2
      commtrace capacity --devices 2 --stack 138+62
      commtrace capacity --grow linear --fixed 10 --memory-limit 8GiB
      commtrace capacity --device cpu --memory-limit 2GiB --fixed 4 --batch-size 4
    """
    config = CapacityConfig(
        grow=stacked.grow,
        fixed=stacked.fixed,
        stack=None if stacked.stack is None else share(stacked.stack),
        devices=stacked.devices,
        batch_size=stacked.batch_size,
        channels=stacked.channels,
        image_size=stacked.image_size,
        memory_limit_bytes=None if stacked.memory_limit is None else memory.parse_bytes(stacked.memory_limit),
        **vars(how),
    )

    def start() -> int:
        from . import bench

        return bench.run_capacity(config, ctx.obj)

    exit_with(start)
