"""Regions of a trace by brute force, from its events alone: each launch and each moment is looked up by itself.

Nothing here is shared with the code under test but which kernels communicate. Times are integer ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from commtrace.analysis.core.kinds import kernel_kind

Place = tuple[str, str | None]
"""Path and phase."""
OUTSIDE, NOT_LAUNCHED = "(outside any region)", "(no launch in the trace)"
ON_DEVICES = {"kernel": "compute", "gpu_memcpy": "memory", "gpu_memset": "memory"}
_KINDS = ("compute", "comm", "memory")
_NOT_NAMED = ("ProfilerStep#", "nccl:", "gloo:", "c10d::", "record_param_comms", "torch::autograd::Acc", "Python GC")
_COMPILER = ("Torch-Compiled Region", "Optimizer.", "enumerate(", "## ")


@dataclass(eq=False)
class Range:
    """An event of a CPU thread."""

    name: str
    thread: int
    start: int
    end: int
    kind: str  # region, backward, recorded
    number: int = -1
    order: int = 0


@dataclass(eq=False)
class Ran:
    """An activity of a device."""

    kind: str
    start: int
    end: int
    place: Place
    issued: int


@dataclass
class Oracle:
    """The regions of one rank's trace."""

    events: list[dict[str, Any]]
    main: int
    seen: dict[tuple[int, int], tuple[tuple[str, ...], str | None]] = field(default_factory=dict)

    @cached_property
    def threads(self) -> dict[int, list[Range]]:
        """What may be around a launch, by thread."""
        result: dict[int, list[Range]] = defaultdict(list)
        for order, event in enumerate(self.events):
            found = _range(event, order)
            if found is not None:
                result[found.thread].append(found)
        for ranges in result.values():
            ranges.sort(key=lambda one: (one.start, -one.end, "backward region recorded".index(one.kind)))
        return result

    @cached_property
    def recorded(self) -> dict[int, list[Range]]:
        """Operators that autograd recorded, by their sequence number, in order of time."""
        every = [one for ranges in self.threads.values() for one in ranges if one.kind == "recorded"]
        by_number: dict[int, list[Range]] = defaultdict(list)
        for one in sorted(every, key=lambda one: one.start):
            by_number[one.number].append(one)
        return by_number

    def at(self, thread: int, time: int) -> tuple[tuple[str, ...], str | None]:
        """Names of the regions around a moment of a thread, and the phase."""
        if (thread, time) not in self.seen:
            self.seen[thread, time] = self._at(thread, time)
        return self.seen[thread, time]

    def _at(self, thread: int, time: int) -> tuple[tuple[str, ...], str | None]:
        names: tuple[str, ...] = ()
        phase = None
        inside = False
        for one in self.threads.get(thread, ()):
            if not one.start <= time < one.end:
                continue
            if one.kind == "region":
                if phase == "backward" and self._reruns(one):
                    names, phase = self._as_before(names, one.name), "recompute"
                else:
                    names = (*names, one.name)
            elif one.kind == "recorded" and "::" in one.name:
                phase = "recompute" if phase == "backward" else phase
            elif one.kind == "backward":
                forward = self.forward_of(one)
                begun = () if forward is None else self.at(forward.thread, forward.start)[0]
                called = () if inside or thread == self.main else self.at(self.main, one.start)[0]
                names = begun or (names if inside else called)
                phase = "backward"
            inside = True
        if not inside and thread != self.main and any(one.kind == "backward" for one in self.threads.get(thread, ())):
            return self.at(self.main, time)[0], "backward"
        return names, phase

    def forward_of(self, backward: Range) -> Range | None:
        """The last operator that autograd recorded with the number of a backward one."""
        before = [one for one in self.recorded.get(backward.number, ()) if one.start < backward.start]
        return before[-1] if before else None

    def _reruns(self, region: Range) -> bool:
        own = self.threads[region.thread]
        return any(
            one.kind == "recorded" and "::" in one.name and region.start <= one.start < region.end for one in own
        )

    def _as_before(self, names: tuple[str, ...], name: str) -> tuple[str, ...]:
        """The path of the first call of this name at or around `names`."""
        for depth in range(len(names), -1, -1):
            if depth and names[depth - 1] == name:
                return names[:depth]
            if (*names[:depth], name) in self.paths:
                return (*names[:depth], name)
        return (*names, name)

    @cached_property
    def paths(self) -> set[tuple[str, ...]]:
        """The paths of all ranges that no backward operator is around."""
        result = set()
        for ranges in self.threads.values():
            for one in ranges:
                around = [other for other in ranges if other.start <= one.start < other.end and other is not one]
                if one.kind == "region" and not any(other.kind == "backward" for other in around):
                    result.add(self.at(one.thread, one.start)[0])
        return result

    def place(self, thread: int, time: int) -> Place:
        """The path as the tables spell it, and the phase."""
        names, phase = self.at(thread, time)
        return " > ".join(names) or OUTSIDE, phase

    @cached_property
    def ran(self) -> list[Ran]:
        """Everything that ran on the device."""
        calls: dict[int, dict[str, Any]] = {}
        for event in sorted(self.events, key=lambda event: _ns(event.get("ts", 0))):
            if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                calls.setdefault(event.get("args", {}).get("correlation"), event)
        result = []
        for event in self.events:
            if event.get("ph") != "X" or event.get("cat") not in ON_DEVICES:
                continue
            call = calls.get(event["args"].get("correlation"))
            place = (NOT_LAUNCHED, None) if call is None else self.place(call["tid"], _ns(call["ts"]))
            kind = ON_DEVICES[event["cat"]]
            if kind == "compute":
                kind = kernel_kind(event["name"])
            issued = _ns(call["ts"]) if call is not None else 1 << 62
            start = _ns(event["ts"])
            result.append(Ran(kind, start, start + _ns(event.get("dur", 0)), place, issued))
        return sorted(result, key=lambda one: one.start)

    def times(self, start: int, end: int) -> dict[str, dict[Place, int]]:
        """Time by part and place in a window: compute, exposed (communication), memory, idle, and hidden."""
        took: dict[str, dict[Place, int]] = defaultdict(lambda: defaultdict(int))
        bounds = {time for one in self.ran for time in (one.start, one.end) if start < time < end}
        running: list[Ran] = []
        next_one = 0
        for begin, until in pairwise(sorted({start, end, *bounds})):
            while next_one < len(self.ran) and self.ran[next_one].start <= begin:
                running.append(self.ran[next_one])
                next_one += 1
            running = [one for one in running if one.end > begin]
            first = {kind: one for kind in _KINDS for one in reversed(running) if one.kind == kind}
            if not running:
                begins = self.ran[next_one].start
                later = [one for one in self.ran[next_one : next_one + 50] if one.start == begins]
                took["idle"][min(later, key=lambda one: one.issued).place] += until - begin
                continue
            kind = next(kind for kind in _KINDS if kind in first)
            took[kind][first[kind].place] += until - begin
            if kind == "compute" and "comm" in first:
                took["hidden"][first["comm"].place] += until - begin
        return took


