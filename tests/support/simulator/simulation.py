"""A world -> what happens in it, what its traces show, and what is true."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .injections import programs, with_injections
from .kineto import document, file_name, write_trace
from .ops import Group
from .physics import Timeline, timeline
from .shown import Trace, traces
from .truth import Truth, truth_of
from .world import World


@dataclass(frozen=True)
class Simulated:
    """A world that happened; `plain` is what would have happened without its injections."""

    world: World
    happened: Timeline
    plain: Timeline

    @cached_property
    def traces(self) -> list[Trace]:
        """What each file shows."""
        return traces(self.world, self.happened)

    @cached_property
    def truth(self) -> Truth:
        """What is true."""
        return truth_of(self.world, self.happened, self.plain, self.traces)

    def write(self, folder: Path) -> list[Path]:
        """The trace files, written into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        default = Group("default", tuple(range(self.world.size)))
        groups = list(dict.fromkeys([default, *(meeting.group for meeting in self.happened.meetings)]))
        paths = []
        for trace in self.traces:
            path = folder / file_name(self.world, trace)
            write_trace(path, document(self.world, trace, self.happened.times, groups))
            paths.append(path)
        return paths


def simulate(world: World) -> Simulated:
    """Let a world happen. Raises Deadlock if its programs wait for each other."""
    plain = programs(world)
    without = timeline(world, plain)
    if not world.injections:
        return Simulated(world, without, without)
    return Simulated(world, timeline(world, with_injections(world, plain)), without)
