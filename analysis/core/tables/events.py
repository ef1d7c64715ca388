"""Every sort of event in a trace, once: its columns, what they hold, and where they stand in Kineto's JSON.

From these come what Kineto's reader decodes, what recordings keep and check, what an event takes in memory, and the
tables of events. A new column is one line here, with `since`. Conventions of tables: `communication.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from ..schema import Schema
from .columns import CYCLE, DEVICE, PG_RANKS, RANK, STEP

_VALUE_BYTES = 8
_NULLABLE_BYTES = 9
"""Of a value that may be NA in a table: a byte says whether it is."""
MOST_DEVICE_BYTES = (1 << 44) - 1
"""17 TB: more than any device has, and few enough to be summed."""

MOST_ELEMS = 1 << 53
PLAUSIBLE_RANKS = 1 << 24
"""No job has more; a larger number is not a count of ranks."""

Held = Literal["integer", "text", "time", "duration", "number", "string"]
"""What readers and recordings hold of an event, in 64 bits: an integer; the number of a text, in a list of texts that
the file has once; a moment since the file's zero, or a duration, both in us; or a number that may have decimals. The
first two are integers, the others doubles. Rows that are not columns have texts of their own, which are strings."""


@dataclass(frozen=True)
class EventColumn:
    """A value that each event of a sort has.

    In tables it is `shown`, of this pandas dtype; where that is empty, it is in none. Where `held` is None, it is not
    in traces: who makes the table fills it. Readers and recordings call it `name`; by default, as tables do. Kineto
    writes it as the first of these `keys` among an event's arguments, or as a `field` of the event itself, which also
    counts where no argument does. If it is `strict`, an event with anything else there is malformed; otherwise, a value
    that is no number is not known.

    What `nsight` names has it in the tables of an export of Nsight Systems that tell what a device did.

    A text counts into the list `texts` of the file. In tables, values that are not above `above`, or exceed `most`, are
    NA, and the others are divided by `per`. Columns that were added later count up in `since`: recordings have them
    where they say something, as older ones have none. If it is `detailed`, it is read with details only.
    """

    shown: str
    dtype: str
    meaning: str
    held: Held | None = None
    name: str = ""
    keys: tuple[str, ...] = ()
    field: str | None = None
    nsight: str | None = None
    strict: bool = False
    texts: str | None = None
    above: float = -math.inf
    most: float = math.inf
    per: int = 1
    since: int = 0
    detailed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.shown)

    @property
    def is_integer(self) -> bool:
        """Whether readers and recordings hold integers, and not doubles."""
        return self.held in ("integer", "text")


class EventTable(NamedTuple):
    """A table of events of one sort: its name, what a row is, and the columns that it shows; all if none are named."""

    name: str
    rows: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class EventSort:
    """A sort of events, their columns and the tables made of them; `one` is what people call such an event.

    Beside its columns, an event takes `working_bytes` at most while tables are made, as measured. If it is `detailed`,
    such events are read with details only; if it is `later`, older recordings do not have the sort.
    """

    name: str
    one: str
    columns: tuple[EventColumn, ...]
    tables: tuple[EventTable, ...]
    working_bytes: int
    detailed: bool = False
    later: bool = False

    @cached_property
    def held(self) -> tuple[EventColumn, ...]:
        """What readers and recordings hold: integers before doubles, as in recordings."""
        return tuple(sorted((one for one in self.columns if one.held), key=lambda one: not one.is_integer))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that held columns have in recordings."""
        return frozenset(one.name for one in self.held)

    @property
    def has_durations(self) -> bool:
        """Whether such events take time."""
        return any(one.held == "duration" for one in self.held)

    @cached_property
    def event_bytes(self) -> int:
        """Upper bound of the memory of an event with all tables made from it, in bytes."""
        return _VALUE_BYTES * len(self.held) + sum(map(_shown_bytes, self.schemas)) + self.working_bytes

    @cached_property
    def schemas(self) -> tuple[Schema, ...]:
        """The schemas of its tables."""
        of_columns = {one.shown: (one.dtype, one.meaning) for one in self.columns if one.shown}
        return tuple(
            Schema(
                table.name,
                table.rows,
                {"rank": RANK, "cycle": CYCLE, **{name: of_columns[name] for name in table.shown or of_columns}},
            )
            for table in self.tables
        )


def _shown_bytes(schema: Schema) -> int:
    has_na = ("Int64", "Float64")
    return sum(_NULLABLE_BYTES if dtype in has_na else _VALUE_BYTES for dtype, _ in schema.columns.values())


