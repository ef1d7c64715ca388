"""What a device did: kernels of a GPU by stream, operations of a TPU.

A TPU runs one operation after the other. One that holds others, such as a loop, is what it did between these, and
nothing at all where it only steers. A collective that runs beside others is one activity, from the start of its
`-start` to the end of its `-done`. Where it feeds the device, or waits for a copy that it began, it does not compute.

Source of the names: xplane_schema.cc and cupti_collector.cc of openxla/xla.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ....common.nccl_tests import POINT_TO_POINT
from ...core.copy_names import copy_name, direction_said, fill_name, memory_said
from ...core.kinds import COMM, COMPUTE, MEMORY, kernel_kind, memory_kind
from ...recording.arrays import Int64s
from ...recording.values import MISSING, NOT_KNOWN
from .programs import Does, Instruction, done_by
from .space import Plane, PlaneEvents, PlaneLine

_STREAM = re.compile(r"Stream #([0-9]{1,9})")
OPERATION_LINE, ASYNC_OPERATIONS, PROGRAM_LINE, STEP_LINE = "XLA Ops", "Async XLA Ops", "XLA Modules", "Steps"
"""Lines of a TPU: what it did, what ran beside that, runs of programs, and steps."""
_COPY = re.compile(r"Memcpy ?(H2D|D2H|D2D|P2P|H2H|HtoD|DtoH|DtoD|PtoP|HtoH|Other)?", re.IGNORECASE)
_WAYS = {"h2d": "HtoD", "d2h": "DtoH", "d2d": "DtoD", "p2p": "PtoP", "h2h": "HtoH"}
_DETAIL = re.compile(r"([a-z_]+):(\S*)")
_NO_WORK = ("memalloc_details", "MemFree_details", "MemoryResidency_details")
_COPYING = re.compile(r"%?(?:host (?:send|recv)|(?:host )?(?:in|out)feed|copy(?=-))(?:-start|-done)?(?![\w-])")
"""What feeds the device or takes data from it, or waits for a copy beside the operations; by name or category."""
_STEERING = re.compile(r"%?(?:while|conditional|call|async-call)(?![\w-])")
_FIRST_LANE = 1 << 20
"""The first stream number for what runs beside the operations of a TPU: the next ones where several run at a time."""


class DeviceActivity(NamedTuple):
    """An activity: times in ps, the number of its name, and of its event, whose stats it has; -1 for none."""

    start_ps: int
    end_ps: int
    stream: int
    name: int
    event: int
    collective: Instruction | None
    instruction: str
    program: str


@dataclass
class DistinctNames:
    """Distinct names of activities with their kind."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, name: str, kind: str) -> int:
        """The number of a name of this kind, which is added if it is new."""
        number = self._numbers.setdefault((name, kind), len(self.names))
        if number == len(self.names):
            self.names.append(name)
            self.kinds.append(kind)
        return number


class ProgramRuns(NamedTuple):
    """Runs of programs on a TPU by start: times in ps, the program, and the number of the run, MISSING without one."""

    start_ps: Int64s
    end_ps: Int64s
    programs: list[str]
    numbers: Int64s

    def at(self, time_ps: int) -> int:
        """The run at a time, -1 for none."""
        place = int(np.searchsorted(self.start_ps, time_ps, side="right")) - 1
        return place if place >= 0 and time_ps < self.end_ps[place] else -1


class Calls(NamedTuple):
    """Calls of the host for a device by start: times in ps, thread, correlation, and the name of each."""

    start_ps: Int64s
    end_ps: Int64s
    thread: Int64s
    correlation: Int64s
    names: list[str]


class LaunchDetails(NamedTuple):
    """What is said of kernels and copies by activity, MISSING or NaN where nothing is."""

    size: Int64s
    registers: Int64s
    blocks: Int64s
    occupancy_percent: np.typing.NDArray[np.float64]


Lookup = Callable[[str, str], Instruction | None]
"""The collective of an instruction of a program."""


def lines_named(plane: Plane, name: str) -> list[PlaneLine]:
    """The lines of a plane that have this name."""
    return [line for line in plane.lines if line.name == name]


def streams_of(plane: Plane) -> list[PlaneLine]:
    """The lines of a GPU that are streams."""
    return [line for line in plane.lines if _STREAM.match(line.name)]


def has_worked(plane: Plane) -> bool:
    """Whether anything that a device did was recorded. Raises BrokenMessage."""
    operations = (*lines_named(plane, OPERATION_LINE), *lines_named(plane, ASYNC_OPERATIONS))
    return any(len(line.events) for line in (*streams_of(plane), *operations))


