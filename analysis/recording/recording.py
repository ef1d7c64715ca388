"""The content of a trace file, for all formats: columns of numbers, each name once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from ..core import markers
from ..core.expressions import MOST_LETTERS, cut_name
from ..core.tables.events import COMM_ARGUMENTS, EVENT_SORTS
from .header import Header
from .row_bytes import tables_bytes
from .values import Duration, Int64, Time

ANNOTATION_SORT = "annotations"
"""The sort of events that are no columns."""
NUMBER_BYTES = 8
Columns = dict[str, bytes]
"""Name of a column -> its values, as `core.tables.events` says: native 64 bit integers, MISSING where they are missing,
or doubles, NaN there. All columns of a kind are there, equally long."""


class Annotation(msgspec.Struct, array_like=True, frozen=True):
    """A CPU annotation of a step or collective, or a c10d operator. Times in us since the header's zero."""

    name: str
    thread: Int64
    ts: Time
    dur: Duration
    in_dims: list[Any] | None
    in_types: list[Any] | None
    in_values: list[Any] | None


if TYPE_CHECKING:
    CommRow = dict[str, Any]
else:
    _TYPES = {"integer": Int64, "string": str, "time": Time}
    _Declared = TypedDict(
        "_Declared",
        # What stands in a field of an event itself is known if it is there.
        {one.name: _TYPES[one.held] if one.field else _TYPES[one.held] | None for one in COMM_ARGUMENTS.columns},
        total=False,
    )

    class CommRow(_Declared, total=False):
        """Required keys of rows from a file or from another process."""

        source: Literal["kernel", "record_param_comms"]


class Unread(msgspec.Struct, frozen=True):
    """Events of an unknown category: their number, whether any names a device, and one process."""

    events: int
    is_of_device: bool
    pid: int


def with_unread(before: dict[str, Unread], more: dict[str, Unread]) -> dict[str, Unread]:
    """Add events of unknown categories."""
    unread = dict(before)
    for category, events in more.items():
        old = unread.get(category, Unread(0, is_of_device=False, pid=events.pid))
        unread[category] = Unread(old.events + events.events, old.is_of_device or events.is_of_device, old.pid)
    return unread


class Events(msgspec.Struct, kw_only=True):
    """Successive events as columns. Times are in us since the header's zero; missing integers are MISSING.

    `names` and `kinds` belong together; the column `name` of activities counts into them, that of operators,
    `modules`, `functions` and `counters` into `operator_names`, that of `runtime`, which are calls of the CUDA
    runtime, into `call_names`. With details, the column `inputs` of operators counts into the list of that name: each
    is the JSON of shapes, types and some values, as in `formats.kineto.arguments`. A backward operator has the
    `sequence` number of its forward one, and the `forward_thread` that called that.
    `stream_waits` are those that made a stream wait for an event, with the correlation of the call that recorded it.
    `pids` are the processes of the first annotation, the first launch, the first operator that hands a collective over,
    and the first other one; None where there is none. `lists_bytes` is what shapes and other lists in `annotations`
    take at most; `repaired_bytes` are not JSON, and were read as they were meant. `window_end` is when the profiler
    stopped, if Kineto says so. `launched` counts the calls that launched work of a device, in a file that shows no such
    work;
    `unread` are the categories that are not known; `processes` are the names of processes. The zero of these times is
    `zero_us` later than the header's.
    """

    pids: list[Int64 | None]
    names: list[str]
    kinds: list[str]
    operator_names: list[str]
    call_names: list[str]
    activities: Columns
    launches: Columns
    runtime: Columns
    operators: Columns
    memory: Columns
    stream_waits: Columns
    modules: Columns
    functions: Columns
    counters: Columns
    annotations: list[Annotation]
    comm_args: list[CommRow]
    gloo_threads: list[Int64]
    lists_bytes: int = 0
    repaired_bytes: int = 0
    window_end: Time | None = None
    launched: int = 0
    unread: dict[str, Unread] = {}
    processes: list[str] = []
    inputs: list[str] = []
    zero_us: int = 0


