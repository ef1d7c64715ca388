"""`commtrace watch`: follow a run while it is running."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....common.option_groups import takes
from ....common.wording import counted
from ...core.process import gc_frozen
from ...core.schema import Row
from ...errors import NothingMeasured, NoTraces, UnreadableFile
from ...recording.options import ReadOptions
from ...watching.limits import Limits, Pace, limit_in
from ..history import HistoryInto, keep
from ..output import finite, print_message, write_if_read
from ..reading_options import reading
from ..terminal import width_of_stdout

if TYPE_CHECKING:
    from ...results.analysis import Analysis
    from ...tensorboard.scalars import ScalarLog
    from ...watching.follow import Ending, Watch
    from ...watching.job import Job
    from .live import JobView, MetricsServer

_PASSED = 3
_MOST_LEFT = 5
_MOST_CYCLES = 3
"""The last cycles that are shown with a job."""


class RowFormat(str, Enum):
    """Format of a row on stdout."""

    table = "table"
    jsonl = "jsonl"


Watched = Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, which need not exist yet.")]
StdoutFormat = Annotated[
    RowFormat, typer.Option("--format", "-f", help="Lines for people, or one JSON object per line.")
]
RowsInto = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Also append the rows to this file, as JSON lines."),
]
ScalarsInto = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="Write curves for TensorBoard into this folder.")
]
MostAllowed = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-above",
        metavar="LIMIT",
        help="Exit with 3 when a cycle passes exposed=PERCENT, wait=PERCENT or step-ms=MS; repeatable.",
    ),
]
GoOn = Annotated[
    bool, typer.Option("--go-on", help="Keep watching after a limit is passed, and exit with 3 at the end.")
]
TriggerAbove = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        min=1,
        callback=finite,
        help="Have two steps captured when steps of a rank take this much longer than before, and say what they show.",
        show_default="never",
    ),
]
PrometheusPort = Annotated[
    int | None,
    typer.Option(
        "--prometheus",
        metavar="PORT",
        min=1,
        max=65535,
        help="Answer Prometheus at this port of 127.0.0.1: steps, who is late, and the last capture.",
        show_default="no port",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process existing cycles, then exit.")]
Every = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.01, max=86_400, callback=finite, help="How often to look for new traces."),
]
PatienceS = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="SECONDS",
        min=0,
        callback=finite,
        help="Report an incomplete cycle, without the ranks that are missing, this long after its last change.",
    ),
]
Idle = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        callback=finite,
        help="Exit if nothing new appears for this long.",
        show_default="never",
    ),
]
StateAt = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="FILE", help="Remember in this file what was reported.", show_default="a hidden file in DIR"
    ),
]


def _pace(once: Once = False, every: Every = 2.0, patience: PatienceS = 120.0, idle: Idle = None) -> Pace:
    if once and idle is not None:
        raise typer.BadParameter("cannot be given together with --once", param_hint="--idle")
    return Pace(every, patience, idle, once)


def _limits(fail_above: MostAllowed = None, go_on: GoOn = False) -> Limits:
    if go_on and not fail_above:
        raise typer.BadParameter("needs --fail-above", param_hint="--go-on")
    try:
        return Limits(tuple(map(limit_in, fail_above or ())), go_on)
    except ValueError as err:
        raise typer.BadParameter(str(err), param_hint="--fail-above") from err


@takes(limits=_limits, pace=_pace, reading=reading("comm_names", "workers"))
def watch_command(
    runs: Watched,
    output_format: StdoutFormat = RowFormat.table,
    output: RowsInto = None,
    tensorboard: ScalarsInto = None,
    state: StateAt = None,
    trigger_above: TriggerAbove = None,
    prometheus: PrometheusPort = None,
    history: HistoryInto = None,
    *,
    limits: Limits,
    pace: Pace,
    reading: ReadOptions,
) -> None:
    """Follow a run.

    One line is printed for each profiling cycle, as soon as all ranks have written their traces of it. A job that
    commtrace run has started is shown as a table on stderr all the while: its ranks, the slowest first, who is late and
    since when, evaluations and checkpoints, and the last captures. Where stderr is no terminal, changes are lines.
    Watching ends when the job does, or the side files say that the run has ended, or with Ctrl-C. Started again, it
    continues where it stopped: no cycle is reported twice or left out.

    \b
    Examples:
      commtrace watch traces/my-run
      commtrace watch traces/my-run --output cycles.jsonl --tensorboard logs
      commtrace watch traces/my-run --fail-above wait=10 --go-on
      commtrace watch traces/my-run --trigger-above 30 --prometheus 9400
      commtrace watch traces/my-run --history captures.jsonl
      commtrace watch traces/my-run --once -f jsonl | jq .step_ns
    """
    for option, given in (("--trigger-above", trigger_above), ("--prometheus", prometheus)):
        if given is not None and pace.once:
            raise typer.BadParameter(f"cannot be given together with {option}", param_hint="--once")
    if runs.exists() and not runs.is_dir():
        raise NoTraces(f"{runs}: is a file; expected a run directory")
    if pace.once and not runs.exists():
        raise NoTraces(f"{runs}: no such directory; expected a run directory, or no --once to wait for it")
    with gc_frozen():
        from ...watching.files import RunFolder
        from ...watching.follow import Watch
        from ...watching.job import Job
        from ...watching.ledger import Ledger
        from ...watching.opening import analysis_by
        from .live import JobView, MetricsServer

    server = None if prometheus is None else MetricsServer(prometheus)
    view = JobView()
    outputs = _Outputs(output_format, _log(tensorboard), history, runs, view, server)
    ledger = Ledger(runs, state, output)
    analyse = analysis_by(reading)
    job = None if pace.once else Job(runs, analyse, None if trigger_above is None else 1 + trigger_above / 100)
    watch = Watch(RunFolder(runs), ledger, analyse, outputs, pace, job)
    try:
        ending = watch.run(limits)
    finally:
        view.end()
        ledger.close()
        if server is not None:
            server.end()
    _finish(watch, ending)


def _log(folder: Path | None) -> ScalarLog | None:
    if folder is None:
        return None
    from ...tensorboard.scalars import ScalarLog

    return ScalarLog(folder)


class _Outputs:
    """Where rows go: stdout, stderr, and curves; and the history of the machine, where cycles go; and the job."""

    def __init__(
        self,
        output_format: RowFormat,
        log: ScalarLog | None,
        history: Path | None,
        folder: Path,
        view: JobView,
        server: MetricsServer | None,
    ) -> None:
        self._format, self._log, self._history, self._folder = output_format, log, history, folder
        self._view, self._server = view, server
        self._cycles: list[Row] = []
        self._noted: tuple[str | None, ...] = ()
        self._has_header = False

    def draw(self, cycle: Analysis) -> None:
        """Write the curves of the cycle's steps, and keep it in the history."""
        if self._history is not None:
            keep(self._history, cycle, self._folder)
        if self._log is None:
            return
        from ...tensorboard.scalars import step_scalars

        try:
            self._log.add(step_scalars(cycle))
        except NothingMeasured:
            return  # of which its row says why
        except OSError as err:
            raise UnreadableFile(f"curves for TensorBoard cannot be written: {err.strerror}") from err

    def show(self, row: Row) -> None:
        """Print one row, and on stderr what is unusual, unless the cycle before was unusual in the same way."""
        self._cycles = [*self._cycles, row][-_MOST_CYCLES:]
        with self._view.aside():
            if not write_if_read(self._text(row)):
                raise typer.Exit
            self._print_unusual(row)

    def _print_unusual(self, row: Row) -> None:
        missing = None if row["missing"] is None else f"no trace of rank {row['missing']}"
        unusual = (missing, row["note"])
        for note in unusual if self._format is RowFormat.table else ():
            if note is not None and note not in self._noted:
                print_message(f"cycle {row['cycle']}: {note}", kind="note")
        self._noted = unusual

    def say(self, note: str) -> None:
        """Print a note on stderr."""
        with self._view.aside():
            print_message(note, kind="note")

    def show_job(self, job: Job) -> None:
        """Show the job as it is now."""
        self._view.show(job, self._cycles)
        if self._server is not None:
            self._server.update(job, self._cycles)

    def _text(self, row: Row) -> str:
        if self._format is RowFormat.jsonl:
            from ...watching.row_file import as_line

            return as_line(row).decode()
        from ...render.cycle_lines import cycle_header, cycle_line

        width = width_of_stdout()
        header = "" if self._has_header else cycle_header(width)
        self._has_header = True
        return header + cycle_line(row, width)


def _finish(watch: Watch, ending: Ending) -> None:
    """Print how the run ended, and exit with the code for it."""
    cycles = counted(watch.reported, "cycle")
    why = f", early: {'; '.join(watch.ended_early)}" if watch.ended_early else ""
    print_message(f"{ending.value}{why}; {cycles} reported", kind="note")
    for cycle, reason in list(watch.left.items())[:_MOST_LEFT]:
        print_message(f"cycle {cycle} is not reported yet: {reason}", kind="note")
    if watch.passed is not None:
        print_message(watch.passed, kind="limit")
        raise typer.Exit(_PASSED)
    if watch.reported and watch.unchecked:
        names = ", ".join(sorted(limit.measure for limit in watch.unchecked))
        print_message(f"no cycle shows {names}, so nothing was compared with that limit")
    if watch.unusable:
        print_message(
            f"{counted(watch.unusable, 'cycle')} had unusable files; see the messages above, or the column `note`"
        )
    if watch.unusable or (watch.reported and watch.unchecked):
        raise typer.Exit(1)
