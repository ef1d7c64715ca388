"""Options of every command that profiles training steps: which steps, and what of them."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ....contract.rank import Keep
from ..detail import Detail, NcclDebug
from ..keeping import Keeping
from ..schedule import Schedule


def _profiler(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Profiler")


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel="Profiler")


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
    """What is recorded in traced steps, besides times."""

    with_stack: Annotated[bool, _profiler("record source lines, and Python's garbage collections")] = False
    profile_memory: Annotated[bool, _profiler("record allocations")] = False
    light: Annotated[
        bool,
        _flag("--light", "record no shapes, for the least overhead; with NCCL, sizes of collectives are still known"),
    ] = False
    sync_events: Annotated[bool, _flag("--sync-events", "record CUDA's synchronisations; on GPUs")] = False
    kineto_buffer_mb: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Profiler",
            help="MiB of host memory per rank that the profiler may use to record GPU activity",
            show_default="2048, or what KINETO_CONFIG says",
        ),
    ] = None
    flight_recorder: Annotated[
        bool, _profiler("record collectives and dump them if a rank hangs, for commtrace hang")
    ] = False
    nccl_debug: Annotated[
        NcclDebug | None,
        typer.Option(
            rich_help_panel="Output",
            case_sensitive=False,
            help="keep NCCL's log at this level, one file per rank",
            show_default="what NCCL_DEBUG says",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """As the configurations of commands take them. Raises UsageError."""
        given = vars(self).copy()
        return {"flight_recorder": given.pop("flight_recorder"), "detail": Detail(**given)}


def _output(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Output")


@dataclass(frozen=True)
class KeepOptions:
    """What becomes of the traces."""

    keep: Annotated[
        Keep,
        _output("what to keep of each cycle: its trace, its recording (a small file with the same tables), or both"),
    ] = Keeping.keep
    analyse: Annotated[
        bool,
        typer.Option(
            "--analyse",
            rich_help_panel="Output",
            help="at the end, gather recordings of all ranks on rank 0, print the summary, write it and a report",
        ),
    ] = Keeping.analyse
    analyse_max_seconds: Annotated[
        float, _output("with --analyse: the longest wait, in seconds, for the other ranks, and for the analysis")
    ] = Keeping.max_seconds
    analyse_max_gb: Annotated[float, _output("with --analyse: the most GB that all ranks together send to rank 0")] = (
        Keeping.max_gb
    )

    def keeping(self) -> Keeping:
        """As captures take it. Raises UsageError."""
        return Keeping(self.keep, self.analyse, self.analyse_max_seconds, self.analyse_max_gb)
