"""Files of `layers` and `capacity`, made in memory: write_layers(tmp_path, VGG), write_capacity(tmp_path)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweep_builders import write_json

NO_GPU = "NVML knows NVIDIA GPUs only: not a CUDA device"


def layer(name: str, kind: str, parameters: int, kept: int | None, power: float | None = None) -> dict[str, Any]:
    """An entry of layers.json; one without memory ran out of it."""
    times = {
        f"{passes}_{what}_ns": None if kept is None else 2e6
        for passes in ("forward", "backward")
        for what in ("mean", "spread")
    }
    return {
        "layer": name, "kind": kind, "input_shape": [8, 3, 32, 32], "parameter_bytes": parameters,
        "formula_activation_bytes": kept, "saved_bytes": kept, "activation_bytes": kept,
        "peak_bytes": None if kept is None else 3 * kept + parameters, "power_w": power,
        "power_reason": None if power else NO_GPU, "reason": "out of memory: 7 GB" if kept is None else None, **times,
    }  # fmt: skip


VGG = [
    layer("(model)", "VGG", 553_000_000, 6_700_000),
    layer("features.0", "Conv2d(3, 64, kernel_size=(3, 3))", 7_168, 1_000_000),
    layer("features.1", "ReLU(inplace=True)", 0, 0),
    layer("classifier.0", "Linear(in_features=25088, out_features=4096, bias=True)", 411_000_000, 65_536),
]


def write_layers(folder: Path, layers: list[dict[str, Any]], ratios: Any = (), reason: str | None = None) -> Path:
    content = {
        "schema_version": 1,
        "complete": reason is None,
        "reason": reason,
        "layers": layers,
        "ratios": list(ratios),
    }
    folder.mkdir(exist_ok=True, parents=True)
    write_json(folder / "layers.json", content)
    return folder


def ratio(middle: float, low: float | None = None, high: float | None = None) -> list[dict[str, Any]]:
    return [
        {"passes": passes, "pairs": 10, "ratio": middle, "low": low, "high": high}
        for passes in ("forward", "backward", "both")
    ]


def write_swap(folder: Path, *numbers: Any) -> Path:
    whole = [layer(f"({name})", "VGG", 553_000_000, 6_700_000) for name in ("vgg16", "vgg16-swapped")]
    return write_layers(folder, whole, ratio(*numbers))


def write_capacity(folder: Path, reason: str | None = None) -> Path:
    """A stack that fits on one device, a larger one on two, and one that does not fit on three."""

    def found(devices: int, shares: list[tuple[int, int]], step_ns: int | None) -> dict[str, Any]:
        return {
            "devices": devices, "fits": bool(shares), "shares": [{"conv": c, "linear": n} for c, n in shares],
            "conv": sum(c for c, _ in shares) if shares else None,
            "linear": sum(n for _, n in shares) if shares else None,
            "notes": [f"device {number} of {devices}: {c}+{n} fits" for number, (c, n) in enumerate(shares)],
            "step_mean_ns": step_ns, "step_spread_ns": None, "step_min_ns": step_ns, "step_max_ns": step_ns,
            "times_ns": [], "peak_bytes": [number * 10**6 for number in range(1, len(shares))] + [None],
        }  # fmt: skip

    capacities = [found(1, [(61, 62)], 250_000_000), found(2, [(84, 0), (54, 62)], 410_500_000), found(3, [], None)]
    content = {"schema_version": 1, "complete": reason is None, "reason": reason, "capacities": capacities}
    folder.mkdir(exist_ok=True, parents=True)
    write_json(folder / "capacity.json", content)
    return folder
