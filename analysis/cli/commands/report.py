"""`commtrace report`: write a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.escaping import printable
from ...core.places.place import path_named
from ...recording.options import ReadOptions
from ..inputs import AGAINST, PathOrUrl
from ..output import print_message, write_out, write_parts
from ..reading_options import CeilingFile, Peaks, analysis_of, analysis_to_show, finish, reads_traces

if TYPE_CHECKING:
    from ...render.plots.figure import Figure
    from ...report.page import ReportPage
    from ...results.analysis import Analysis

Reported = Annotated[
    list[PathOrUrl],
    typer.Argument(
        metavar="RUN...",
        parser=path_named,
        help="A run, a sweep, trainings, layers, capacity or a lab; with --against, captures of A.",
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
    typer.Option("--step", metavar="N", help="Draw this step on every rank.", show_default="the one that loses most"),
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
FigureFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--figure",
        metavar="NAME.svg|NAME.png|list",
        help="Write this figure of the page to a file by itself, instead of the page: heatmap.svg, or speedup.png of a "
        "sweep; `list` prints the names that there are. Repeatable.",
        show_default=False,
    ),
]
_NO_RUN = _SWEEP, _TRAINING, _LAYERS, _LAB, _CAPACITY = (
    "sweep.json", "training.json", "layers.json", "lab.json", "capacity.json",
)  # fmt: skip
_LIST, _STEP = Path("list"), "step"
_PICTURES = (".svg", ".png")


@dataclass(frozen=True)
class _Files:
    """What to write: figures of the page by themselves, and the page, unless only figures are asked for."""

    page: Path | None
    figures: Sequence[Path]

    def check(self) -> None:
        """Raise BadParameter or MissingLibrary where no figure can be written so, before anything is read."""
        suffixes = {file: file.suffix.lower() for file in self.figures if file != _LIST}
        for file, suffix in suffixes.items():
            if suffix not in _PICTURES:
                message = f"{file}: expected a name that ends with .svg or .png, such as {file.stem}.svg"
                raise typer.BadParameter(message, param_hint="--figure")
        if ".png" in suffixes.values():
            from ...render.plots.figure import check_png

            check_png()

    def write(self, report: ReportPage, step: Callable[[], Figure] | None = None) -> None:
        """Write all, and print the path of a page that has none given; `step` draws a step of a run.

        Raises UnreadableFile, BadParameter, NothingMeasured.
        """
        titles = {name: figure.title for name, figure in report.figures.items()}
        if step is not None:
            titles[_STEP] = "One step on all ranks, on one clock"
        if _LIST in self.figures:
            wide = max(map(len, titles), default=0)
            write_out("".join(f"{name:<{wide}}  {title}\n" for name, title in titles.items()), None)
        files = [file for file in self.figures if file != _LIST]
        unknown = next((file.stem for file in files if file.stem not in titles), None)
        if unknown is not None:
            known = ", ".join(titles) or "none"
            message = f"{printable(report.title)} has no figure {printable(unknown)}; it has {known}"
            raise typer.BadParameter(message, param_hint="--figure")
        for file in files:
            figure = step() if step is not None and file.stem == _STEP else report.figures[file.stem]
            write_parts([figure.content(file.suffix.lower())], file)
        if not self.figures or self.page is not None:
            _write_page(report, self.page)


@reads_traces
def report_command(
    runs: Reported,
    against: AfterRuns = None,
    output: ReportFile = None,
    figure: FigureFiles = None,
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
    and power; for `capacity` how many layers fit; for a lab all its experiments; with --against both sides.

    \b
    Examples:
      commtrace report traces/my-run
      commtrace report traces/my-run --step 7 --output report.html
      commtrace report traces/before --against traces/after
      commtrace report traces/my-sweep
      commtrace report traces/my-sweep --figure speedup.svg
      commtrace report traces/my-run --figure list
    """
    if scalars is not None and (against or any(_are(runs, name) for name in _NO_RUN)):
        raise typer.BadParameter("is for a run only", param_hint="--scalars")
    files = _Files(output, figure or [])
    files.check()
    if against:
        _compared(runs, against, files, reading)
    elif _are(runs, _SWEEP):
        _of_sweep(runs, files, reading)
    elif _are(runs, _LAB):
        _of_lab(_only(runs, "lab"), files)
    elif _are(runs, _LAYERS):
        _of_layers(_only(runs, "folder of `layers`"), files)
    elif _are(runs, _CAPACITY):
        _of_capacity(_only(runs, "folder of `capacity`"), files)
    elif _are(runs, _TRAINING):
        _of_trainings(runs, files)
    else:
        analysis = analysis_to_show(runs, reading, ceiling, peak)
        if scalars is not None:
            from ...show.scalars import run_scalars

            write_out(run_scalars(analysis).as_json(), scalars)
        from ...report.run_report import step_figure

        files.write(analysis.report(step=step), lambda: step_figure(analysis, step))
        _end(analysis)


