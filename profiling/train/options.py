"""Options of `train` in groups, in the order of its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...contract.modes import Mode
from ..base.commands.choices import (
    CIFAR10_SAMPLES,
    CIFAR_IMAGE_SIZE,
    AmpName,
    DataName,
    DeviceName,
    ModelName,
    PipelineScheduleName,
)
from ..base.schedule import TRAILING_STEPS
from ..machine.memory import parse_bytes
from ..modes import DEFAULT_MODE, MODES
from ..modes.pipeline import parse_stage_blocks
from .config import DEFAULT_LR, FEW_STEPS_LR, OptimizerConfig, OptimizerName, TrainConfig
from .plan import LrScaling, TrainingPlan, parse_batch_size_schedule

_DEFAULTS = ", ".join(
    f"{name}: {lr}" if lr == FEW_STEPS_LR[name] else f"{name}: {FEW_STEPS_LR[name]}, with --epochs {lr}"
    for name, lr in DEFAULT_LR.items()
)


def _epochs(text: str, **settings: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Epochs before the profiled steps", **settings)


_MODES_HELP = "; ".join(f"{mode.name}: {mode.help}" for mode in MODES.values())
_BATCH_HELP = "; ".join(f"{mode.name}: {mode.batch_help}" for mode in MODES.values() if mode.batch_help)
_WORKERS_HELP = "; ".join(f"{mode.name}: {mode.workers_help}" for mode in MODES.values() if mode.workers_help)


@dataclass(frozen=True)
class SubjectOptions:
    """What to train, on what data, and for how long."""

    model: Annotated[
        ModelName,
        typer.Option(
            help="Model; resnet18: the CIFAR variant; vgg16: torchvision's; vgg16-swapped: ReLU after max pool."
        ),
    ] = "resnet18"
    data: Annotated[
        DataName, typer.Option(help="Data set; synthetic: seeded, no files; cifar10: from --data-root.")
    ] = "synthetic"
    data_root: Annotated[Path, typer.Option(help="Folder that holds cifar-10-batches-py.")] = Path("data")
    image_size: Annotated[int, typer.Option(help="Width of synthetic images in pixels.")] = CIFAR_IMAGE_SIZE
    dataset_samples: Annotated[int, typer.Option(help="Synthetic images in an epoch, over all ranks.")] = (
        CIFAR10_SAMPLES
    )
    batch_size: Annotated[int, typer.Option(help=f"Samples per rank and step; {_BATCH_HELP}.")] = 32
    steps: Annotated[
        int | None,
        typer.Option(
            help="Number of training steps.", show_default=f"the profiler's schedule, and {TRAILING_STEPS} more"
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0
    amp: Annotated[
        AmpName | None,
        typer.Option(help="Compute forward passes in bfloat16 where torch's autocast does; gradients stay float32."),
    ] = None
    channels_last: Annotated[
        bool,
        typer.Option(
            "--channels-last", help="Keep channels last in memory, the layout for convolutions on tensor cores."
        ),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of TrainConfig, without the steps."""
        return {name: value for name, value in vars(self).items() if name != "steps"}


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer and its settings."""

    optimizer: Annotated[
        OptimizerName,
        typer.Option(
            help="Optimizer; lars: SGD with a rate per layer, from pytorch_optimizer; needs a larger learning rate."
        ),
    ] = OptimizerConfig.name
    optimizer_lr: Annotated[
        float | None,
        typer.Option(help="Learning rate; with --lr-scaling, for --lr-reference-batch.", show_default=_DEFAULTS),
    ] = None
    optimizer_momentum: Annotated[float, typer.Option(help="Momentum.")] = OptimizerConfig.momentum
    optimizer_weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = OptimizerConfig.weight_decay

    def config(self, model: ModelName, epochs: int) -> OptimizerConfig:
        """The settings; the learning rate depends on the model, and on training epochs or only a few steps."""
        defaults = DEFAULT_LR if epochs else FEW_STEPS_LR
        lr = defaults[model] if self.optimizer_lr is None else self.optimizer_lr
        return OptimizerConfig(lr, self.optimizer_momentum, self.optimizer_weight_decay, self.optimizer)


@dataclass(frozen=True)
class ParallelOptions:
    """The parallel mode, and options of single modes."""

    parallel: Annotated[Mode, typer.Option(help=f"Parallel mode; {_MODES_HELP}.")] = DEFAULT_MODE
    bucket_cap_mb: Annotated[
        int,
        typer.Option(min=0, help="MiB in each bucket of DDP's gradients; 0: torch's default (25, the first one 1)."),
    ] = TrainConfig.bucket_cap_mb
    microbatches: Annotated[
        int | None,
        typer.Option(
            help="With pipeline: number of parts of a batch; must divide the batch size.",
            show_default="up to 2 per stage that divide it",
        ),
    ] = None
    pipeline_schedule: Annotated[
        PipelineScheduleName,
        typer.Option(
            help="With pipeline; gpipe: all forward passes first; 1f1b: forward and backward passes alternate; "
            "interleaved: the same, with several stages on each rank."
        ),
    ] = TrainConfig.pipeline_schedule
    stages_per_rank: Annotated[
        int | None,
        typer.Option(help="With an interleaved pipeline: stages on each rank.", show_default="2"),
    ] = None
    stage_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="With pipeline: how many of the model's blocks each stage has, such as 2,6,2; a stage that has more "
            "than its share holds up the others.",
            show_default="so that the largest stage computes as little as possible",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings, by their names in `TrainConfig`. Raises UsageError."""
        blocks = None if self.stage_blocks is None else parse_stage_blocks(self.stage_blocks)
        return vars(self) | {"stage_blocks": blocks}


