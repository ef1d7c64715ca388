"""`commtrace layers`. Importable without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from ...common.option_groups import takes
from ..base.commands.choices import CIFAR_IMAGE_SIZE, DeviceName, ModelName
from ..errors import UsageError
from ..machine import memory
from ..ranks.exits import exit_with
from .config import DEFAULT_MODEL, MODEL_BATCH_SIZE, LayerName, LayersConfig
from .formats import FormatName

_LAYERS: tuple[LayerName, ...] = get_args(LayerName)


def _layers(names: list[str]) -> tuple[LayerName, ...]:
    """The named layers, each once; all of them for `all`. Raises UsageError."""
    for name in names:
        if name not in (*_LAYERS, "all"):
            raise UsageError(f"--layer {name}: expected one of {', '.join(_LAYERS)}, all")
    return tuple(layer for layer in _LAYERS if "all" in names or layer in names)


@dataclass(frozen=True)
class _SubjectOptions:
    """What to measure."""

    model: Annotated[
        ModelName | None,
        typer.Option(help="Measure every layer of this model, and the model as a whole.", show_default=DEFAULT_MODEL),
    ] = None
    against: Annotated[
        ModelName | None,
        typer.Option(
            help="Measure --model and this one as a whole, in turns, and print how much longer it takes, with an "
            "interval.",
            show_default="none",
        ),
    ] = None
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            metavar="LAYER",
            help=f"Measure single layers instead: {', '.join(_LAYERS)}, or all; repeatable.",
            show_default="none",
        ),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Samples in the input.", show_default=f"{MODEL_BATCH_SIZE}; 256 with --layer")
    ] = None
    image_size: Annotated[
        int | None, typer.Option(help="Width of a model's input in pixels.", show_default=str(CIFAR_IMAGE_SIZE))
    ] = None
    scale: Annotated[
        float | None, typer.Option(help="With --layer: multiply image widths and features by this.", show_default="1")
    ] = None


@dataclass(frozen=True)
class _HowOptions:
    """How to measure, and where to write."""

    warmup: Annotated[int, typer.Option(help="Untimed repetitions before the timed ones.")] = LayersConfig.warmup
    iters: Annotated[int, typer.Option(help="Timed repetitions.")] = LayersConfig.iters
    power_s: Annotated[float, typer.Option(help="On a GPU: seconds to measure the power of each layer.")] = (
        LayersConfig.power_s
    )
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory limit: 4GiB, 500MB or bytes; on CPU for all the process allocates, on GPUs for torch's share.",
            show_default="none",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0
    device: Annotated[DeviceName, typer.Option(help="Device that runs the layers.")] = "auto"
    out: Annotated[
        Path, typer.Option(rich_help_panel="Output", help="Folder in which to make the results' folder.")
    ] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output", help="Name of the results' folder.", show_default="from subject and time"
        ),
    ] = None
    output_format: Annotated[
        FormatName, typer.Option("--format", "-f", rich_help_panel="Output", help="How the table is written.")
    ] = "table"


@takes(subject=_SubjectOptions, how=_HowOptions)
def layers_command(ctx: typer.Context, *, subject: _SubjectOptions, how: _HowOptions) -> None:
    """Measure every layer by itself: time of the forward and backward pass, memory, and power.

    The table goes to stdout, single times and reasons to layers.json in the results' folder.

    \b
    Examples:
      commtrace layers --model vgg16 --batch-size 128
      commtrace layers --model vgg16 --against vgg16-swapped --batch-size 128
      commtrace layers --layer all
      commtrace layers --layer all --format latex > layers.tex
      commtrace layers --layer relu --layer conv --batch-size 16 --scale 0.25
    """
    config = LayersConfig(
        model=subject.model,
        against=subject.against,
        layers=_layers(subject.layer or []),
        batch_size=subject.batch_size,
        image_size=subject.image_size,
        scale=subject.scale,
        warmup=how.warmup,
        iters=how.iters,
        power_s=how.power_s,
        memory_limit_bytes=None if how.memory_limit is None else memory.parse_bytes(how.memory_limit),
        seed=how.seed,
        device=how.device,
        out=how.out,
        run_name=how.run_name,
    )

    def start() -> int:
        from . import bench

        return bench.run_layers(config, ctx.obj, how.output_format)

    exit_with(start)
