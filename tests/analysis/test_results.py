"""What a result says about itself: a short repr, a verdict, a summary, and all of it in a notebook."""

from __future__ import annotations

import inspect
import re
from html import unescape
from pathlib import Path
from shlex import quote

import pytest
from builders import MS, Collective, traces_of
from report_pages import ReadPage
from sweep_builders import Cell, write_sweep
from training_builders import Trained, write_training

from commtrace import Analysis, analyse, analyse_sweep, analyse_training, compare, load_run, run_trend
from commtrace.analysis.recording.options import READING_OPTIONS, GivenOptions, ReadOptions
from commtrace.analysis.show.first_screen import first_screen
from commtrace.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, the second 3 ms late, in a folder whose name is markup."""
    folder: Path = tmp_path_factory.mktemp("runs") / "a<b>&c"
    truth = [Collective((k * 100 * MS, k * 100 * MS + 3 * MS), 10 * MS, elems=250_000_000) for k in (0, 1)]
    for trace in traces_of(2, truth):
        trace.step(1, 0, 90 * MS).step(2, 90 * MS, 190 * MS).kernel("gemm", 5 * MS, 6 * MS).write(folder)
    return folder


@pytest.mark.slow
def test_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = analyse(run, details=True)  # as the command reads small runs
    assert repr(result) == "<Analysis of a<b>&c: 2 ranks, 2 traces; see .summary()>"
    assert not {"calls", "verdicts", "breakdown"} & set(vars(result))  # which would take its time
    assert main([str(run)]) == 0
    printed = capsys.readouterr().out.replace("commtrace", "commtrace")
    assert result.summary() == printed.replace(quote(str(run)), quote(run.name))
    assert main([str(run), "--all"]) == 0
    assert result.summary(everything=True) == capsys.readouterr().out
    assert result.verdict == result.verdicts["because"][0]


@pytest.mark.slow
def test_a_notebook_shows_the_first_screen_of_a_run(run: Path) -> None:
    for details in (True, False):
        result = analyse(run, details=details)
        shown = result._repr_html_()
        assert shown.startswith("<iframe")
        assert "<b>" not in shown
        page = ReadPage(unescape(shown.partition('srcdoc="')[2].partition('"')[0]))
        screen = first_screen(result)
        assert screen.is_priced == details
        text = " ".join(page.texts)
        assert "a<b>&c" in text
        assert screen.headline.partition("Rank 1")[2] in text
        assert ("what it would gain is not known" in text) == (not details)
        assert not [tag for tag, attributes in page.elements if tag == "a" and "href" in attributes]


def test_what_a_notebook_completes_is_what_the_docstring_explains(run: Path) -> None:
    result = analyse(run)
    lists = "\n".join(re.findall(r"^    - (.*):", Analysis.__doc__ or "", re.MULTILINE))
    explained = set(re.findall(r"`(\w+)", lists)) | {"table", "run"}
    assert {*dir(result)} == explained
    assert 20 <= len(explained) <= 25
    assert result.copies is not None  # others are there, though they are not shown


def test_every_option_has_its_line() -> None:
    options = [name for name in inspect.signature(analyse).parameters if name != "path"]
    assert re.findall(r"^    - `(\w+)`: .", analyse.__doc__ or "", re.MULTILINE) == options


def test_callers_can_give_every_option_of_reading() -> None:
    given = [*GivenOptions.__annotations__]
    assert [*given, "dask", "executor"] == [*READING_OPTIONS]  # these two are a scheduler and a module, by name
    for function in (analyse, load_run, compare, run_trend, analyse_sweep):
        assert [*inspect.signature(function).parameters][-len(given) :] == given


def test_options_are_checked_where_they_are_given(run: Path) -> None:
    with pytest.raises(ValueError, match=r"^workers: 0 is less than 1$"):
        analyse(run, workers=0)
    with pytest.raises(ValueError, match=r"^memory_gb: inf is not a finite number above 0$"):
        load_run([run], memory_gb=float("inf"))
    with pytest.raises(ValueError, match=r"^last: 0 is less than 1$"):
        analyse(run, last=0)
    with pytest.raises(ValueError, match=r"^last cannot be given together with steps$"):
        compare(run, run, last=1, steps="1-2")
    with pytest.raises(TypeError, match="'sizes' is no option of reading"):
        analyse(run, sizes=1)  # type: ignore[call-arg]


def test_a_single_text_or_number_stands_for_itself() -> None:
    """A text is a list of its letters, which nobody means."""
    made = ReadOptions.given(comm_names="my_ring", hosts="node7", groups="dp", ranks=0)
    assert (made.comm_names, made.hosts, made.groups, made.ranks) == (("my_ring",), ("node7",), ("dp",), (0,))
    assert ReadOptions.given(steps=11).steps == (11,)


def test_files_of_a_run_can_be_given_in_a_list(run: Path) -> None:
    files = sorted(run.iterdir())
    assert len(files) == 2
    assert len(analyse(files).calls) == len(analyse(run).calls) == 4


@pytest.mark.slow
def test_two_sides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare(run, run)
    assert repr(result) == "<Comparison of a<b>&c with a<b>&c; see .summary()>"
    assert not {"comparison", "changed_kernels"} & set(vars(result))
    assert main(["compare", "--all", str(run), str(run)]) == 0
    assert result.summary() == capsys.readouterr().out
    assert "<b>" not in result._repr_html_()


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sweep(tmp_path / "s<w>", [Cell(1, epoch_s=10), Cell(2, epoch_s=6), Cell(4, epoch_s=4)])
    result = analyse_sweep(folder)
    assert repr(result) == "<SweepAnalysis of s<w>: 3 cells; see .summary()>"
    assert "scaling" not in vars(result)
    assert result.verdict == (
        "resnet18 ddp, 4 workers: an epoch is 2.50 times as fast as with one (T1 / TN: they share its work), "
        "a strong efficiency of 62%"
    )
    assert main(["table", "scaling", str(folder)]) == 0
    assert result.summary() == capsys.readouterr().out
    assert result._repr_html_().startswith("<pre>")
    alone = analyse_sweep(write_sweep(tmp_path / "one", [Cell(1, epoch_s=10)]))
    assert alone.verdict == "no cell with several workers can be compared with one worker"


def test_trainings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training(tmp_path / "small", Trained(1, 128, [(0.9, 0.70), (0.4310, 0.8490)], planned=2))
    write_training(tmp_path / "large", Trained(4, 2048, [(2.1, 0.20), (0.7415, 0.7390)], planned=2))
    result = analyse_training(tmp_path)
    assert repr(result) == "<TrainingAnalysis: trainings 2; see .summary()>"
    assert "training" not in vars(result)
    assert result.verdict == "small is the most accurate after 2 epochs: 84.9%"
    other = analyse_training(tmp_path, baseline="large")
    assert other.verdict == "small is the most accurate after 2 epochs: 84.9%, 11.0 points more than the baseline"
    assert main(["table", "training", str(tmp_path)]) == 0
    assert result.summary() == capsys.readouterr().out
    assert result._repr_html_().startswith("<pre>")
