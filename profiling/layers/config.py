"""The options of `layers`, checked against each other. Knows no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.commands import options
from ..base.commands.choices import CIFAR_IMAGE_SIZE, DeviceName, ModelName
from ..errors import UsageError

LayerName = Literal["relu", "maxpool", "conv", "linear"]
DEFAULT_MODEL: ModelName = "resnet18"
MODEL_BATCH_SIZE = 32


@dataclass(frozen=True)
class LayersConfig:
    """What to measure: the single `layers`, or every layer of `model` if there are none; with `against` two models.

    `batch_size` None stands for that of single layers, or of a model's training. `scale` shrinks single layers,
    `image_size` in pixels is a model's; None stands for 1 and for CIFAR's. `power_s` is how long a layer runs while its
    power is measured.
    """

    model: ModelName | None = None
    against: ModelName | None = None
    layers: tuple[LayerName, ...] = ()
    batch_size: int | None = None
    image_size: int | None = None
    scale: float | None = None
    warmup: int = 5
    iters: int = 10
    power_s: float = 2.0
    memory_limit_bytes: int | None = None
    seed: int = 0
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        options.check_least(self, {"batch_size": 1, "image_size": 1, "warmup": 0, "iters": 1})
        for name in ("scale", "power_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0, found {value}")
        for name in ("model", "against", "image_size") if self.layers else ("scale",):
            if (value := getattr(self, name)) is not None:
                use = "leave out this option, or --layer" if self.layers else "add --layer"
                raise UsageError(
                    f"--{name.replace('_', '-')} {value}: is for {'models' if self.layers else 'single layers'}; {use}"
                )
        options.check_run_name(self.run_name)

    @property
    def of_model(self) -> ModelName:
        """The model whose layers are measured. Only without single layers."""
        return self.model or DEFAULT_MODEL

    @property
    def models(self) -> tuple[ModelName, ...]:
        """That model, and with `against` the one it is compared with."""
        return (self.of_model,) if self.against is None else (self.of_model, self.against)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the model's input."""
        side = self.image_size or CIFAR_IMAGE_SIZE
        return (self.batch_size or MODEL_BATCH_SIZE, 3, side, side)

    @property
    def subject(self) -> str:
        """What is measured, as one word for names."""
        return "-".join(self.layers) if self.layers else "-".join(self.models)

    def run_dir(self, device_type: str) -> Path:
        """The results' folder, named at the start."""
        return options.run_dir(self.out, self.run_name, f"layers-{self.subject}-{device_type}")

    def as_json(self) -> dict[str, Any]:
        """Every option, for layers.json."""
        return options.as_json(self)
