"""run.json: what ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Struct

from .limits import Count, FromZero, Ranks
from .machine import Versions
from .modes import Mode
from .record import SCHEMA_VERSION, Doc, People, Record

RUN_FILE = "run.json"


@dataclass(frozen=True)
class ModelSize:
    """The whole model."""

    name: Annotated[str | None, People("name of the model, or of its class")]
    parameters: Annotated[FromZero | None, Doc("number of parameters", unit="elements", always=True)]
    bytes: Annotated[FromZero | None, Doc("size of the parameters", always=True)]
    buffer_bytes: Annotated[int | None, People("size of the buffers, which DDP broadcasts; null if not known")]


@dataclass(frozen=True, kw_only=True)
class RunFile(Record):
    """Written by rank 0 when the capture begins."""

    schema_version: Annotated[int, Doc("version of this layout", reads=Any)] = SCHEMA_VERSION
    run: Annotated[str, People("name of the run directory when it was made")]
    created_utc: Annotated[str, Doc("when the capture began, ISO 8601", unit="UTC", reads=str | None)]
    command: Annotated[Sequence[str], People("the command line")]
    config: Annotated[
        Mapping[str, Any], Doc("options of the command by name; for `capture()`, the `config` it was given")
    ]
    world_size: Annotated[Ranks | None, Doc("number of ranks in the job", always=True)]
    backend: Annotated[str | None, People("backend of the default process group; null if there is none")]
    model: Annotated[ModelSize | None, People("size of the model; null if not known")]
    versions: Annotated[Versions, People("versions that rank 0 ran with")]
    commit: Annotated[str | None, Doc("git commit that the script was checked out at", may_lack=True)] = None


class SweptOptions(Struct, frozen=True):
    """The options that timings need, in `config` of a cell of a sweep."""

    model: str
    parallel: Mode
    batch_size: Count | None = None
    image_size: Count | None = None


class SweptRun(Struct, frozen=True):
    """What timings need of a cell's run.json."""

    config: SweptOptions
    world_size: Ranks


class TrainedOptions(Struct, frozen=True):
    """The options that a comparison of trainings needs, in `config`."""

    model: str
    parallel: str
    data: str


class TrainedRun(Struct, frozen=True):
    """What a comparison of trainings needs of run.json."""

    config: TrainedOptions