@dataclass(frozen=True)
class PlaceOptions:
    """The device, and the number of workers."""

    workers: Annotated[
        int | None,
        typer.Option(min=1, help=f"Ranks to launch here; {_WORKERS_HELP}.", show_default="one per GPU, else 2"),
    ] = None
    device: Annotated[
        DeviceName, typer.Option(help="Device to train on; cuda communicates through NCCL, cpu through gloo.")
    ] = "auto"
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Memory limit per rank: 4GiB, 500MB or bytes; on CPU for all it allocates, on GPUs for torch's share.",
            show_default="none",
        ),
    ] = None
    captures: Annotated[
        int,
        typer.Option(
            min=1,
            help="Train this many times, as NAME-1, NAME-2, ...; `compare` then knows how much runs differ.",
        ),
    ] = 1

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of TrainConfig. Raises UsageError."""
        limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        return {"device": self.device, "memory_limit_bytes": limit}


@dataclass(frozen=True)
class OutputOptions:
    """Where to write the run directory."""

    out: Annotated[Path, typer.Option(rich_help_panel="Output", help="Folder for run directories.")] = Path("traces")
    run_name: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output", help="Name of the run directory.", show_default="from model, mode, ranks and time"
        ),
    ] = None


@dataclass(frozen=True)
class EpochOptions:
    """Training before the profiled steps."""

    epochs: Annotated[
        int,
        _epochs(
            "Train for this many epochs and test after each; loss and accuracy go to training.json and TensorBoard.",
            min=0,
        ),
    ] = TrainingPlan.epochs
    warmup_epochs: Annotated[
        int,
        _epochs(
            "Epochs before the timed ones; with --epochs, the first ones, in which --lr-scaling raises the rate.",
            min=0,
        ),
    ] = 0
    timed_epochs: Annotated[
        int, _epochs("Timed epochs, without tests; waiting for data is timed separately.", min=0)
    ] = 0
    steps_per_epoch: Annotated[
        int, _epochs("Most steps in a warm-up or timed epoch; 0: the whole data set.", min=0)
    ] = 0
    test_samples: Annotated[
        int,
        _epochs("Images to test on after each of --epochs; 0: all (with synthetic data, a fifth of an epoch).", min=0),
    ] = TrainingPlan.test_samples
    lr_scaling: Annotated[
        LrScaling,
        _epochs(
            "Scale the learning rate; linear: multiply it by samples per step over all ranks / "
            "--lr-reference-batch (Goyal et al. 2017, arXiv:1706.02677)."
        ),
    ] = TrainingPlan.lr_scaling
    lr_reference_batch: Annotated[
        int, _epochs("Samples per step to which --optimizer-lr applies; 256 in the paper.", min=1)
    ] = TrainingPlan.lr_reference_batch
    batch_size_schedule: Annotated[
        str | None,
        _epochs(
            "Change the batch size instead of decaying the learning rate (Smith et al. 2017, arXiv:1711.00489). "
            "3:256,6:512 means --batch-size 256 from epoch 3 on, counted from 0, and 512 from epoch 6 on.",
            metavar="EPOCH:SIZE,...",
            show_default="none",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of TrainConfig. Raises UsageError."""
        plain = {name: getattr(self, name) for name in ("warmup_epochs", "timed_epochs", "steps_per_epoch")}
        return plain | {"training": self._plan()}

    def _plan(self) -> TrainingPlan:
        """The requested training. Raises UsageError."""
        text = self.batch_size_schedule
        schedule = () if text is None else parse_batch_size_schedule(text)
        return TrainingPlan(self.epochs, self.lr_scaling, self.lr_reference_batch, schedule, self.test_samples)