def on_streams(
    plane: Plane, zero_ns: int, names: DistinctNames, comm_names: tuple[str, ...], lookup: Lookup
) -> tuple[PlaneEvents, list[DeviceActivity]]:
    """What a GPU ran, stream by stream. Raises BrokenMessage, TooLarge."""
    lines = streams_of(plane)
    streams = [int(match[1]) for line in lines if (match := _STREAM.match(line.name))]
    events = plane.events(lines, zero_ns)
    left_out = {event for name in _NO_WORK for event in events.stats.texts(name)}
    copies, fills = (events.stats.texts(f"{name}_details") for name in ("memcpy", "Memset"))
    operations, programs = events.stats.texts("hlo_op"), programs_of(events)
    ran = []
    columns = (events.start_ps, events.end_ps, events.line, events.name)
    for event, (start, end, line, number) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if event in left_out:
            continue
        name, collective = plane.event_names.get(number, "unknown"), None
        instruction, program = operations.get(event, ""), programs.get(event, "")
        if event in copies or _COPY.match(name):
            name = _copy_name(name, copies.get(event, ""))
            kind = memory_kind(name)
        elif event in fills:
            name = fill_name(memory_said(dict(_DETAIL.findall(fills[event])).get("kind")))
            kind = memory_kind(name)
        else:
            collective = lookup(program, instruction)
            if collective is not None and collective.said.kind in POINT_TO_POINT:
                collective = None  # one kernel may send and receive, and it is named for the first of both
            kind = COMM if collective is not None else kernel_kind(name, comm_names)
        ran.append(
            DeviceActivity(start, end, streams[line], names.number(name, kind), event, collective, instruction, program)
        )
    return events, ran


def programs_of(events: PlaneEvents) -> dict[int, str]:
    """The program that each event is of, as the plane of programs names it: `jit_step(15)`."""
    modules, numbers = events.stats.texts("hlo_module"), events.stats.integers("program_id", len(events.name)).tolist()
    return {
        event: name if numbers[event] == MISSING else f"{name}({numbers[event]})" for event, name in modules.items()
    }


def _copy_name(name: str, details: str) -> str:
    said, match = dict(_DETAIL.findall(details)), _COPY.match(name)
    way = (match[1] or "").lower() if match else ""
    direction = direction_said(_WAYS.get(way, way))
    return copy_name(direction, memory_said(said.get("kind_src")), memory_said(said.get("kind_dst")))


def correlations_of(events: PlaneEvents, ran: list[DeviceActivity]) -> tuple[Int64s, Int64s]:
    """The id of the call that launched each activity, MISSING without one, and an id of the activity.

    These are the same but where several collectives have one call, as in CUDA graphs, or where there is none.
    """
    said = events.stats.integers("correlation_id", len(events.name))
    called = np.array([said[one.event] for one in ran], dtype=np.int64)
    own, fresh = called.copy(), int(called.max(initial=0)) + 1
    comm = np.array([one.collective is not None for one in ran], dtype=bool)
    distinct, which, counts = np.unique(called, return_inverse=True, return_counts=True)
    shared = comm & (counts[which.reshape(-1)] > 1) if len(distinct) else comm
    apart = shared | (called == MISSING)
    own[apart] = np.arange(fresh, fresh + int(apart.sum()))
    return called, own


def calls_on(host: Plane, zero_ns: int, correlations: Int64s) -> Calls:
    """The calls that launched something on a device, and all others for it. Raises BrokenMessage, TooLarge."""
    lines = host.lines
    events = host.events(lines, zero_ns)
    count = len(events.name)
    called, device = (events.stats.integers(name, count) for name in ("correlation_id", "device_id"))
    launching = (called != MISSING) & np.isin(called, correlations)
    wanted = launching | ((called != MISSING) & (device != MISSING) & np.isin(device, device[launching]))
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(events.start_ps[rows], kind="stable")]
    threads = np.array([line_id(line.id) for line in lines], dtype=np.int64)
    names = [host.event_names.get(number, "unknown") for number in events.name[rows].tolist()]
    return Calls(events.start_ps[rows], events.end_ps[rows], threads[events.line[rows]], called[rows], names)


def line_id(number: int) -> int:
    """The id of a line as tables hold it: 64 bits with a sign, and never those that stand for a missing one."""
    return max(number, MISSING + 1)