_THREAD = EventColumn("thread", "int64", "thread id", "integer", field="tid")
_START = EventColumn("start_ns", "int64", "start", "time", name="ts", field="ts")
_DUR = EventColumn("dur_ns", "int64", "duration", "duration", name="dur", field="dur")
_ID = EventColumn("correlation", "Int64", "of the call", "integer", keys=("correlation",), strict=True)
_EXTERNAL_KEYS = ("External id", "external id")  # torch <= 1.12 writes the second
_DEVICE = ("string", "CUDA ordinal on that rank, or `cpu`")

_ACTIVITY = EventSort("activities", "GPU event", (
    EventColumn("device", *DEVICE, "integer", keys=("device",), field="pid", nsight="deviceId", strict=True),
    EventColumn(
        "stream", "int64", "stream; on CPU runs the thread", "integer",
        keys=("stream",), field="tid", nsight="streamId", strict=True,
    ),
    EventColumn("kind", "string", "compute, comm or memory; next: a device began with a step that is left out"),
    EventColumn("name", "string", "kernel, copy or operator", "text", field="name", texts="names"),
    replace(_START, meaning="start on that rank's clock, since the epoch where the trace has a base time"),
    replace(_DUR, meaning="end - start, >= 0"),
    EventColumn("step", *STEP),
    EventColumn(
        "idle_since_ns", "Int64", "of the first activity of a step: since when its devices waited in that step; else NA"
    ),
    replace(_ID, meaning="id shared with the launch, NA on CPU runs", nsight="correlationId"),
    EventColumn(
        "external_id", "Int64", "id of the operator that launched it", "integer", keys=_EXTERNAL_KEYS, strict=True
    ),
    EventColumn(
        "size_bytes", "Int64", "bytes of a copy or fill, NA where the trace does not say, and of all else", "integer",
        name="size", keys=("bytes",), nsight="bytes", above=-1, most=MOST_DEVICE_BYTES, since=1,
    ),
    EventColumn(
        "registers", "Int64", "registers of each thread of the kernel, NA where the trace does not say", "integer",
        keys=("registers per thread",), nsight="registersPerThread", above=0, since=3,
    ),
    # Of kernels on NVIDIA GPUs, estimated by Kineto from the launch and the GPU's properties. A writer that cannot
    # divide by an unknown number of SMs must not make the file unreadable; some versions write 0.
    EventColumn(
        "blocks_per_sm", "Float64", "blocks of the kernel / SMs of the GPU, NA where the trace does not say", "number",
        keys=("blocks per SM",), above=0,
    ),
    EventColumn(
        "occupancy_frac", "Float64", "achieved occupancy of the kernel as Kineto estimates it, in steps of 0.01",
        "number", name="occupancy_percent", keys=("est. achieved occupancy %",), above=-1e-9, per=100,
    ),
), (EventTable("activities", "device activity"),), working_bytes=93)  # fmt: skip

_LAUNCH = EventSort("launches", "launch", (
    replace(_ID, dtype="int64", meaning="the same as that of the activity"),
    _THREAD,
    _START,
    EventColumn("external_id", "Int64", "id of the enclosing operator", "integer", keys=_EXTERNAL_KEYS, strict=True),
), (EventTable("launching_calls", "runtime call that launched a device activity"),), working_bytes=69)  # fmt: skip

_RUNTIME_CALL = EventSort("runtime", "runtime call", (
    _THREAD,
    EventColumn(
        "name", "string", "cudaLaunchKernel, cudaEventRecord, cudaStreamSynchronize, ...", "text",
        field="name", texts="call_names",
    ),
    replace(_ID, meaning="the same as that of the activity it launched, if it launched one"),
    _START,
    _DUR,
), (
    EventTable("runtime_calls", "call of the CUDA runtime on a CPU, read with details only"),
), working_bytes=53, detailed=True)  # fmt: skip

_OPERATOR = EventSort("operators", "operator", (
    _THREAD,
    EventColumn(
        "name", "string", "aten::mm, autograd::engine::evaluate_function: MulBackward0, ...", "text",
        field="name", texts="operator_names",
    ),
    _START,
    _DUR,
    EventColumn(
        "inputs", "string", "shapes, types and some values of its inputs, as JSON", "text", texts="inputs",
        since=2, detailed=True,
    ),
    EventColumn(
        "sequence", "Int64", "number that autograd gives a forward operator and its backward one", "integer",
        keys=("Sequence number",), since=2, detailed=True,
    ),
    EventColumn(
        "forward_thread", "Int64", "thread that called the forward operator, of a backward one", "integer",
        keys=("Fwd thread id",), since=2, detailed=True,
    ),
), (
    EventTable("cpu_operators", "CPU operator of a GPU run, read with details only",
               ("thread", "name", "start_ns", "dur_ns")),
    EventTable("operator_calls", "call of an operator on a CPU of which shapes or autograd are known"),
), working_bytes=82)  # fmt: skip

