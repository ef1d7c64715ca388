"""`commtrace report`: write a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.escaping import printable
from ...core.places.place import path_named
from ...recording.options import ReadOptions
from ..inputs import AGAINST, PathOrUrl
from ..output import print_message, write_out
from ..reading_options import CeilingFile, Peaks, analysis_of, analysis_to_show, finish, reads_traces

if TYPE_CHECKING:
    from ...report.page import ReportPage
    from ...results.analysis import Analysis

Reported = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="RUN...",
        parser=path_named,
        help="A run, a sweep, trainings, layers or a lab; with --against, captures of A.",
    ),
]
AfterRuns = Annotated[
    list[PathOrUrl] | None,
    typer.Option(AGAINST, metavar="B...", parser=path_named, help="Compare with these captures."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the page to this file, as HTML.",
        show_default="RUN.html in the current folder",
    ),
]
DrawnStep = Annotated[
    int | None,
    typer.Option("--step", metavar="N", help="Draw this step on every rank.", show_default="the one with most waiting"),
]
ScalarsBeside = Annotated[
    Path | None,
    typer.Option(
        "--scalars",
        metavar="FILE",
        help="Of a run: also write what `export scalars` does to this file.",
        show_default=False,
    ),
]
_NO_RUN = _SWEEP, _TRAINING, _LAYERS, _LAB = "sweep.json", "training.json", "layers.json", "lab.json"


@reads_traces
def report_command(
    runs: Reported,
    against: AfterRuns = None,
    output: ReportFile = None,
    step: DrawnStep = None,
    scalars: ScalarsBeside = None,
    ceiling: CeilingFile = None,
    peak: Peaks = None,
    *,
    reading: ReadOptions,
) -> None:
    """Write one page that needs no network.

    For a run it shows what to try, heat maps of ranks and steps, where the time went, the critical path, bandwidth, one
    step on all ranks, and who waits for whom; for a sweep scaling; for trainings loss and accuracy; for `layers` memory
    and power; for a lab all its experiments; and with --against both sides of a comparison.

    \b
    Examples:
      commtrace report traces/my-run
      commtrace report traces/my-run --step 7 --output report.html
      commtrace report traces/before --against traces/after
      commtrace report traces/my-sweep
    """
    if scalars is not None and (against or any(_are(runs, name) for name in _NO_RUN)):
        raise typer.BadParameter("is for a run only", param_hint="--scalars")
    if against:
        _compared(runs, against, output, reading)
    elif _are(runs, _SWEEP):
        _of_sweep(runs, output, reading)
    elif _are(runs, _LAB):
        _of_lab(_only(runs, "lab"), output)
    elif _are(runs, _LAYERS):
        _of_layers(_only(runs, "folder of `layers`"), output)
    elif _are(runs, _TRAINING):
        _of_trainings(runs, output)
    else:
        analysis = analysis_to_show(runs, reading, ceiling, peak)
        if scalars is not None:
            from ...show.scalars import run_scalars

            write_out(run_scalars(analysis).as_json(), scalars)
        _written(analysis.report(step=step), output)
        _end(analysis)


def _are(paths: list[Path], name: str) -> bool:
    """Whether all are sweeps, trainings and so on, by the name of the file that says so; a training without traces."""
    return all(_holds(path, name) and not (name == _TRAINING and _has_traces(path)) for path in paths)


def _holds(path: Path, name: str) -> bool:
    """Whether the folder, or a folder in it, has such a file; a sweep has it itself."""
    return (path / name).is_file() or (name == _TRAINING and any(path.glob(f"*/{name}")))


def _has_traces(path: Path) -> bool:
    return any(path.glob("*.pt.trace.*"))


def _compared(runs: list[Path], against: list[Path], output: Path | None, reading: ReadOptions) -> None:
    from dataclasses import replace

    sides = [[analysis_of([path], replace(reading), details=True) for path in side] for side in (runs, against)]
    from ...comparison.analysis import Comparison
    from ...report.across import comparison_page

    name = f"{sides[0][0].run.name} and {sides[1][0].run.name}"
    _written(comparison_page(name, Comparison(tuple(sides[0]), tuple(sides[1]))), output)
    for analysis in (*sides[0], *sides[1]):
        _end(analysis)


def _end(analysis: Analysis) -> None:
    """Print problems of the traces, and exit with the code for them."""
    for note in analysis.run.notes:
        print_message(note, kind="note")
    finish(analysis)


def _of_sweep(runs: list[Path], output: Path | None, reading: ReadOptions) -> None:
    from ...report.across import sweep_page
    from ...sweeps.analysis import sweep_analysis_of
    from ..output import progress
    from ..sweep_input import finish_sweep

    with progress() as shown:
        analysis = sweep_analysis_of(runs, reading, shown)
        written = sweep_page(runs[0].resolve().name, analysis)
    _written(written, output)
    finish_sweep(analysis)


def _of_trainings(runs: list[Path], output: Path | None) -> None:
    from ...report.across import training_page
    from ...training.analysis import analyse_training

    _written(training_page(runs[0].resolve().name, analyse_training(*runs)), output)


def _only(paths: list[Path], what: str) -> Path:
    """The only path. Raises BadParameter."""
    if len(paths) > 1:
        raise typer.BadParameter(f"one {what} at a time, found {len(paths)}", param_hint="RUN...")
    return paths[0]


def _of_lab(folder: Path, output: Path | None) -> None:
    from ...report.lab import lab_page

    _written(lab_page(folder), output)


def _of_layers(folder: Path, output: Path | None) -> None:
    from ...lab.files import read_layers
    from ...report.lab import layers_page

    _written(layers_page(folder.resolve().name, read_layers(folder)), output)


def _written(report: ReportPage, output: Path | None) -> None:
    """Write the page and print its path. Raises UnreadableFile."""
    target = output or Path(f"{printable(report.title).replace('/', '_')}.html")
    write_out(report.html, target)
    message = f"{target}: {len(report.html.encode()) / 1e3:,.0f} kB; open it in any browser"
    if output is None:
        write_out(f"{message}\n", None)
    else:
        print_message(message, kind="note")
