"""Events of a Kineto trace that are used: how to tell them apart, and which fields are read.

Facts about versions are in comments where they matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from ...core.copy_names import copy_name, direction_said, fill_name, memory_said
from ...core.markers import FILL, FRAMES_KEPT, FUNCTION, LONG_CALL_US, MODULE
from ...core.tables.events import COMM_ARGUMENTS
from ...recording.recording import Unread, with_unread
from ...recording.values import Duration, Int64, Time
from .cuts import NO_JSON
from .fields import arguments_of, row_arguments_of

if TYPE_CHECKING:
    ActivityArgs: TypeAlias = Any
    LaunchArgs: TypeAlias = Any
    OperatorArgs: TypeAlias = Any
    MemoryArgs: TypeAlias = Any
    CounterArgs: TypeAlias = Any
    CommArgs: TypeAlias = Any
else:
    ActivityArgs = arguments_of("activities")
    LaunchArgs = arguments_of("launches", "runtime")
    MemoryArgs = arguments_of("memory")
    CounterArgs = arguments_of("counters")
    # Of NCCL kernels and record_param_comms; ids of communicators are unsigned 64 bit, and `bytes` those of a copy.
    CommArgs = row_arguments_of(COMM_ARGUMENTS, beside=[
        ("comms_id", int | str | None, msgspec.field(default=None, name="Comms Id")),
        ("src_rank", Int64 | None, msgspec.field(default=None, name="Src Rank")),
        ("dst_rank", Int64 | None, msgspec.field(default=None, name="Dst Rank")),
        ("bytes", Int64 | None, None),
    ])  # fmt: skip
    # With record_shapes: shapes of the inputs, their types, and values, which make up the column `inputs`.
    OperatorArgs = arguments_of("operators", beside=[
        ("dims", msgspec.Raw, msgspec.field(default=msgspec.Raw(), name="Input Dims")),
        ("types", msgspec.Raw, msgspec.field(default=msgspec.Raw(b"[]"), name="Input type")),
        ("values", msgspec.Raw, msgspec.field(default=msgspec.Raw(b"[]"), name="Concrete Inputs")),
    ])  # fmt: skip


class Activity(msgspec.Struct, gc=False, kw_only=True):
    """A kernel, copy or fill on a device. Times in us."""

    cat: str = ""
    name: str = ""
    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: Time
    dur: Duration | None = 0.0
    args: ActivityArgs = ActivityArgs()


class Launch(msgspec.Struct, gc=False, kw_only=True):
    """A runtime call, which may launch an activity. Times in us."""

    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: Time
    args: LaunchArgs = LaunchArgs()


class RuntimeCall(Launch, gc=False, kw_only=True):
    """A runtime call with its name and its duration on the CPU. Times in us."""

    cat: str = ""
    name: str = ""
    dur: Duration | None = 0.0


class CpuEvent(msgspec.Struct, gc=False, kw_only=True):
    """An annotation or an operator. Times in us."""

    name: str = ""
    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: Time
    dur: Duration | None = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class OperatorEvent(msgspec.Struct, gc=False):
    """The arguments of an operator."""

    args: OperatorArgs = OperatorArgs()


class PointEvent(msgspec.Struct, gc=False):
    """An event without a duration, of which only the time in us counts."""

    ts: Time | None = None


class ThreadEvent(msgspec.Struct, gc=False):
    """Metadata of a thread."""

    tid: Int64 | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ProcessEvent(msgspec.Struct, gc=False):
    """Metadata of a process, of any tool; none of it is relied on."""

    args: Any = None

    @property
    def process(self) -> str | None:
        """The name of the process."""
        name = self.args.get("name") if isinstance(self.args, dict) else None
        return name if isinstance(name, str) else None


class AnnotationArgs(msgspec.Struct, gc=False):
    """Inputs of an annotation or operator, with record_shapes."""

    in_dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    in_types: list[str] | None = msgspec.field(default=None, name="Input type")
    in_values: list[Any] | None = msgspec.field(default=None, name="Concrete Inputs")


class CommEvent(msgspec.Struct, gc=False):
    """The arguments of an event that may name its collective."""

    args: CommArgs = msgspec.field(default_factory=CommArgs)


class _CopyArgs(msgspec.Struct, gc=False):
    """What a copy or fill is, where its name does not say it, as written since torch 2.14 with `cupti_monitor`.

    Names of directions and memories, or CUPTI's numbers.
    """

    direction: Any = msgspec.field(default=None, name="copy kind")
    source: Any = msgspec.field(default=None, name="src kind")
    target: Any = msgspec.field(default=None, name="dst kind")
    filled: Any = msgspec.field(default=None, name="memory kind")


class CopyEvent(msgspec.Struct, gc=False):
    """A copy or fill that may say in its arguments what it is."""

    name: str = ""
    args: _CopyArgs = msgspec.field(default_factory=_CopyArgs)

    @property
    def whole_name(self) -> str:
        """Its name with what the arguments say, as other versions of torch write it."""
        args = self.args
        if self.name == FILL:
            return FILL if args.filled is None else fill_name(memory_said(args.filled))
        if args.direction is None:
            return self.name
        return copy_name(direction_said(args.direction), memory_said(args.source), memory_said(args.target))


class MemoryEvent(msgspec.Struct, gc=False, kw_only=True):
    """An allocation or release, with profile_memory. Times in us."""

    tid: Int64 | str = 0
    ts: Time
    args: MemoryArgs = MemoryArgs()


class CounterEvent(msgspec.Struct, gc=False, kw_only=True):
    """A sample of a counter of a GPU, since torch 2.14 with `cupti_monitor`. Times in us."""

    name: str = ""
    pid: str = ""
    ts: Time
    args: CounterArgs = CounterArgs()

    @property
    def device(self) -> int:
        """The CUDA ordinal of the GPU."""
        return int(self.pid.split()[1])


class _Key(msgspec.Struct, gc=False):
    """The fields that tell events apart, if they are texts; otherwise the event is not wanted."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    dur: Any = 0.0
    pid: Any = None

    @property
    def is_counter(self) -> bool:
        """Whether it is a sample of a counter of a GPU."""
        of_gpu = self.ph == "C" and isinstance(self.pid, str) and isinstance(self.name, str)
        return of_gpu and _COUNTERS_OF_GPU.fullmatch(self.pid) is not None

    @property
    def is_long_function(self) -> bool:
        """Whether it is a long call of a function whose file is known."""
        is_frame = self.ph == "X" and self.cat == FRAMES and isinstance(self.name, str)
        return is_frame and is_long(self.dur) and FUNCTION.match(self.name) is not None


