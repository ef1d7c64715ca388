"""sweep.json: the cells of a sweep, and how each of them ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .limits import Count, Ranks
from .modes import Mode
from .record import Doc, Needed, People, Record

SWEEP_FILE = "sweep.json"

Status = Literal["open", "done", "out_of_memory", "out_of_data", "failed", "skipped"]


@dataclass(frozen=True)
class SweepCell:
    """One cell of the grid, and how it ended."""

    run: Annotated[str, Needed("name of the run directory, beside sweep.json")]
    model: Annotated[str, Needed("model")]
    parallel: Annotated[Mode, Needed("parallel mode")]
    workers: Annotated[Ranks, Needed("number of ranks, or of devices with dp")]
    batch_size_per_rank: Annotated[Count, Needed("batch size, as --batch-size counts it", unit="samples")]
    status: Annotated[Status, Needed("how the cell ended; `open` until it is run")] = "open"
    reason: Annotated[str | None, Doc("why the cell is not done")] = None
    dur_s: Annotated[float | None, People("how long the cell took in all; null until it is run")] = None


@dataclass(frozen=True)
class SweepRecord(Record):
    """The options and every planned cell. Replaced as a whole after each cell; a resumed sweep reads it again."""

    schema_version: Annotated[int, Needed("version of this layout")]
    sweep: Annotated[str, People("name of the sweep's directory when the sweep began")]
    created_utc: Annotated[str, People("when the sweep began, ISO 8601", unit="UTC")]
    command: Annotated[list[str], People("the command line")]
    config: Annotated[Any, People("options of the sweep by name")]
    cells: Annotated[Sequence[SweepCell], Needed("the cells of the grid")]
