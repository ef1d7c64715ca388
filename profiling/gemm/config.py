"""The options of `gemm`, checked against each other. Knows no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.commands import options
from ..base.commands.choices import DeviceName
from ..errors import UsageError

GemmDtype = Literal["bfloat16", "float16", "tf32", "float32", "float64", "float8_e4m3fn"]
MEMORY = "memory"
_MULTIPLE = 16


@dataclass(frozen=True)
class GemmConfig:
    """What to measure: products of `sizes` x `sizes` matrices by dtype, and copies; empty: what suits the device."""

    dtypes: tuple[GemmDtype, ...] = ()
    sizes: tuple[int, ...] = ()
    copied_bytes: int | None = None
    warmup: int = 5
    iters: int = 20
    device: DeviceName = "auto"
    out: Path = Path("traces")
    run_name: str | None = None

    def __post_init__(self) -> None:
        options.check_least(self, {"warmup": 0, "iters": 1})
        for size in self.sizes:
            if size < _MULTIPLE or size % _MULTIPLE:
                raise UsageError(f"--size {size}: expected a multiple of {_MULTIPLE}, which every dtype takes")
        options.check_run_name(self.run_name)

    def dtypes_on(self, device_type: str) -> tuple[GemmDtype, ...]:
        """The dtypes to measure on `cpu` or `cuda`."""
        usual: tuple[GemmDtype, ...] = ("float32", "bfloat16")
        if device_type == "cuda":
            usual = ("bfloat16", "float16", "float8_e4m3fn", "tf32", "float32")
        return self.dtypes or usual

    def sizes_on(self, device_type: str) -> tuple[int, ...]:
        """The sizes to measure: large enough for every core."""
        return self.sizes or ((4096, 8192, 16384) if device_type == "cuda" else (512, 1024))

    def copied_bytes_on(self, device_type: str) -> int:
        """Size of what is copied, much larger than any cache."""
        return self.copied_bytes or (2**30 if device_type == "cuda" else 2**28)

    def run_dir(self, device_type: str) -> Path:
        """The results' folder, named at the start."""
        return options.run_dir(self.out, self.run_name, f"gemm-{device_type}")

    def as_json(self) -> dict[str, Any]:
        """Every option, for gemm.json."""
        return options.as_json(self)