_ALLOCATION = EventSort("memory", "allocator event", (
    EventColumn("", "", "a c10::DeviceType", "integer", name="device_type", keys=("Device Type",), strict=True),
    EventColumn("device", *_DEVICE, "integer", keys=("Device Id",), strict=True),
    EventColumn("time_ns", "int64", "when", "time", name="ts", field="ts"),
    replace(_THREAD, dtype="Int64", meaning="thread that allocated or released it", since=5),
    EventColumn(
        "address", "Int64", "of the block; NA up to torch 1.9", "integer", keys=("Addr",), above=-1, since=5,
    ),
    EventColumn(
        "change_bytes", "Int64", "bytes of the block, negative where it is released", "integer",
        name="change", keys=("Bytes",), strict=True, above=-MOST_DEVICE_BYTES, most=MOST_DEVICE_BYTES, since=5,
    ),
    EventColumn(
        "allocated_bytes", "Int64", "allocated on the device from then on", "integer",
        name="allocated", keys=("Total Allocated",), strict=True, above=-1, most=MOST_DEVICE_BYTES,
    ),
    EventColumn(
        "reserved_bytes", "Int64", "held by the caching allocator from then on", "integer",
        name="reserved", keys=("Total Reserved",), strict=True, above=-1, most=MOST_DEVICE_BYTES,
    ),
), (
    EventTable("memory_events", "allocation or release, read with details only, captured with profile_memory"),
), working_bytes=30, detailed=True)  # fmt: skip

_STREAM_WAIT = EventSort("stream_waits", "stream wait", (
    replace(_ID, keys=()),
    EventColumn("device", *_DEVICE, "integer"),
    EventColumn("stream", "Int64", "stream that waits", "integer"),
    EventColumn(
        "recorded", "Int64", "correlation of the call that recorded the event; NA where the trace does not tell",
        "integer",
    ),
    EventColumn(
        "recorded_stream", "Int64", "stream on which it was recorded; NA where the trace does not tell", "integer"
    ),
    replace(_START, field=None),
), (
    EventTable("stream_waits", "call that made a stream wait for an event, read with details only"),
), working_bytes=34, detailed=True, later=True)  # fmt: skip

_MODULE_CALL = EventSort("modules", "module call", (
    _THREAD,
    EventColumn(
        "name", "string", "class and number: nn.Module: Linear_3", "text", field="name", texts="operator_names"
    ),
    _START,
    _DUR,
), (
    EventTable("modules", "call of an nn.Module, read with details only, captured with_stack or with_modules"),
), working_bytes=70, detailed=True, later=True)  # fmt: skip

_FUNCTION_CALL = EventSort("functions", "function call", (
    replace(_THREAD, since=4),
    EventColumn(
        "name", "string", "file, line and function: train.py(31): load_batch", "text",
        field="name", texts="operator_names", since=4,
    ),
    replace(_START, since=4),
    replace(_DUR, since=4),
), (
    EventTable(
        "functions", "call of a Python function that took 0.5 ms or more, read with details only, captured with_stack"
    ),
), working_bytes=70, detailed=True, later=True)  # fmt: skip

_COUNTER_SAMPLE = EventSort("counters", "sample of a counter", (
    EventColumn("device", *_DEVICE, "integer", since=5),
    EventColumn(
        "name", "string", "counter with its unit as torch names it: Power (W), SM Clock (MHz), ...", "text",
        texts="operator_names", since=5,
    ),
    EventColumn("time_ns", "int64", "when", "time", name="ts", field="ts", since=5),
    EventColumn("value", "Float64", "value; NA where it is no number", "number", keys=("",), since=5),
), (
    EventTable("counter_samples", "sample of a counter of a GPU, read with details only"),
), working_bytes=30, detailed=True, later=True)  # fmt: skip

PROXY_SUMS: dict[str, dict[str, str]] = {
    "send": {
        "steps": "steps of NCCL's proxy", "bytes": "bytes of these steps",
        "gpu_us": "us until the GPU had produced the data", "peer_us": "us until the peer had room",
        "wire_us": "us until the network had sent it",
    },
    "recv": {
        "steps": "steps of NCCL's proxy", "bytes": "bytes of these steps",
        "wire_us": "us until the data had come", "flush_us": "us until it was visible to the GPU",
        "gpu_us": "us until the GPU had consumed it",
    },
}  # fmt: skip
"""What is summed over the steps that NCCL's proxy, a thread of the CPU, takes for a call: phases in their order."""