class Extent(msgspec.Struct, frozen=True):
    """How much of a file was read, in unpacked bytes.

    Each of the `read_bytes` is part of an event or of the header, as far as JSON goes. `not_understood_bytes` are those
    from the damage on, and those repaired before it; 0 for a sound file, None where a broken packing hides how many
    there are. `verified_events` were decoded a second time; None where that was not asked for.
    """

    read_bytes: int
    not_understood_bytes: int | None = 0
    verified_events: int | None = None


class RawTrace(Events, kw_only=True):
    """The content of one file. Operators are read on CPU runs or with `details`, as are allocations and calls.

    `damage` says what ended the reading early, None for a sound file; `notes` are remarks for the user. It is
    `detailed` if operators, allocations and calls were to be read.
    """

    header: Header
    extent: Extent
    damage: str | None = None
    notes: list[str] = []
    detailed: bool = False

    @property
    def pid(self) -> int | None:
        """The traced process, if its events name it."""
        return next((pid for pid in self.pids if pid is not None), None)

    @property
    def zero_ns(self) -> int:
        """Unix time of the events' time 0, in ns."""
        return self.header.base_ns + self.zero_us * 1000

    @property
    def needed_bytes(self) -> int:
        """Upper bound of its memory with all tables made from it, in bytes."""
        return self.lists_bytes + tables_bytes(
            **{sort: len(getattr(self, sort)["ts"]) // NUMBER_BYTES for sort in EVENT_SORTS},
            annotations=len(self.annotations),
            calls=len(self.comm_args),
            names=len(self.names) + len(self.operator_names) + len(self.call_names) + len(self.inputs),
            letters=sum(map(len, (*self.names, *self.operator_names, *self.call_names, *self.inputs))),
        )


def with_bounded_names(raw: RawTrace) -> RawTrace:
    """The content with no name longer than MOST_LETTERS: on longer ones, regular expressions take long."""
    texts = (raw.names, raw.operator_names, raw.call_names, [annotation.name for annotation in raw.annotations])
    if max((len(name) for names in texts for name in names), default=0) <= MOST_LETTERS:
        return raw
    names, operator_names, call_names, _ = (list(map(cut_name, names)) for names in texts)
    annotations = [msgspec.structs.replace(one, name=cut_name(one.name)) for one in raw.annotations]
    return msgspec.structs.replace(
        raw, names=names, operator_names=operator_names, call_names=call_names, annotations=annotations
    )


def raw_trace(
    events: Events, header: Header, extent: Extent, damage: str | None = None, *, details: bool = False
) -> RawTrace:
    """Make the content of a file from its events, without unneeded columns."""
    kept = {name: getattr(events, name) for name in Events.__struct_fields__}
    if events.activities["ts"] and not details:
        kept["operators"], kept["operator_names"], kept["inputs"] = dict.fromkeys(events.operators, b""), [], []
    if events.activities["ts"]:
        kept["pids"] = events.pids[:3]  # whether other operators are read depends on the layout
        kept["launched"] = 0
    kept["processes"], kept["unread"] = [], {}  # of these a reader makes notes, or errors
    # The order in which a reader finds them depends on how it divides the file.
    kept["annotations"] = sorted(events.annotations, key=_place_of)
    kept["comm_args"] = sorted(events.comm_args, key=lambda args: str(args["source"]))
    unknown, repaired = extent.not_understood_bytes, events.repaired_bytes + header.repaired_bytes
    whole = msgspec.structs.replace(extent, not_understood_bytes=None if unknown is None else unknown + repaired)
    return RawTrace(**kept, header=header, extent=whole, damage=damage, detailed=details)


def _place_of(annotation: Annotation) -> int:
    begins = (markers.C10D, markers.LOADING)
    return next((place for place, begin in enumerate(begins) if annotation.name.startswith(begin)), -1)


def latest(*times: float | None) -> float | None:
    """The latest of the known times."""
    return max((time for time in times if time is not None), default=None)
