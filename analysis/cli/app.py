"""The command line: parse, call, print. No arithmetic here; every number it shows the library can return."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from copy import copy
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..catalog import CATALOG, InputKind
from ..errors import AnalysisError, NothingMeasured
from ..recording.options import ReadOptions
from . import compare as cli_compare
from . import kernels as cli_kernels
from . import sweeps as cli_sweeps
from . import training as cli_training
from .inputs import SparingInputs
from .output import Format, Output, OutputFormat, ascii_only, complain, show, take_any_text, write
from .reading_options import Runs, analysed, analysis_of, finish, one_device, opened, reads_traces

if TYPE_CHECKING:
    from ..render import Table
    from ..results.analysis import Analysis

# pandas takes half a second to import, so whatever needs it is imported where it is used: --help stays instant.


_INTERRUPTED = 130


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

CeilingFile = Annotated[
    Path | None,
    typer.Option(
        "--ceiling",
        metavar="FILE",
        help="Compare with what `profiling comms` (comms.json or its folder) or nccl-tests (-J, or text) measured.",
    ),
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
  {prog} bandwidth --ceiling traces/comms-nccl-w8 traces/my-run
  {prog} collectives --format json traces/my-run | jq '.rows[0]'
  {prog} kernels --by operator --top 20 traces/my-run
  {prog} compare traces/before-* --against traces/after-*
  {prog} scaling --format latex traces/my-sweep
  {prog} training traces/small-batch traces/large-batch
  {prog} breakdown --comm-kernel 'my_all_reduce' rank0.json.gz rank1.json.gz

\b
Exit codes: 0 done, 1 the input is at fault, 2 the command line is, 3 compare --fail-above found B slower.
"""


@app.callback()
def _root() -> None:
    """Replaced in `main`, which knows the program's name."""


@app.command("summary", cls=SparingInputs)
@reads_traces
def summary_command(
    runs: Runs,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    ceiling: CeilingFile = None,
    *,
    reading: ReadOptions,
) -> None:
    """What was read and how far it can be trusted, then breakdown, bandwidth and ranks (the default)."""
    analysis = analysis_of(runs, reading, ceiling)
    from ..results.summary import summary

    write(summary(analysis, output_format.value, ascii_only=ascii_only()), output)
    finish(analysis)


@app.command("breakdown", cls=SparingInputs)
@reads_traces
def breakdown_command(
    runs: Runs,
    by: Annotated[By, typer.Option(help="A row per device, or per device and step.")] = By.device,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    *,
    reading: ReadOptions,
) -> None:
    """Where every device's time went: compute, communication, both, copies, nothing."""
    name = "breakdown" if by is By.device else "breakdown_steps"
    with opened(runs, reading) as run:
        device = one_device(run)
        if device is None:
            _show(name, analysed(run), output_format, output)
            return
    table = getattr(device, name)
    if not len(table):
        raise NothingMeasured(f"{run.name}: {CATALOG[name].none_measured}")
    _print(name, table, device.notes, output_format, output)


@app.command("bandwidth", cls=SparingInputs)
@reads_traces
def bandwidth_command(
    runs: Runs,
    output_format: OutputFormat = Format.table,
    output: Output = None,
    ceiling: CeilingFile = None,
    *,
    reading: ReadOptions,
) -> None:
    """Bandwidth as nccl-tests defines it, by process group, collective, dtype and size."""
    name = "bandwidth" if ceiling is None else "bandwidth_ceiling"
    _show(name, analysis_of(runs, reading, ceiling), output_format, output)


def _add_table_command(name: str, help_text: str) -> None:
    @app.command(name, help=help_text, cls=SparingInputs)
    @reads_traces
    def table_command(
        runs: Runs,
        output_format: OutputFormat = Format.table,
        output: Output = None,
        *,
        reading: ReadOptions,
    ) -> None:
        _show(name, analysis_of(runs, reading), output_format, output)


_OWN = {command for module in (cli_kernels, cli_sweeps, cli_training) for command in module.COMMANDS}
_SIMPLE = [
    entry
    for entry in CATALOG.values()
    if entry.of is InputKind.run and entry.command == entry.name and entry.name not in {"breakdown", "bandwidth", *_OWN}
]
for _entry in _SIMPLE:
    _add_table_command(_entry.name, _entry.about)

for _module in (cli_kernels, cli_sweeps, cli_training):
    for _name, _command in _module.COMMANDS.items():
        app.command(_name, epilog=_module.EXAMPLES[_name], cls=SparingInputs)(_command)
app.command("compare", epilog=cli_compare.EXAMPLES, cls=cli_compare.Sides)(cli_compare.compare_command)


def _show(name: str, analysis: Analysis, output_format: Format, output: Path | None) -> None:
    """Print one table of the run."""
    table, found_none = analysis.table(name), CATALOG[name].none_found
    if not len(table) and not (found_none and len(analysis.calls)):
        for failure in analysis.run.failed:
            complain(failure)
        raise NothingMeasured(f"{analysis.run.name}: {_why_empty(name, analysis)}")
    notes = analysis.ceiling.notes if analysis.ceiling is not None else ()
    none = () if len(table) else (found_none or "",)
    _print(name, table, (*notes, *analysis.run.notes, *none), output_format, output)
    finish(analysis)


def _print(name: str, table: Table, notes: Iterable[str], output_format: Format, output: Path | None) -> None:
    for note in notes:
        complain(note, kind="note")
    show(name, table, output_format, output)


def _why_empty(name: str, analysis: Analysis) -> str:
    if not len(analysis.run.activities):
        return (
            "the traces show no device activity and no gloo operation; capture with ProfilerActivity.CUDA on GPUs, "
            "ProfilerActivity.CPU on gloo"
        )
    because = CATALOG[name].none_measured
    if because is not None and (len(analysis.calls) or not CATALOG[name].needs_calls):
        return because
    return "no communication in the profiled window; use `breakdown` for the rest"


def _with_default_command(arguments: list[str]) -> list[str]:
    """`RUN` alone means `summary RUN`."""
    commands = {"summary", "breakdown", "bandwidth", *(entry.name for entry in _SIMPLE), *_OWN, "compare"}
    if not arguments or arguments[0] in commands or arguments[0] in ("-h", "--help"):
        return arguments
    return ["summary", *arguments]


def _with_only(names: list[str]) -> typer.Typer:
    """The app with only these of its commands, as making all takes 15 ms; with all where it has none of these."""
    named = copy(app)
    named.registered_commands = [c for c in app.registered_commands if c.name in names] or app.registered_commands
    return named


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 the input is at fault, 2 the command line is, 3 see `compare`."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's: nothing here multiplies matrices, and starting costs
    package = str(__package__).rpartition(".")[0]
    program = "commtrace" if package == "commtrace.analysis" else f"python -m {package}"
    arguments = _with_default_command(sys.argv[1:] if argv is None else argv)
    try:
        command = typer.main.get_group(_with_only(arguments[:1]))
        command.help = _HELP.format(prog=program)
        for each in command.commands.values():
            each.epilog = each.epilog and each.epilog.replace("{prog}", program)
        take_any_text()
        command.main(args=arguments, prog_name=program, standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except AnalysisError as err:
        complain(str(err))
        return 1
    except MemoryError:
        complain("the memory does not suffice; give fewer runs or files at once, or fewer --workers")
        return 1
    except KeyboardInterrupt:  # before, or after, the command
        return _INTERRUPTED
    return 0
