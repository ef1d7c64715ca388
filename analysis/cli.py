"""The command line: parse, call, print. No arithmetic here; every number it shows the library can return."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import AnalysisError, NothingMeasured, UnreadableFile
from .kinds import comm_pattern

if TYPE_CHECKING:
    import pandas as pd

    from .measure import Analysis
    from .reading import Reading

_QUIET_S = 1.0

# pandas takes half a second to import, so whatever needs it is imported where it is used: --help stays instant.


class Format(str, Enum):
    """How a table is written."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    json = "json"


class By(str, Enum):
    """What a row of the breakdown is."""

    device = "device"
    step = "step"


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="A run directory, any folder of Kineto traces, or trace files.")
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="For people, or for programs.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of stdout.")]
CommNames = Annotated[
    list[str] | None,
    typer.Option("--comm-kernel", metavar="REGEX", help="Also count kernels with such names as communication."),
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Leave out files that cannot be used; the exit code is 1 all the same.")
]

_HELP = """Measure communication in distributed PyTorch training from Kineto traces.

\b
RUN is a run directory, any folder of Kineto traces (one file per rank), or trace files.
Without a command it is summarised.

\b
Examples:
  {prog} traces/my-run
  {prog} breakdown --by step traces/my-run
  {prog} bandwidth --format csv --output bandwidth.csv traces/my-run
  {prog} collectives --format json traces/my-run | jq '.rows[0]'
  {prog} breakdown --comm-kernel 'my_all_reduce' rank0.json.gz rank1.json.gz

\b
Exit codes: 0 done, 1 the input is at fault, 2 the command line is.
"""


@app.callback()
def _root() -> None:
    """Replaced in `main`, which knows the program's name."""


@app.command("summary")
def summary_command(
    runs: Runs,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    comm_kernel: CommNames = None,
    keep_going: KeepGoing = False,
) -> None:
    """What was read and how far it can be trusted, then breakdown, bandwidth and ranks (the default)."""
    analysis = _analysis(runs, comm_kernel, keep_going)
    from .report import summary

    _write(summary(analysis, output_format.value, ascii_only=_ascii_only()), output)
    _finish(analysis)


@app.command("breakdown")
def breakdown_command(
    runs: Runs,
    by: Annotated[By, typer.Option(help="A row per device, or per device and step.")] = By.device,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    comm_kernel: CommNames = None,
    keep_going: KeepGoing = False,
) -> None:
    """Where every device's time went: compute, communication, both, copies, nothing."""
    name = "breakdown" if by is By.device else "breakdown_steps"
    _show(name, runs, output_format, output, comm_kernel, keep_going)


_TABLES = {
    "calls": "Every communication call of every rank, with what is known of it.",
    "collectives": "Every collective, all ranks together: arrival skew, transfer time, bandwidth.",
    "participation": "Every rank's wait and transfer in every collective.",
    "bandwidth": "Bandwidth as nccl-tests defines it, by process group, collective, dtype and size.",
    "fits": "Latency and bandwidth of every collective, fitted over its sizes.",
    "ranks": "Who waits, and for whom, and why: one row per rank.",
    "lateness": "Every collective with a late rank, and what that rank did meanwhile.",
    "clocks": "How far every rank's clock is off, and how uncertain that is.",
    "verdicts": "What limits the run, and every collective, in one sentence each.",
}


def _add_table_command(name: str, help_text: str) -> None:
    @app.command(name, help=help_text)
    def table_command(
        runs: Runs,
        output_format: OutputFormat = Format.table,
        output: Output = None,
        comm_kernel: CommNames = None,
        keep_going: KeepGoing = False,
    ) -> None:
        _show(name, runs, output_format, output, comm_kernel, keep_going)


for _name, _help in _TABLES.items():
    _add_table_command(_name, _help)