COMM_ARGUMENTS = EventSort("comm_args", "record of arguments", (
    EventColumn("source", "string", "kernel or record_param_comms", "string"),
    replace(_ID, meaning="of the kernel"),
    EventColumn("external_id", "Int64", "id of the record_param_comms", "integer", keys=_EXTERNAL_KEYS, strict=True),
    replace(_THREAD, dtype="Int64", meaning="thread id of the record_param_comms"),
    replace(_START, dtype="Int64", meaning="start of the record_param_comms"),
    EventColumn(
        "op", "string", "name of the collective as recorded: allreduce, _allgather_base, ...", "string",
        keys=("Collective name",),
    ),
    EventColumn("dtype", "string", "element type as recorded: Float, BFloat16, ...", "string", keys=("dtype",)),
    EventColumn(
        "in_elems", "Int64", "input elements of this rank", "integer",
        keys=("In msg nelems", "In msg size"), above=-1, most=MOST_ELEMS, strict=True,  # torch 2.2 writes the second
    ),
    EventColumn(
        "out_elems", "Int64", "output elements of this rank", "integer",
        keys=("Out msg nelems", "Out msg size"), above=-1, most=MOST_ELEMS, strict=True,
    ),
    EventColumn("in_bytes", "Int64", "bytes of them, where only these are recorded", "integer"),
    EventColumn("out_bytes", "Int64", "likewise of the output", "integer"),
    EventColumn(
        "size_bytes", "Int64", "size S, where the format tells that, but neither elements nor dtype", "integer"
    ),
    EventColumn("in_split", "string", "input split sizes, as recorded", "string", keys=("In split size",)),
    EventColumn("out_split", "string", "output split sizes, as recorded", "string", keys=("Out split size",)),
    EventColumn(
        "group_size", "Int64", "ranks in the process group", "integer",
        keys=("Group size",), above=0, most=PLAUSIBLE_RANKS, strict=True,
    ),
    EventColumn("process_group", "string", "name of the process group", "string", keys=("Process Group Name",)),
    EventColumn("pg_ranks", *PG_RANKS, "string", keys=("Process Group Ranks",)),
    EventColumn("seq", "Int64", "sequence number within the process group", "integer", keys=("Seq",), strict=True),
    EventColumn("comms_id", "string", "id that is equal on all ranks of one collective", "string", keys=("Comms Id",)),
    EventColumn(
        "root", "Int64", "rank within the group: the root, the peer of a send or receive, or else the rank itself",
        "integer", keys=("Rank",), strict=True,
    ),
    EventColumn("peer", "Int64", "global rank of the peer of a send or receive", "integer"),
    *(
        EventColumn(f"proxy_{direction}_{what}", "Int64", f"{meaning}, {words}, of this call", "integer")
        for direction, words in (("send", "sending"), ("recv", "receiving"))
        for what, meaning in PROXY_SUMS[direction].items()
    ),
), (
    EventTable("comm_args", "NCCL argument record, of a kernel or a record_param_comms"),
), working_bytes=0)  # fmt: skip
"""What kernels and record_param_comms say of a collective. These are rows, and no columns of a file: few, and of few
kinds. What stands in no key is worked out from several, or told by other formats."""

EVENT_SORTS = {
    sort.name: sort
    for sort in (
        _ACTIVITY,
        _LAUNCH,
        _RUNTIME_CALL,
        _OPERATOR,
        _ALLOCATION,
        _STREAM_WAIT,
        _MODULE_CALL,
        _FUNCTION_CALL,
        _COUNTER_SAMPLE,
    )
}
"""The sorts of events that are columns of a file."""
COLUMNS = max(one.since for sort in EVENT_SORTS.values() for one in sort.held)
"""How often columns were added: a part of the versions of readers that read what is declared here."""

(ACTIVITIES,) = _ACTIVITY.schemas
(COMM_ARGS,) = COMM_ARGUMENTS.schemas
(LAUNCHES,) = _LAUNCH.schemas
(RUNTIME_CALLS,) = _RUNTIME_CALL.schemas
CPU_OPERATORS, OPERATOR_CALLS = _OPERATOR.schemas
(MEMORY_EVENTS,) = _ALLOCATION.schemas
(STREAM_WAITS,) = _STREAM_WAIT.schemas
(MODULES,) = _MODULE_CALL.schemas
(FUNCTIONS,) = _FUNCTION_CALL.schemas
(COUNTER_SAMPLES,) = _COUNTER_SAMPLE.schemas
