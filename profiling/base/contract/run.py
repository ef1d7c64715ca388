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
    """The model, all of it."""

    name: Annotated[str | None, People("its name, or that of its class")]
    parameters: Annotated[int, Doc("number of parameters", unit="elements")]
    bytes: Annotated[int, Doc("size of the parameters")]
    buffer_bytes: Annotated[int | None, People("size of the buffers, which DDP broadcasts; null where not known")]


@dataclass(frozen=True, kw_only=True)
class RunFile(Record):
    """Written by rank 0 when the capture begins."""

    schema_version: Annotated[int, Doc("version of this layout")] = SCHEMA_VERSION
    run: Annotated[str, People("name of the run directory when it was made")]
    created_utc: Annotated[str, People("when the capture began, ISO 8601", unit="UTC")]
    command: Annotated[Sequence[str], People("the command line")]
    config: Annotated[
        Mapping[str, Any], Doc("options of the command, each under its own name; of `capture()` what it was given")
    ]
    world_size: Annotated[int, Doc("ranks of the job")]
    backend: Annotated[str | None, People("backend of the default process group; null without one")]
    model: Annotated[ModelSize | None, People("size of the model; null where it is not known")]
    versions: Annotated[Versions, People("versions that rank 0 ran with")]
