"""The options of `layers`, checked against each other. Knows no torch."""

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from ..config import CIFAR_IMAGE_SIZE, DeviceName, ModelName
from ..errors import UsageError

LayerName = Literal["relu", "maxpool", "conv", "linear"]
MODEL_BATCH_SIZE = 32


@dataclass(frozen=True)
class LayersConfig:
    """What is measured: `layers` by themselves, or without any every layer of `model`.

    `batch_size` None stands for that of the report, or of a model's training. `scale` shrinks single layers,
    `image_size` in pixels is a model's. `power_s` is how long a layer runs while its power is measured.
    """

    model: ModelName = "resnet18"
    layers: tuple[LayerName, ...] = ()
    batch_size: int | None = None
    image_size: int = CIFAR_IMAGE_SIZE
    scale: float = 1.0
    warmup: int = 5
    iters: int = 10
    power_s: float = 2.0
    memory_limit_bytes: int | None = None
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("image_size", 1), ("warmup", 0), ("iters", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, found {value}")
        for name in ("scale", "power_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0, found {getattr(self, name)}")
        if self.run_name is not None and Path(self.run_name).name != self.run_name:
            raise UsageError(f"--run-name {self.run_name}: expected one folder name; give the folder above it as --out")

    @property
    def subject(self) -> str:
        """What is measured, in a word."""
        return "-".join(self.layers) if self.layers else self.model

    def run_dir(self, device_type: str) -> Path:
        """Where the results go when it starts now."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        return self.out / (self.run_name or f"layers-{self.subject}-{device_type}-{stamp}")

    def as_json(self) -> dict[str, Any]:
        """Every option, as layers.json holds it."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
