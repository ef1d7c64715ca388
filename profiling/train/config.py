"""The options of `train`, checked against each other. Knows no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...contract.modes import Mode
from ..base.commands import options
from ..base.commands.choices import (
    CIFAR10_SAMPLES,
    CIFAR_IMAGE_SIZE,
    AmpName,
    DataName,
    DeviceName,
    ModelName,
    PipelineScheduleName,
)
from ..base.detail import SHAPES_ONLY, Detail
from ..base.keeping import TRACES_ONLY, Keeping
from ..base.schedule import Schedule, check_leading_steps, check_steps, check_wait
from ..errors import UsageError
from ..modes import DEFAULT_MODE, MODES
from ..modes.mode import ParallelMode
from .plan import NO_TRAINING, TrainingPlan, check_plan

OptimizerName = Literal["sgd", "lars"]

# VGG-16 has no batch normalisation and diverges at 0.1; torchvision's own recipe for it uses 0.01.
DEFAULT_LR: Mapping[ModelName, float] = {"resnet18": 0.1, "vgg16": 0.01, "vgg16-swapped": 0.01}
# In the few steps of a run without --epochs the loss of ResNet-18 rises at 0.1; at 0.02 it falls from the start.
FEW_STEPS_LR: Mapping[ModelName, float] = {**DEFAULT_LR, "resnet18": 0.02}


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of SGD, or of LARS: SGD with a rate per layer in proportion to the norm of its weights."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    name: OptimizerName = "sgd"


@dataclass(frozen=True)
class TrainConfig:
    """One training run. `image_size` is in pixels.

    `batch_size` is that of one rank; of one GPU with dp, whose single rank drives `devices` GPUs (None: all); of the
    whole pipeline, whose ranks all work on the same batch, in `microbatches` parts (None: as many as suit the stages).
    It has `stages_per_rank` (None: 2 where they are interleaved, else 1), of `stage_blocks` of the model's blocks each
    (None: so that the largest computes as little as possible).
    `bucket_cap_mb` is the size of DDP's gradient buckets in MiB, for the first bucket too; 0 leaves it to torch, whose
    default is 25 with a first bucket of 1.

    Before its `steps`, which the profiler sees, a run trains for `warmup_epochs` and `timed_epochs`, which it does not.
    `steps_per_epoch` bounds these, 0 means whole epochs. `dataset_samples` is the length of a synthetic one over all
    ranks. With a `training` of some epochs it trains for these, of which `warmup_epochs` are the first, and tests after
    each. `memory_limit_bytes` is for each rank.
    """

    schedule: Schedule
    steps: int
    model: ModelName = "resnet18"
    data: DataName = "synthetic"
    data_root: Path = Path("data")
    image_size: int = CIFAR_IMAGE_SIZE
    parallel: Mode = DEFAULT_MODE
    amp: AmpName | None = None
    channels_last: bool = False
    batch_size: int = 32
    bucket_cap_mb: int = 25
    devices: int | None = None
    microbatches: int | None = None
    pipeline_schedule: PipelineScheduleName = "1f1b"
    stages_per_rank: int | None = None
    stage_blocks: tuple[int, ...] | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None
    detail: Detail = SHAPES_ONLY
    keeping: Keeping = TRACES_ONLY
    flight_recorder: bool = False
    dataset_samples: int = CIFAR10_SAMPLES
    warmup_epochs: int = 0
    timed_epochs: int = 0
    steps_per_epoch: int = 0
    training: TrainingPlan = NO_TRAINING
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "image_size", "dataset_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, found {getattr(self, name)}")
        if self.data == "cifar10" and self.image_size != CIFAR_IMAGE_SIZE:
            raise UsageError(f"--image-size {self.image_size}: CIFAR-10 images are {CIFAR_IMAGE_SIZE} pixels wide")
        if self.data == "cifar10" and self.dataset_samples != CIFAR10_SAMPLES:
            raise UsageError(f"--dataset-samples {self.dataset_samples}: is for --data synthetic")
        options.check_run_name(self.run_name)
        check_steps(self.schedule, self.steps)
        check_plan(self.training, self.batch_size, self.warmup_epochs, self.timed_epochs)
        if self.timed_epochs or self.warmup_epochs or self.training.epochs:
            check_wait(self.schedule, "the profiler would be on in the timed epochs before")
        if self.mode.leading_steps is not None:
            check_leading_steps(self.schedule, self.mode.leading_steps.least, self.mode.leading_steps.why)
        self._check_own_options_of_modes()
        self.mode.check_options(self)

    def _check_own_options_of_modes(self) -> None:
        """Raise UsageError for an option that only other modes take."""
        for other in MODES.values():
            for name, why in other.own_options.items():
                given = getattr(self, name)
                if other is not self.mode and given is not None:
                    said = ",".join(map(str, given)) if isinstance(given, tuple) else given
                    raise UsageError(f"--{name.replace('_', '-')} {said}: {why}")
        for name, why in self.mode.refused_options.items():
            if getattr(self, name):
                raise UsageError(f"--parallel {self.parallel} --{name.replace('_', '-')}: {why}; use --parallel ddp")

    @property
    def mode(self) -> ParallelMode:
        """The parallel mode."""
        return MODES[self.parallel]

    @property
    def batch_size_changes(self) -> bool:
        """Whether later epochs have another batch size."""
        return bool(self.training.batch_size_schedule)

    def run_dir(self, world_size: int) -> Path:
        """The run directory, named at the start of rank 0."""
        return options.run_dir(self.out, self.run_name, f"{self.model}-{self.parallel}-w{world_size}")

    def as_json(self) -> dict[str, Any]:
        """Every option, for run.json."""
        return options.as_json(self)
