"""Options of every command that profiles training steps: which steps, what is recorded, what is kept."""

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

    wait: Annotated[int, _profiler("Steps before the profiler warms up.")] = 2
    warmup: Annotated[int, _profiler("Profiled steps to discard.")] = 1
    active: Annotated[int, _profiler("Steps to trace in each cycle.")] = 3
    repeat: Annotated[int, _profiler("Number of cycles, each with its own trace file.")] = 1

    def schedule(self) -> Schedule:
        """The profiler's schedule. Raises UsageError."""
        return Schedule(self.wait, self.warmup, self.active, self.repeat)


@dataclass(frozen=True)
class RecordingOptions:
    """What is recorded in traced steps, besides times."""

    with_stack: Annotated[bool, _profiler("Record source lines, and Python's garbage collections.")] = False
    profile_memory: Annotated[bool, _profiler("Record allocations.")] = False
    memory: Annotated[
        bool,
        _profiler(
            "Record allocations; on GPUs also peaks of each step, and a snapshot of torch's allocator: of the traced "
            "steps, or of running out of memory. Resets torch.cuda.max_memory_allocated with each step."
        ),
    ] = False
    light: Annotated[
        bool,
        _flag("--light", "Record no shapes, for the least overhead; with NCCL, sizes of collectives are still known."),
    ] = False
    sync_events: Annotated[bool, _flag("--sync-events", "On GPUs: record CUDA's synchronisations.")] = False
    kineto_buffer_mb: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Profiler",
            help="MiB of host memory per rank in which the profiler may record GPU activity.",
            show_default="2048, or what KINETO_CONFIG says",
        ),
    ] = None
    flight_recorder: Annotated[
        bool, _profiler("Record collectives, and dump them for `commtrace hang` if a rank hangs.")
    ] = False
    nccl_debug: Annotated[
        NcclDebug | None,
        typer.Option(
            rich_help_panel="Output",
            case_sensitive=False,
            help="Keep NCCL's log at this level, one file per rank.",
            show_default="what NCCL_DEBUG says",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for the configuration of a command. Raises UsageError."""
        given = vars(self).copy()
        return {"flight_recorder": given.pop("flight_recorder"), "detail": Detail(**given)}


def _output(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Output")


@dataclass(frozen=True)
class KeepOptions:
    """What to keep of the traces, and whether to analyse them."""

    keep: Annotated[
        Keep,
        _output("Keep the trace of each cycle, its recording (a small file with the same tables), or both."),
    ] = Keeping.keep
    analyse: Annotated[
        bool,
        typer.Option(
            "--analyse",
            rich_help_panel="Output",
            help="At the end, gather recordings of all ranks on rank 0, print the summary, write it and a report.",
        ),
    ] = Keeping.analyse
    analyse_max_seconds: Annotated[
        float, _output("With --analyse: the longest wait, in seconds, for the other ranks, and for the analysis.")
    ] = Keeping.max_seconds
    analyse_max_gb: Annotated[float, _output("With --analyse: the most GB that all ranks together send to rank 0.")] = (
        Keeping.max_gb
    )
    history: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Output",
            metavar="FILE",
            help="With --analyse: add the capture to those of this machine in FILE, from which compare --history "
            "learns how much runs differ.",
        ),
    ] = Keeping.history

    def keeping(self) -> Keeping:
        """The same options as captures take them. Raises UsageError."""
        return Keeping(self.keep, self.analyse, self.analyse_max_seconds, self.analyse_max_gb, self.history)
