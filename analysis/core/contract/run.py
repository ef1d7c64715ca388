"""run.json: the options of a run that are read."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .limits import Count, Ranks
from .modes import Mode


class RunFile(Struct, frozen=True):
    """What is read beside traces; all of it is optional."""

    schema_version: Any = None
    config: dict[str, Any] = {}


class SweptOptions(Struct, frozen=True):
    """The options of a cell of a sweep."""

    model: str
    parallel: Mode
    batch_size: Count | None = None
    image_size: Count | None = None


class SweptRun(Struct, frozen=True):
    """What timings need."""

    config: SweptOptions
    world_size: Ranks
    schema_version: Any = None


class TrainedOptions(Struct, frozen=True):
    """The options of a training."""

    model: str
    parallel: str
    data: str


class TrainedRun(Struct, frozen=True):
    """What a comparison of trainings needs."""

    config: TrainedOptions
    schema_version: Any = None
