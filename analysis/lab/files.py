"""Read layers.json, capacity.json and lab.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...contract.lab import LAB_FILE, LabRecord
from ...contract.reading import OtherVersion, typed
from ...contract.single import CAPACITY_FILE, LAYERS_FILE, CapacityEntry, CapacityFile, LayerEntry, LayersFile
from ..core.schema import PlainTable, Row
from ..core.small_files import NotJson, read_json
from ..core.tables.lab import CAPACITY, LAYERS, TIME_RATIOS
from ..errors import DamagedMeasurement, NothingMeasured, UnreadableFile

_SIDES = 2
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Layers:
    """A file of `commtrace layers` as tables: LAYERS, and TIME_RATIOS if two models were compared."""

    layers: PlainTable
    ratios: PlainTable
    incomplete: str | None
    """Why not every layer was measured; None if all were."""


def read_layers(folder: Path) -> Layers:
    """Read layers.json of a folder. Raises UnreadableFile, DamagedMeasurement, NothingMeasured."""
    file = _record(folder / LAYERS_FILE, LayersFile)
    if not file.layers:
        raise NothingMeasured(f"{folder}: no layer was measured: {file.reason or 'it lists none'}; run `layers` again")
    if file.ratios and len(file.layers) != _SIDES:
        raise DamagedMeasurement(f"{folder / LAYERS_FILE}: compares two models, but lists {len(file.layers)}")
    return Layers(
        LAYERS.plain(map(_row, file.layers)),
        TIME_RATIOS.plain(
            {"passes": r.passes, "ratio": r.ratio, "low_ratio": r.low, "high_ratio": r.high, "pairs": r.pairs}
            for r in file.ratios
        ),
        None if file.complete else file.reason or "it was stopped",
    )


@dataclass(frozen=True)
class Capacity:
    """A file of `commtrace capacity` as the table CAPACITY."""

    capacity: PlainTable
    incomplete: str | None
    """Why the search has not ended; None if it has."""


def read_capacity(folder: Path) -> Capacity:
    """Read capacity.json of a folder. Raises UnreadableFile, DamagedMeasurement, NothingMeasured."""
    file = _record(folder / CAPACITY_FILE, CapacityFile)
    if not file.capacities:
        why = file.reason or "it lists none"
        raise NothingMeasured(f"{folder}: no stack was found: {why}; run `capacity` again")
    return Capacity(
        CAPACITY.plain(map(_capacity_row, file.capacities)),
        None if file.complete else file.reason or "it was stopped",
    )


def read_lab(folder: Path) -> LabRecord:
    """Read lab.json of a folder. Raises UnreadableFile, DamagedMeasurement, NothingMeasured."""
    lab = _record(folder / LAB_FILE, LabRecord)
    for name in (task.folder for experiment in lab.experiments for task in experiment.tasks):
        if Path(name).name != name or name == "..":
            raise DamagedMeasurement(f"{folder / LAB_FILE}: expected names of folders beside it, found {name}")
    return lab


def _capacity_row(entry: CapacityEntry) -> Row:
    known = [peak for peak in entry.peak_bytes if peak is not None]
    return {
        "devices": entry.devices,
        "fits": entry.fits,
        "split": ", ".join(f"{share.conv}+{share.linear}" for share in entry.shares) or None,
        "conv_layers": entry.conv,
        "linear_layers": entry.linear,
        "step_ns": _rounded(entry.step_mean_ns),
        "step_spread_ns": _rounded(entry.step_spread_ns),
        "step_min_ns": entry.step_min_ns,
        "step_max_ns": entry.step_max_ns,
        "peak_bytes": max(known, default=None),
        "note": "; ".join(entry.notes) or None,
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _row(entry: LayerEntry) -> Row:
    times = {
        name: getattr(entry, f"{passes}_{what}_ns")
        for name, passes, what in (
            ("forward_ns", "forward", "mean"),
            ("forward_spread_ns", "forward", "spread"),
            ("backward_ns", "backward", "mean"),
            ("backward_spread_ns", "backward", "spread"),
        )
    }
    return {
        "layer": entry.layer,
        "kind": entry.kind,
        "input": "x".join(map(str, entry.input_shape)),
        **{name: _rounded(value) for name, value in times.items()},
        "parameters_bytes": entry.parameter_bytes,
        "saved_bytes": entry.saved_bytes,
        "activation_bytes": entry.activation_bytes,
        "formula_bytes": entry.formula_activation_bytes,
        "peak_bytes": entry.peak_bytes,
        "power_w": entry.power_w,
        "note": entry.reason or (f"power: {entry.power_reason}" if entry.power_reason else None),
    }


def _record(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        content: Any = read_json(path)
        return typed(content, kind)
    except FileNotFoundError as err:
        raise NothingMeasured(f"{path}: is not there; expected what `commtrace {path.stem}` writes") from err
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except OtherVersion as err:
        raise DamagedMeasurement(f"{path}: {err}") from err
    except NotJson as err:
        raise DamagedMeasurement(f"{path}: is damaged: {err}; expected JSON: copy it again, or measure again") from err
    except msgspec.ValidationError as err:
        raise DamagedMeasurement(
            f"{path}: is not as `commtrace {path.stem}` writes it: {err}; repair it, or measure again"
        ) from err