def _range(event: Mapping[str, Any], order: int) -> Range | None:
    if event.get("ph") != "X" or not isinstance(event.get("tid"), int):
        return None
    category, name, args = event.get("cat"), event["name"], event.get("args", {})
    start = _ns(event["ts"])
    where = (name, event["tid"], start, start + _ns(event.get("dur", 0)))
    number, called_by = args.get("Sequence number", -1), args.get("Fwd thread id", 0)
    if category == "user_annotation" and not name.startswith(_NOT_NAMED):
        return Range(*_spelled(where), "region", order=order)
    if category == "python_function" and name.startswith("nn.Module: "):
        return Range(name.removeprefix("nn.Module: "), *where[1:], "region", order=order)
    if category == "cpu_op" and name.startswith(_COMPILER):
        return Range(*_spelled(where), "region", order=order)
    if category == "cpu_op" and (called_by > 0 or name.startswith("autograd::engine::evaluate_function: ")):
        return Range(*where, "backward", number if called_by > 0 else -1, order)
    if category == "cpu_op" and number >= 0:
        return Range(*where, "recorded", number, order)
    return None


def _spelled(where: tuple[str, int, int, int]) -> tuple[str, int, int, int]:
    name, *rest = where
    return ("CompiledFxGraph" if name.startswith("## Call CompiledFxGraph") else name, *rest)  # type: ignore[return-value]


def _ns(us: float) -> int:
    return round(us * 1000)