def details_of(events: PlaneEvents, ran: list[DeviceActivity]) -> LaunchDetails:
    """Sizes of copies and fills, and how kernels were launched."""
    count = len(ran)
    size, registers, blocks = (np.full(count, MISSING) for _ in range(3))
    occupancy = np.full(count, NOT_KNOWN)
    texts = {name: events.stats.texts(f"{name}_details") for name in ("kernel", "memcpy", "Memset")}
    parsed: dict[str, dict[str, str]] = {}
    for place, one in enumerate(ran):
        for name, of_event in texts.items():
            text = of_event.get(one.event)
            if text is None:
                continue
            said = parsed.setdefault(text, dict(_DETAIL.findall(text)))
            if name == "kernel":
                registers[place], blocks[place] = _whole(said.get("regs")), _blocks(said.get("grid"))
                if said.get("occ_pct") not in (None, "0"):  # 0 where it is not known
                    occupancy[place] = _double(said["occ_pct"])
            elif said.get("size", said.get("num_bytes")) != "0":  # ROCm's copies say 0
                size[place] = _whole(said.get("size", said.get("num_bytes")))
    return LaunchDetails(size, registers, blocks, occupancy)


def _whole(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,15}", text) else MISSING


def _double(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text) else NOT_KNOWN


def _blocks(grid: str | None) -> int:
    sizes = [_whole(part) for part in (grid or "").split(",")]
    known = len(sizes) == 3 and all(0 < part < 1 << 31 for part in sizes)
    blocks = sizes[0] * sizes[1] * sizes[2] if known else 0
    return blocks if 0 < blocks < 1 << 62 else MISSING


def runs_on(plane: Plane, zero_ns: int) -> ProgramRuns:
    """The runs of programs on a TPU. Raises BrokenMessage, TooLarge."""
    events = plane.events(lines_named(plane, PROGRAM_LINE), zero_ns)
    order = np.argsort(events.start_ps, kind="stable")
    names = [plane.event_names.get(number, "") for number in events.name[order].tolist()]
    numbers = events.stats.integers("run_id", len(events.name))[order]
    return ProgramRuns(events.start_ps[order], events.end_ps[order], names, numbers)


class _Operation(NamedTuple):
    """An operation of a TPU, or a part of one."""

    start_ps: int
    end_ps: int
    name: str
    said: Does | None
    kind: str
    program: str
    event: int


def of_operations(
    plane: Plane, zero_ns: int, names: DistinctNames, lookup: Lookup, runs: ProgramRuns
) -> list[DeviceActivity]:
    """What a TPU did. Raises BrokenMessage, TooLarge."""
    parts = list(_parts(_operations(plane, OPERATION_LINE, zero_ns, runs, lookup)))
    beside = [one for one in _operations(plane, ASYNC_OPERATIONS, zero_ns, runs, lookup) if one.said is not None]
    ran = []
    for one in parts:
        if one.said is None or not one.said.phase:
            found = None if one.said is None else _found(one, lookup)
            ran.append(
                DeviceActivity(
                    one.start_ps, one.end_ps, 0, names.number(one.name, one.kind), one.event, found, one.name,
                    one.program,
                )
            )  # fmt: skip
    spans = [*_pairs([one for one in parts if one.said is not None and one.said.phase], lookup)]
    covered = {(one.program, _whole_name(one.name), one.start_ps) for one, _ in spans}
    starts = sorted(one.start_ps for one, _ in spans)
    for one in beside:
        near = np.searchsorted(starts, (one.start_ps, one.end_ps))
        if not any(
            (one.program, _whole_name(one.name), start) in covered
            for start in starts[max(0, int(near[0]) - 1) : int(near[1])]
        ):
            spans.append((one, one.end_ps))
    ran += _in_lanes(spans, names, lookup)
    return ran


def _operations(plane: Plane, line: str, zero_ns: int, runs: ProgramRuns, lookup: Lookup) -> list[_Operation]:
    """The operations on a line by start, those that hold others before these."""
    events = plane.events(lines_named(plane, line), zero_ns)
    categories = plane.kind_texts("hlo_category")
    known = {number: _does(categories.get(number, ""), name) for number, name in plane.event_names.items()}
    own = events.stats.texts("hlo_category")

    @functools.cache
    def by_program(program: str, name: str) -> tuple[str, Does | None]:
        """Of what neither category nor name tell: an `async-start` may begin a collective."""
        found = lookup(program, _short(name))
        return (COMPUTE, None) if found is None else (COMM, found.said)

    order = np.lexsort((-events.end_ps, events.start_ps)).tolist()
    starts, ends, numbers = events.start_ps.tolist(), events.end_ps.tolist(), events.name.tolist()
    made = []
    for event in order:
        run = runs.at(starts[event])
        program = runs.programs[run] if run >= 0 else ""
        name = plane.event_names.get(numbers[event], "unknown")
        kind, said = _does(own[event], name) if event in own else known.get(numbers[event], (COMPUTE, None))
        if kind == COMPUTE:
            kind, said = by_program(program, name)
        made.append(_Operation(starts[event], ends[event], _short(name), said, kind, program, event))
    return made


