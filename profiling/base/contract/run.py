"""run.json: what ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from .fields import Doc, People, Record
from .machine import Versions

SCHEMA_VERSION = 1
"""Of run.json, *.meta.json, training.json and sweep.json. The analysis refuses a version that it does not know."""


@dataclass(frozen=True)
class ModelSize:
    """The whole model."""

    name: Annotated[str | None, People("name of the model, or of its class")]
    parameters: Annotated[int, Doc("number of parameters", unit="elements")]
    bytes: Annotated[int, Doc("size of the parameters")]
    buffer_bytes: Annotated[int | None, People("size of the buffers, which DDP broadcasts; null if not known")]


@dataclass(frozen=True, kw_only=True)
class RunFile(Record):
    """Written by rank 0 when the capture begins."""

    schema_version: Annotated[int, Doc("version of this layout")] = SCHEMA_VERSION
    run: Annotated[str, People("name of the run directory when it was made")]
    created_utc: Annotated[str, People("when the capture began, ISO 8601", unit="UTC")]
    command: Annotated[Sequence[str], People("the command line")]
    config: Annotated[
        Mapping[str, Any], Doc("options of the command by name; for `capture()`, the `config` it was given")
    ]
    world_size: Annotated[int, Doc("number of ranks in the job")]
    backend: Annotated[str | None, People("backend of the default process group; null if there is none")]
    model: Annotated[ModelSize | None, People("size of the model; null if not known")]
    versions: Annotated[Versions, People("versions that rank 0 ran with")]