class OtherEvent(msgspec.Struct, gc=False):
    """An event whose category may not be known."""

    ph: Any = ""
    cat: Any = ""
    dur: Any = 0.0
    pid: Any = None
    args: Any = None


COUNTERS_BEGIN = "GPU "
"""How the processes begin under which torch writes counters: `GPU 0 Counters`."""
_COUNTERS_OF_GPU = re.compile(rf"{COUNTERS_BEGIN}[0-9]{{1,9}} Counters")

# Categories, with the spelling of torch <= 1.12 behind the newer one. Source: kineto's ActivityType.h and its history.
KERNEL_CATEGORIES = ("kernel", "Kernel")
MTIA_ACTIVITIES = "mtia_ccp_events"
"""Of MTIA, what kernels and copies are on other devices."""
PRIVATE_DEVICES = ("privateuse1_runtime", "privateuse1_driver")
"""Calls on the host, for kernels of category `kernel`; but some makers of devices let these be what the device did."""
MTIA_COPY = "dma_request"
"""The name of MTIA's copies."""
OPERATOR_CATEGORIES = ("cpu_op", "Operator")
RUNTIME = "cuda_runtime"
IDLE_CALLS = ("cudaDevice", "cudaEvent", "cudaFunc", "cudaGet", "cudaStream", "cudaThread")
"""How the names of runtime calls that launch nothing begin: a third of all calls. They matter with details only."""
ROOMS = {
    **dict.fromkeys((*KERNEL_CATEGORIES, "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"), "activities"),
    **dict.fromkeys((RUNTIME, "cuda_driver", "Runtime"), "launches"),
    "user_annotation": "annotations",
    **dict.fromkeys(OPERATOR_CATEGORIES, "operators"),
    MTIA_ACTIVITIES: "activities",
    **dict.fromkeys(("mtia_runtime", "xpu_runtime", "xpu_driver", *PRIVATE_DEVICES), "launches"),
}
"""Category of an event with a duration -> where its text belongs in `Sorted`."""
RARE = frozenset(category for category in ROOMS if category.startswith(("mtia_", "xpu_", "privateuse1_")))
"""Those of devices that few people have: a search for all categories at once would be slower."""
FRAMES = "python_function"
"""Calls of Python functions and modules, recorded with stacks, and of Python's garbage collector; few are read."""
NOT_COUNTED = (
    FRAMES, "gpu_user_annotation", "cpu_instant_event", "external_correlation", "overhead", "cuda_sync",
    "cuda_event", "cuda_profiler_range", "xpu_scope_profiler", "gpu_pm_counter", "mtia_insight", "mtia_counters",
    "collective_comm", "Trace", "ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu", "forward_backward",
    "graph_event_node", "graph_host_node",
)  # fmt: skip
"""What Kineto writes beside these: no work of a device, and no launch. `collective_comm` is the host's part of
oneCCL; the last two are records of events, and callbacks on a CPU, in CUDA graphs since torch 2.14."""
_KNOWN = frozenset((*ROOMS, *NOT_COUNTED))
# What an event of a device, or the call that launched it, says of itself, and an event of a CPU does not.
_OF_DEVICES = frozenset(("device", "stream", "queue", "sycl queue", "correlation", "context"))
WINDOW_END = "Record Window End"
ROOMS_OF_POINTS = {
    "thread_name": "threads", "process_name": "processes", "[memory]": "memory", WINDOW_END: "window_ends"
}  # fmt: skip
"""The same of events without a duration, by name."""


