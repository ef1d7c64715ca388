"""sweep.json: the cells of a sweep, and how each of them ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .fields import Doc, People, Record

Status = Literal["open", "done", "out_of_memory", "out_of_data", "failed", "skipped"]


@dataclass(frozen=True)
class SweepCell:
    """One point of the grid, and what became of it."""

    run: Annotated[str, Doc("name of its run directory, beside sweep.json")]
    model: Annotated[str, Doc("model")]
    parallel: Annotated[str, Doc("parallel mode")]
    workers: Annotated[int, Doc("ranks, or the devices of dp")]
    batch_size_per_rank: Annotated[int, Doc("batch size, as --batch-size counts it", unit="samples")]
    status: Annotated[Status, Doc("how it ended; `open` until it is run")] = "open"
    reason: Annotated[str | None, Doc("why it is not done")] = None
    dur_s: Annotated[float | None, People("how long it took in all; null until it is run")] = None


@dataclass(frozen=True)
class SweepRecord(Record):
    """The options and every planned cell, replaced whole after each of them. A sweep that is resumed reads it again."""

    schema_version: Annotated[int, Doc("version of this layout")]
    sweep: Annotated[str, People("name of the sweep's directory when it was made")]
    created_utc: Annotated[str, People("when it was made, ISO 8601", unit="UTC")]
    command: Annotated[list[str], People("the command line")]
    config: Annotated[Any, People("options of the sweep, each under its own name")]
    cells: Annotated[Sequence[SweepCell], Doc("the grid")]
