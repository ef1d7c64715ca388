"""lab.json: the experiments of a lab, and how each of their commands ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from .record import Doc, Needed, People, Record

LAB_FILE = "lab.json"

TaskStatus = Literal["open", "done", "failed"]
ExperimentName = Literal[
    "batch-size", "speedup", "communication", "all-reduce", "large-batch", "layers", "swap", "capacity"
]


@dataclass(frozen=True)
class LabTask:
    """One command that measures. Two experiments may need the same one: it runs once."""

    folder: Annotated[str, Needed("name of the folder that it writes, beside lab.json")]
    arguments: Annotated[
        list[str], Needed("the words after `commtrace`, but for `--out` and `--run-name`, which say where")
    ]
    expected_s: Annotated[float, People("how long it was expected to take")]
    status: Annotated[TaskStatus, Needed("how it ended; `open` until it is run")] = "open"
    reason: Annotated[str | None, Doc("why it failed")] = None
    dur_s: Annotated[float | None, Doc("how long it took; null until it is run")] = None


@dataclass(frozen=True)
class LabExperiment:
    """One question, and the commands whose measurements answer it."""

    name: Annotated[ExperimentName, Needed("name of the experiment")]
    tasks: Annotated[list[LabTask], Needed("its commands, in order")]
    impossible: Annotated[str | None, Doc("why this machine cannot answer it; null if it can")] = None


@dataclass(frozen=True)
class LabRecord(Record):
    """Every planned experiment. Replaced as a whole after each command; the same `commtrace lab` reads it again."""

    schema_version: Annotated[int, Needed("version of this layout")]
    created_utc: Annotated[str, Needed("when the lab began, ISO 8601", unit="UTC")]
    machine: Annotated[str, Needed("the machine in words: host, cores or GPUs, memory")]
    options: Annotated[list[str], People("options that the sizes were chosen by")]
    experiments: Annotated[Sequence[LabExperiment], Needed("the experiments, in order")]
