"""Options of every command that profiles training steps: which steps, and what of them."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..schedule import Schedule


def _profiler(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Profiler")


@dataclass(frozen=True)
class ScheduleOptions:
    """Which steps are traced."""

    wait: Annotated[int, _profiler("steps before the profiler warms up")] = 2
    warmup: Annotated[int, _profiler("profiled steps that are discarded")] = 1
    active: Annotated[int, _profiler("traced steps")] = 3
    repeat: Annotated[int, _profiler("number of cycles, each with its own trace file")] = 1

    def schedule(self) -> Schedule:
        """As the profiler takes it. Raises UsageError."""
        return Schedule(self.wait, self.warmup, self.active, self.repeat)


@dataclass(frozen=True)
class RecordingOptions:
    """What is recorded in traced steps, besides times and shapes."""

    with_stack: Annotated[bool, _profiler("record source lines")] = False
    profile_memory: Annotated[bool, _profiler("record allocations")] = False
    flight_recorder: Annotated[
        bool, _profiler("record collectives, and dump them if a rank stands still, for commtrace hang")
    ] = False