def _show(
    name: str,
    runs: list[Path],
    output_format: Format,
    output: Path | None,
    comm_kernel: list[str] | None,
    keep_going: bool,
) -> None:
    """Print one table of the run."""
    analysis = _analysis(runs, comm_kernel, keep_going)
    table: pd.DataFrame = getattr(analysis, name)
    if not len(table) and not (name in _FINE_EMPTY and len(analysis.calls)):
        raise NothingMeasured(f"{analysis.run.name}: {_why_empty(name, analysis)}")
    from .render import FORMATS, as_text

    for note in analysis.run.notes if len(table) else (*analysis.run.notes, _FINE_EMPTY[name]):
        _complain(note, kind="note")
    if output_format is Format.table:
        _write(as_text(name, table, ascii_only=_ascii_only()), output)
    else:
        _write(FORMATS[output_format.value](name, table), output)
    _finish(analysis)


# Tables in which no row is a result too.
_FINE_EMPTY = {
    "lateness": "no rank was late by more than the clocks are uncertain",
    "fits": "no collective was measured with three sizes or more",
}


def _why_empty(name: str, analysis: Analysis) -> str:
    if not len(analysis.run.activities):
        return (
            "the traces show no device activity and no gloo operation; capture with ProfilerActivity.CUDA on GPUs, "
            "ProfilerActivity.CPU on gloo"
        )
    if name == "breakdown_steps":
        return "no activity belongs to a step; call profiler.step() in the loop, or use `breakdown` without --by step"
    if name == "bandwidth" and len(analysis.calls):
        return "no call has a size; capture with record_shapes=True, or with torch >= 2.3"
    return "no communication in the profiled window; use `breakdown` for the rest"


def _analysis(runs: list[Path], comm_kernel: list[str] | None, keep_going: bool) -> Analysis:
    from .reading import Reading, cores
    from .trace_paths import trace_files

    for pattern in comm_kernel or ():
        try:
            re.compile(pattern)
        except re.error as err:
            message = f"{pattern!r} is no regular expression: {err}"
            raise typer.BadParameter(message, param_hint="--comm-kernel") from err
    files, skipped = trace_files(runs)
    with Reading(files, comm_pattern(comm_kernel or ()), workers=cores(), keep_damaged=keep_going) as reading:
        from .measure import Analysis  # which takes its time while others read
        from .run import run_of

        with _progress(reading) as report:
            run = run_of(runs, reading, keep_going=keep_going, progress=report)
    return Analysis(replace(run, notes=run.notes + tuple(skipped)))


@contextmanager
def _progress(reading: Reading) -> Iterator[Callable[[int], None] | None]:
    """How much of the files is read, on a terminal, once that takes more than a second."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(f"reading {len(reading.paths)} files", total=sum(reading.sizes))
    begun = time.monotonic()

    def report(done: int) -> None:
        bar.update(task, completed=done)
        if time.monotonic() - begun > _QUIET_S and not bar.live.is_started:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()


def _finish(analysis: Analysis) -> None:
    for failure in analysis.run.failed:
        _complain(failure)
    if analysis.run.failed:
        raise typer.Exit(1)


def _complain(message: str, kind: str = "error") -> None:
    """One line on stderr; names in it come from files, and must not move a terminal's cursor."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in message)
    print(f"{kind}: {plain}", file=sys.stderr)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, head(1) for one, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    target = output.resolve()  # a link stays one
    partial = target.with_name(target.name + ".partial")
    try:
        if target.exists() and not target.is_file():  # a pipe, /dev/stdout
            target.write_text(text, encoding="utf-8")
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as err:
        if partial.is_file():
            partial.unlink()
        raise UnreadableFile(f"{output}: cannot be written: {err.strerror}") from err


def _ascii_only() -> bool:
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")


def _with_default_command(arguments: list[str]) -> list[str]:
    """`RUN` alone means `summary RUN`."""
    commands = {"summary", "breakdown", *_TABLES}
    if not arguments or arguments[0] in commands or arguments[0] in ("-h", "--help"):
        return arguments
    return ["summary", *arguments]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 the command line is."""
    program = "commtrace" if __package__ == "commtrace.analysis" else f"python -m {__package__}"
    arguments = _with_default_command(sys.argv[1:] if argv is None else argv)
    command = typer.main.get_command(app)
    command.help = _HELP.format(prog=program)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        command.main(args=arguments, prog_name=program, standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except AnalysisError as err:
        _complain(str(err))
        return 1
    return 0