def _does(category: str, name: str) -> tuple[str, Does | None]:
    """The kind of an instruction with this category and name, and the collective if it is one."""
    if _COPYING.match(category) or _COPYING.match(name):
        return MEMORY, None
    said = done_by(category) or done_by(name)
    return (COMPUTE if said is None else COMM), said


def _short(name: str) -> str:
    """The name of an instruction, of which the whole text may stand there."""
    return name.split(" = ", 1)[0].removeprefix("%")


def _parts(operations: list[_Operation]) -> Iterator[_Operation]:
    """Yield what each operation did itself, by start: without those inside it, and without what only steers."""
    open_: list[tuple[_Operation, int]] = []  # and from when on it did something itself

    def closed(until_ps: int) -> Iterator[_Operation]:
        while open_ and open_[-1][0].end_ps <= until_ps:
            one, since = open_.pop()
            yield from _own(one, since, one.end_ps)
            if open_:
                open_[-1] = open_[-1][0], max(open_[-1][1], one.end_ps)

    for one in operations:
        yield from closed(one.start_ps)
        if open_:
            around, since = open_[-1]
            yield from _own(around, since, one.start_ps)
            one = one._replace(end_ps=min(one.end_ps, around.end_ps))
        open_.append((one, one.start_ps))
    yield from closed(max((one.end_ps for one, _ in open_), default=0))


def _own(one: _Operation, since_ps: int, until_ps: int) -> Iterator[_Operation]:
    is_whole = since_ps == one.start_ps and until_ps == one.end_ps
    if (until_ps > since_ps or is_whole) and (is_whole or not _STEERING.match(one.name)):
        yield one._replace(start_ps=since_ps, end_ps=until_ps)


def _found(one: _Operation, lookup: Lookup) -> Instruction | None:
    return lookup(one.program, one.name) or (None if one.said is None else Instruction(one.said))


def _pairs(ends: list[_Operation], lookup: Lookup) -> Iterator[tuple[_Operation, int]]:
    """Yield each `-start` and when its `-done` ended; both alone where the other one is missing.

    A `-done` names its `-start` in the program; where that is not known, the first of its kind that waits is taken.
    """
    waiting: dict[tuple[str, str], list[_Operation]] = {}
    for one in sorted(ends, key=lambda one: one.start_ps):
        if one.said is None:
            continue
        queue = waiting.setdefault((one.program, one.said.kind), [])
        if one.said.phase == "-start":
            queue.append(one)
            continue
        known = lookup(one.program, one.name)
        started = None if known is None else known.started
        place = next(
            (n for n, begun in enumerate(queue) if begun.name == started), 0 if started is None else len(queue)
        )
        if place < len(queue):
            yield queue.pop(place), one.end_ps
        else:
            yield one, one.end_ps
    for queue in waiting.values():
        yield from ((one, one.end_ps) for one in queue)


def _whole_name(name: str) -> str:
    return name.replace("-start", "").replace("-done", "")


def _in_lanes(spans: list[tuple[_Operation, int]], names: DistinctNames, lookup: Lookup) -> Iterator[DeviceActivity]:
    """Yield collectives that run beside operations, on as many streams as run at a time."""
    free: list[int] = []
    for one, end_ps in sorted(spans, key=lambda span: span[0].start_ps):
        lane = next((n for n, until in enumerate(free) if until <= one.start_ps), len(free))
        if lane == len(free):
            free.append(end_ps)
        free[lane] = end_ps
        yield DeviceActivity(
            one.start_ps, end_ps, _FIRST_LANE + lane, names.number(_whole_name(one.name), COMM), one.event,
            _found(one, lookup), one.name, one.program,
        )  # fmt: skip


def looked_up(collectives: Mapping[tuple[str, str], Instruction]) -> Lookup:
    """A function that finds the collective of an instruction, by its name where its program is not there."""

    def lookup(program: str, instruction: str) -> Instruction | None:
        known = collectives.get((program, instruction))
        if known is not None:
            return known
        said = done_by(instruction)
        return None if said is None else Instruction(said)

    return lookup
