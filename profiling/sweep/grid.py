"""The options of a sweep, from a TOML file and the command line, and the cells of its grid. Knows no torch."""

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ...contract.modes import Mode
from ...contract.sweep import Status, SweepCell
from ..base.commands.choices import CIFAR10_SAMPLES, CIFAR_IMAGE_SIZE, AmpName, DataName, DeviceName, ModelName
from ..base.schedule import Schedule
from ..errors import UsageError
from ..machine.memory import parse_bytes
from ..modes import DEFAULT_MODE
from ..train.config import FEW_STEPS_LR, OptimizerConfig, TrainConfig

# What running a cell once more would not change.
FINAL: tuple[Status, ...] = ("done", "out_of_memory", "out_of_data")
EXHAUSTED: tuple[Status, ...] = ("out_of_memory", "out_of_data")
# What a sweep may be resumed with another value of; all else would make cells that cannot be compared.
GRID = ("model", "parallel", "batch_size", "workers", "batch_size_until_oom")
BATCH_SIZE_FACTOR = 4
_WORDS = {"int": "a whole number", "str": "text", "bool": "true or false", "array": "a list"}
_PLACES = ("out", "run_name")  # options of a file that say where, not what

_AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
_AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class SweepConfig:
    """A grid, and options of `train` that are the same in all cells, under their own names."""

    model: tuple[ModelName, ...] = ("resnet18",)
    parallel: tuple[Mode, ...] = (DEFAULT_MODE,)
    batch_size: tuple[_AtLeast1, ...] = (8, 32)
    workers: tuple[_AtLeast1, ...] = (1, 2)
    batch_size_until_oom: bool = False
    steps_per_epoch: _AtLeast0 = 4
    data: DataName = "synthetic"
    data_root: str = "data"
    image_size: _AtLeast1 = CIFAR_IMAGE_SIZE
    dataset_samples: _AtLeast1 = CIFAR10_SAMPLES
    seed: int = 0
    device: DeviceName = "auto"
    amp: AmpName | None = None
    channels_last: bool = False
    bucket_cap_mb: _AtLeast0 = TrainConfig.bucket_cap_mb
    memory_limit: str | None = None
    wait: _AtLeast1 = 1
    warmup: _AtLeast0 = 1
    active: _AtLeast1 = 2


@dataclass(frozen=True)
class Cell(SweepCell):
    """One point of the grid, and its result."""

    model: ModelName
    parallel: Mode

    @property
    def series(self) -> tuple[str, str, int]:
        """The key of cells that differ only in batch size."""
        return self.model, self.parallel, self.workers

    def larger(self) -> "Cell":
        """The next cell if the batch size grows until memory or data run out."""
        return cell(self.model, self.parallel, self.workers, self.batch_size_per_rank * BATCH_SIZE_FACTOR)


def cell(model: ModelName, parallel: Mode, workers: int, batch_size: int) -> Cell:
    """A cell that has not been run."""
    return Cell(f"{model}-{parallel}-w{workers}-b{batch_size}", model, parallel, workers, batch_size)


def cells(config: SweepConfig) -> list[Cell]:
    """The grid, smaller batches first."""
    points = product(config.model, config.parallel, config.workers, sorted(config.batch_size))
    return [cell(*point) for point in points]


def asked_for(config: SweepConfig, cell: Cell) -> bool:
    """Whether `cell` is in the grid, or in its extension by growing batches."""
    return (
        cell.model in config.model
        and cell.parallel in config.parallel
        and cell.workers in config.workers
        and (
            cell.batch_size_per_rank in config.batch_size
            or (config.batch_size_until_oom and cell.batch_size_per_rank > max(config.batch_size))
        )
    )


def with_larger(done: Sequence[Cell], config: SweepConfig) -> list[Cell]:
    """Add the next larger batch of each finished series, if batches grow until exhaustion."""
    if not config.batch_size_until_oom:
        return list(done)
    largest = {each.series: each for each in sorted(done, key=lambda each: each.batch_size_per_rank)}
    grown = []
    for each in done:
        grown.append(each)
        if each is largest[each.series] and each.status == "done" and asked_for(config, each):
            grown.append(each.larger())
    return grown


