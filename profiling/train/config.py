"""The options of `train`, checked against each other. Knows no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base import options
from ..base.schedule import Schedule, check_leading_steps, check_steps, check_wait
from ..errors import UsageError
from .plan import NO_TRAINING, TrainingPlan, check_plan

ModelName = Literal["resnet18", "vgg16", "vgg16-swapped"]
DataName = Literal["synthetic", "cifar10"]
ParallelName = Literal["single", "dp", "ddp", "fsdp", "pipeline"]
ScheduleName = Literal["gpipe", "1f1b"]
DeviceName = Literal["auto", "cpu", "cuda"]
OptimizerName = Literal["sgd", "lars"]

# Unprofiled steps that follow the schedule when --steps is not given: what the profiled ones are compared with.
TRAILING_STEPS = 4
CIFAR_IMAGE_SIZE = 32
CIFAR10_SAMPLES = 50_000  # its training images


# Steps that have to come before the traced ones, and why.
_LEADING_STEPS: Mapping[ParallelName, tuple[int, str]] = {
    "dp": (1, "nn.DataParallel sets up NCCL in its first iteration"),
    "ddp": (2, "DDP's first iteration uses buckets that it rebuilds before the second"),
    "fsdp": (1, "FSDP sets up its groups of parameters in its first iteration"),
    "pipeline": (1, "the stages agree on the shapes they exchange in the first iteration"),
}
# With two microbatches per stage a pipeline is full for about half of the time or more.
_MICROBATCHES_PER_STAGE = 2

# VGG-16 has no batch normalisation and diverges at 0.1; torchvision's own recipe for it uses 0.01.
DEFAULT_LR: Mapping[ModelName, float] = {"resnet18": 0.1, "vgg16": 0.01, "vgg16-swapped": 0.01}


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of SGD, or of LARS: SGD with a learning rate for every layer, in proportion to its weights' norm."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    name: OptimizerName = "sgd"


@dataclass(frozen=True)
class TrainConfig:
    """One training run. `image_size` is in pixels.

    `batch_size` is that of one rank; of one GPU with dp, whose single rank drives `devices` GPUs (None: all); of the
    whole pipeline, whose ranks all work on the same batch, in `microbatches` parts (None: see `microbatches_of`).
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
    parallel: ParallelName = "ddp"
    batch_size: int = 32
    bucket_cap_mb: int = 25
    devices: int | None = None
    microbatches: int | None = None
    pipeline_schedule: ScheduleName = "1f1b"
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None
    with_stack: bool = False
    profile_memory: bool = False
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
            raise UsageError(f"--dataset-samples {self.dataset_samples}: for --data synthetic; CIFAR-10 has its own")
        options.check_run_name(self.run_name)
        check_steps(self.schedule, self.steps)
        check_plan(self.training, self.batch_size, self.warmup_epochs, self.timed_epochs)
        if self.timed_epochs or self.warmup_epochs or self.training.epochs:
            check_wait(self.schedule, "the profiler would be on in the timed epochs before")
        if self.parallel in _LEADING_STEPS:
            check_leading_steps(self.schedule, *_LEADING_STEPS[self.parallel])
        if self.parallel == "pipeline" and self.training.batch_size_schedule:
            raise UsageError(
                "--batch-size-schedule: the stages of a pipeline exchange arrays of one size; use another --parallel"
            )
        if self.parallel == "dp" and self.device == "cpu":
            raise UsageError("--parallel dp --device cpu: nn.DataParallel is for GPUs; use --parallel ddp")
        if self.microbatches is not None:
            self._check_microbatches(self.microbatches)

    def _check_microbatches(self, count: int) -> None:
        if self.parallel != "pipeline":
            raise UsageError(f"--microbatches {count}: only a pipeline has them; add --parallel pipeline")
        if count < 1 or self.batch_size % count:
            raise UsageError(
                f"--microbatches {count}: expected a number that divides --batch-size {self.batch_size}, so that all "
                "microbatches are of one size; change either"
            )

    def microbatches_of(self, stages: int) -> int:
        """Parts that a pipeline cuts each batch into: at most two per stage, and as many as divide the batch evenly.

        Raises UsageError when those are fewer than 1F1B needs: it keeps every stage busy with one of its own.
        """
        most = min(self.batch_size, _MICROBATCHES_PER_STAGE * stages)
        count = self.microbatches or next(n for n in range(most, 0, -1) if self.batch_size % n == 0)
        if self.pipeline_schedule == "1f1b" and count < stages:
            raise UsageError(
                f"--batch-size {self.batch_size}: {stages} stages need at least {stages} microbatches of one size, "
                f"found {count}; use a multiple of {stages} with as many --microbatches, or --pipeline-schedule gpipe"
            )
        return count

    def run_dir(self, world_size: int) -> Path:
        """Where this run goes when rank 0 starts it now."""
        return options.run_dir(self.out, self.run_name, f"{self.model}-{self.parallel}-w{world_size}")

    def as_json(self) -> dict[str, Any]:
        """Every option, as run.json holds it."""
        return options.as_json(self)
