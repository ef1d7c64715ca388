"""The options of `train`, checked against each other. Knows no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from .errors import UsageError
from .schedule import Schedule, check_leading_steps, check_steps

ModelName = Literal["resnet18", "vgg16"]
DataName = Literal["synthetic", "cifar10"]
ParallelName = Literal["single", "ddp"]
DeviceName = Literal["auto", "cpu", "cuda"]

# Unprofiled steps that follow the schedule when --steps is not given: what the profiled ones are compared with.
TRAILING_STEPS = 4
CIFAR_IMAGE_SIZE = 32


# VGG-16 has no batch normalisation and diverges at 0.1; torchvision's own recipe for it uses 0.01.
DEFAULT_LR: Mapping[ModelName, float] = {"resnet18": 0.1, "vgg16": 0.01}


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of SGD."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4


@dataclass(frozen=True)
class TrainConfig:
    """One training run. `batch_size` is per rank, `image_size` in pixels.

    `bucket_cap_mb` is the size of DDP's gradient buckets in MiB, for the first bucket too; 0 leaves it to torch, whose
    default is 25 with a first bucket of 1.
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
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None
    with_stack: bool = False
    profile_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "image_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, found {getattr(self, name)}")
        if self.data == "cifar10" and self.image_size != CIFAR_IMAGE_SIZE:
            raise UsageError(f"--image-size {self.image_size}: CIFAR-10 images are {CIFAR_IMAGE_SIZE} pixels wide")
        if self.run_name is not None and Path(self.run_name).name != self.run_name:
            raise UsageError(f"--run-name {self.run_name}: expected one folder name; give the folder above it as --out")
        check_steps(self.schedule, self.steps)
        if self.parallel == "ddp":
            check_leading_steps(
                self.schedule, 2, "DDP's first iteration uses buckets that it rebuilds before the second"
            )

    def run_dir(self, world_size: int) -> Path:
        """Where this run goes when rank 0 starts it now."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        return self.out / (self.run_name or f"{self.model}-{self.parallel}-w{world_size}-{stamp}")

    def as_json(self) -> dict[str, Any]:
        """Every option, as run.json holds it."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