def _are(paths: list[Path], name: str) -> bool:
    """Whether all are sweeps, trainings and so on, by the name of the file that says so.

    One training with traces is a run. Of several folders each has its own, so they cannot be parts of one run.
    """
    is_run = name == _TRAINING and len(paths) == 1 and _has_traces(paths[0])
    return all(_holds(path, name) for path in paths) and not is_run


def _holds(path: Path, name: str) -> bool:
    """Whether the folder, or a folder in it, has such a file; a sweep has it itself, or is a CSV of timings."""
    if name == _SWEEP and path.suffix.lower() == ".csv":
        return True
    return (path / name).is_file() or (name == _TRAINING and any(path.glob(f"*/{name}")))


def _has_traces(path: Path) -> bool:
    return any(path.glob("*.pt.trace.*"))


def _compared(runs: list[Path], against: list[Path], files: _Files, reading: ReadOptions) -> None:
    from dataclasses import replace

    sides = [[analysis_of([path], replace(reading), details=True) for path in side] for side in (runs, against)]
    from ...comparison.analysis import Comparison
    from ...report.across import comparison_page

    name = f"{sides[0][0].run.name} and {sides[1][0].run.name}"
    files.write(comparison_page(name, Comparison(tuple(sides[0]), tuple(sides[1]))))
    for analysis in (*sides[0], *sides[1]):
        _end(analysis)


def _end(analysis: Analysis) -> None:
    """Print problems of the traces, and exit with the code for them."""
    for note in analysis.run.notes:
        print_message(note, kind="note")
    finish(analysis)


def _of_sweep(runs: list[Path], files: _Files, reading: ReadOptions) -> None:
    from ...report.across import sweep_page
    from ...sweeps.analysis import sweep_analysis_of
    from ..output import progress
    from ..sweep_input import finish_sweep

    with progress() as shown:
        analysis = sweep_analysis_of(runs, reading, shown)
        written = sweep_page(runs[0].resolve().name, analysis)
    files.write(written)
    finish_sweep(analysis)


def _of_trainings(runs: list[Path], files: _Files) -> None:
    from ...report.across import training_page
    from ...training.analysis import analyse_training

    files.write(training_page(runs[0].resolve().name, analyse_training(*runs)))


def _only(paths: list[Path], what: str) -> Path:
    """The only path. Raises BadParameter."""
    if len(paths) > 1:
        raise typer.BadParameter(f"one {what} at a time, found {len(paths)}", param_hint="RUN...")
    return paths[0]


def _of_lab(folder: Path, files: _Files) -> None:
    from ...report.lab import lab_page

    files.write(lab_page(folder))


def _of_layers(folder: Path, files: _Files) -> None:
    from ...lab.files import read_layers
    from ...report.lab import layers_page

    files.write(layers_page(folder.resolve().name, read_layers(folder)))


def _of_capacity(folder: Path, files: _Files) -> None:
    from ...lab.files import read_capacity
    from ...report.lab import capacity_page

    files.write(capacity_page(folder.resolve().name, read_capacity(folder)))


def _write_page(report: ReportPage, output: Path | None) -> None:
    """Write the page and print its path. Raises UnreadableFile."""
    target = output or Path(f"{printable(report.title).replace('/', '_')}.html")
    write_out(report.html, target)
    message = f"{target}: {len(report.html.encode()) / 1e3:,.0f} kB; open it in any browser"
    if output is None:
        write_out(f"{message}\n", None)
    else:
        print_message(message, kind="note")