@dataclass
class Sorted:
    """Texts of wanted events by type, each list in file order.

    `unread` are categories that are not known, with their events. In all events that are not wanted, `repaired_bytes`
    were repaired.
    """

    activities: list[bytes] = field(default_factory=list)
    launches: list[bytes] = field(default_factory=list)
    annotations: list[bytes] = field(default_factory=list)
    operators: list[bytes] = field(default_factory=list)
    modules: list[bytes] = field(default_factory=list)
    functions: list[bytes] = field(default_factory=list)
    threads: list[bytes] = field(default_factory=list)
    memory: list[bytes] = field(default_factory=list)
    counters: list[bytes] = field(default_factory=list)
    window_ends: list[bytes] = field(default_factory=list)
    processes: list[bytes] = field(default_factory=list)
    unread: dict[str, Unread] = field(default_factory=dict)
    repaired_bytes: int = 0

    def place(self, text: bytes, *, every_call: bool = False) -> None:
        """Add the text of an event if it is wanted.

        With `every_call` also calls that launch nothing, modules, counters, and calls of Python functions that matter.

        Raises MalformedEvent.
        """
        key = _one(_key, text)
        category, name = (value if isinstance(value, str) else "" for value in (key.cat, key.name))
        room = ROOMS.get(category) if key.ph == "X" else ROOMS_OF_POINTS.get(name)
        if every_call and category == FRAMES and name.startswith(MODULE):
            room = "modules"
        elif every_call and key.ph == "X" and category == FRAMES and FRAMES_KEPT.match(name):
            room = "annotations"
        elif every_call and key.is_long_function:
            room = "functions"
        elif every_call and key.is_counter:
            room = "counters"
        if room is None and key.ph == "X" and category not in _KNOWN:
            self.note_unread(_one(_other, text))
        elif room is not None and (every_call or not is_idle(category, name)):
            getattr(self, room).append(text)

    def place_functions(self, texts: Sequence[bytes]) -> None:
        """Add those of these texts that are long calls of functions. Raises MalformedEvent."""
        self.functions += compress(texts, (key.is_long_function for key in _keys.all(texts)))

    def note_unread(self, event: OtherEvent) -> None:
        """Count an event whose category is not known; ignore others."""
        if event.ph == "X" and isinstance(event.cat, str) and event.cat and event.cat not in _KNOWN:
            pid = event.pid if isinstance(event.pid, int) else -1
            args = event.args if isinstance(event.args, dict) else {}
            unread = {event.cat: Unread(1, not _OF_DEVICES.isdisjoint(args), pid)}
            self.unread = with_unread(self.unread, unread)


def is_long(dur_us: object) -> bool:
    """Whether a call of a function is read if it took so long, in us."""
    return isinstance(dur_us, (int, float)) and dur_us >= LONG_CALL_US


def is_idle(category: str, name: str) -> bool:
    """Whether it is a runtime call that launches nothing."""
    return category == RUNTIME and name.startswith(IDLE_CALLS)


def sorted_texts(texts: Sequence[bytes], *, every_call: bool = False) -> Sorted:
    """Sort all texts by type. Raises MalformedEvent."""
    result = Sorted()
    for text in texts:
        result.place(text, every_call=every_call)
    return result


class MalformedEvent(Exception):
    """The event with this text is not JSON, or not written as by Kineto."""

    def __init__(self, text: bytes, why: str) -> None:
        super().__init__(why)
        self.text = text


E = TypeVar("E")


class Decoder(Generic[E]):
    """Decode texts to events of one type."""

    def __init__(self, event: type[E]) -> None:
        self._all = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(event, strict=False)

    def all(self, texts: Sequence[bytes]) -> list[E]:
        """Decode all texts. Raises MalformedEvent."""
        if not texts:
            return []
        ended = [*texts[:-1], texts[-1] + b"}]"]
        ended[0] = b'[{"' + ended[0]  # before joining: nothing large is copied twice
        try:
            events = self._all.decode(b'},{"'.join(ended))
        except NO_JSON:
            events = []
        # A text that is two events, or half of one, changes their number.
        return events if len(events) == len(texts) else [self.one(text) for text in texts]

    def one(self, text: bytes) -> E:
        """Decode one text. Raises MalformedEvent."""
        return _one(self._one, text)


def _one(decoder: msgspec.json.Decoder[E], text: bytes) -> E:
    try:
        return decoder.decode(b'{"' + text + b"}")
    except NO_JSON as err:
        raise MalformedEvent(text, str(err)) from err


_key, _other = msgspec.json.Decoder(_Key), msgspec.json.Decoder(OtherEvent)
_keys = Decoder(_Key)