def train_config(config: SweepConfig, cell: Cell, folder: Path) -> TrainConfig:
    """The options of the run of `cell`. Raises UsageError if they contradict each other."""
    schedule = Schedule(config.wait, config.warmup, config.active)
    return TrainConfig(
        schedule,
        schedule.total_steps,
        model=cell.model,
        data=config.data,
        data_root=Path(config.data_root),
        image_size=config.image_size,
        parallel=cell.parallel,
        batch_size=cell.batch_size_per_rank,
        bucket_cap_mb=config.bucket_cap_mb,
        optimizer=OptimizerConfig(FEW_STEPS_LR[cell.model]),
        seed=config.seed,
        device=config.device,
        amp=config.amp,
        channels_last=config.channels_last,
        out=folder,
        run_name=cell.run,
        dataset_samples=config.dataset_samples,
        warmup_epochs=1,
        timed_epochs=1,
        steps_per_epoch=config.steps_per_epoch,
        memory_limit_bytes=None if config.memory_limit is None else parse_bytes(config.memory_limit),
    )


def train_arguments(config: SweepConfig, cell: Cell, folder: Path) -> list[str]:
    """The arguments of `train` that repeat this run."""
    steps = Schedule(config.wait, config.warmup, config.active).total_steps
    of_cell = {
        "model": cell.model,
        "parallel": cell.parallel,
        "workers": cell.workers,
        "batch_size": cell.batch_size_per_rank,
    }
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in GRID}
    epochs = {"warmup_epochs": 1, "timed_epochs": 1, "steps": steps, "out": folder, "run_name": cell.run}
    given = {
        key: value for key, value in (of_cell | shared | epochs).items() if value is not None and value is not False
    }
    return [part for key, value in given.items() for part in _parts(key, value)]


def _parts(key: str, value: object) -> list[str]:
    return [option(key)] if value is True else [option(key), str(value)]


def option(key: str) -> str:
    """The spelling of a key on the command line."""
    return f"--{key.replace('_', '-')}"


_TYPES = get_type_hints(SweepConfig, include_extras=True) | {"out": str, "run_name": str}


def checked(key: str, value: object, source: str, *, strict: bool) -> Any:
    """Convert `value` for the option `key`; `strict` takes no number from a text. Raises UsageError with the source."""
    kind = _TYPES[key]
    several = getattr(kind, "__origin__", None) is tuple
    values = value if isinstance(value, list) or not several else [value]
    try:
        converted = msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as err:
        expected = _expected(kind.__args__[0] if several else kind, str(err))
        raise UsageError(f"{source}{option(key)}: expected {expected}, found {_shown(value)}") from err
    if several and not converted:
        raise UsageError(f"{source}{option(key)}: expected at least one, found none")
    return tuple(dict.fromkeys(converted)) if several else converted


def from_command_line(given: Mapping[str, object]) -> dict[str, Any]:
    """Options by key; lists may be repeated or joined by commas. Raises UsageError."""
    split = {
        key: [part.strip() for text in value for part in str(text).split(",")]
        if isinstance(value, list | tuple)
        else value
        for key, value in given.items()
    }
    return {key: checked(key, value, "", strict=False) for key, value in split.items()}


def from_file(path: Path) -> dict[str, Any]:
    """Read a TOML file whose keys are the options without dashes. Raises UsageError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise UsageError(f"--config {path}: cannot be read: {err.strerror or err}") from err
    except ValueError as err:
        raise UsageError(f"--config {path}: expected TOML in UTF-8: {err}") from err
    names = {key.replace("_", "-"): key for key in _TYPES}
    for key in content:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0)[0]
            raise UsageError(f"--config {path}: unknown key {key!r}; the nearest is {near!r}")
    return {names[key]: checked(names[key], value, f"{path}: ", strict=True) for key, value in content.items()}


def changed(config: SweepConfig, given: Mapping[str, Any]) -> SweepConfig:
    """`config` with these options; where to write is not one of them."""
    return replace(config, **{key: value for key, value in given.items() if key not in _PLACES})


def contradictions(recorded: SweepConfig, config: SweepConfig) -> list[str]:
    """Options outside the grid that differ, such as `--seed 0, now 1`."""
    pairs = ((field.name, getattr(recorded, field.name), getattr(config, field.name)) for field in fields(config))
    return [f"{option(key)} {old}, now {new}" for key, old, new in pairs if key not in GRID and old != new]


def _expected(kind: Any, message: str) -> str:
    """Reword msgspec's `message` on what was expected of `kind`; it does not name choices."""
    names = [name for each in (kind, *get_args(kind)) for name in get_args(each) if isinstance(name, str)]
    if names:
        return f"one of {', '.join(names)}"
    match = re.search(r"Expected `(\w+)[^`]*`( >= \d+)?", message)
    assert match is not None, message
    return _WORDS[match[1]] + (match[2] or "")


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)
