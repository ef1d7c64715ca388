"""The command that compares trainings: output for people and programs, the plot, and one line for every bad input."""

import csv
import io
import json
import re
import sys

import pytest
from capturing import fresh_python
from training_builders import Trained, write_training

from commtrace.cli import main

FORMATS = ("table", "csv", "markdown", "json", "latex")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small batch and a large one that grew, and a third that diverged in its second epoch."""
    found = tmp_path_factory.mktemp("trainings")
    write_training(found / "small-batch", Trained(1, 128, [(0.9, 0.70), (0.4310, 0.8490)], planned=2))
    large = Trained(4, 2048, [(2.1, 0.20), (0.7415, 0.7390)], planned=2, epoch_s=4.0)
    write_training(found / "large-batch", large)
    write_training(found / "diverged", Trained(4, 512, [(2.5, 0.1), (None, 0.1)], planned=2))
    return found


def ran(capsys, *arguments, code=0):
    assert main(["table", "training", *map(str, arguments)]) == code
    return capsys.readouterr()


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("by", ["run", "epoch"])
def test_every_format(capsys, folder, by, output_format) -> None:
    captured = ran(capsys, folder, "--by", by, "--format", output_format)
    assert captured.out.endswith("\n")
    assert captured.err == ""


@pytest.mark.parametrize("by", ["run", "epoch"])
def test_json_and_csv_say_the_same(capsys, folder, by) -> None:
    content = json.loads(ran(capsys, folder, "--by", by, "-f", "json").out)
    rows = list(csv.DictReader(io.StringIO(ran(capsys, folder, "--by", by, "-f", "csv").out)))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in content["rows"]] == rows
    assert content["table"] == {"run": "training", "epoch": "training_epochs"}[by]


def test_people_read_what_reports_print(capsys, folder) -> None:
    lines = ran(capsys, folder, "-f", "markdown").out.splitlines()
    found = {line.split(" | ")[0].strip("| "): line for line in lines[2:]}
    assert "| 0.7415 | 73.90 | 0.3105 | -11.00 | 4.00 | 2.50 | - |" in found["large-batch"]
    assert "| 0.4310 | 84.90 | 0.0000 | 0.00 | 10.00 | 1.00 | - |" in found["small-batch"]
    assert "not finite: the training diverged" in found["diverged"]


def test_help_ends_with_examples_that_parse(capsys, folder, tmp_path, monkeypatch) -> None:
    pytest.importorskip("plotly")
    text = ran(capsys, "--help").out
    examples = re.findall(r"^ *commtrace table training (.+)$", text.partition("Examples:")[2], re.MULTILINE)
    assert len(examples) == 3
    assert text.rstrip().endswith(examples[-1])
    (tmp_path / "traces").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for example in examples:
        ran(capsys, *example.replace("--epoch 10", "--epoch 2").split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--baseline", "nobody"], "--baseline nobody: is none of the trainings: diverged, large-batch, small-batch"),
        (["--epoch", "3"], "no training has an epoch 3; ask for --epoch 2 at most"),
        (["nowhere"], "nowhere: no such file or directory"),
        (["--output", "no/such/folder/t.csv"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line(capsys, folder, options, message) -> None:
    captured = ran(capsys, folder, *options, code=1)
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("options", [[], ["x", "--epoch", "0"], ["x", "--by", "rank"], ["x", "--plot", "curves.png"]])
def test_wrong_usage(capsys, options) -> None:
    assert ran(capsys, *options, code=2).out == ""


def test_keep_going_shows_the_others_and_exits_1(capsys, folder, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "training.json").write_text("{")
    captured = ran(capsys, folder, tmp_path, "--keep-going", "-f", "json", code=1)
    assert len(json.loads(captured.out)["rows"]) == 3
    assert captured.err.count("error: ") == 1
    assert "run/training.json: is not as a training writes it" in captured.err


@pytest.mark.parametrize("output_format", ["table", "markdown", "latex", "csv"])
def test_names_cannot_move_the_cursor(capsys, tmp_path, output_format) -> None:
    write_training(tmp_path / "=r\x1b[2J|x", Trained(model="m\x07\n"))
    for by in ("run", "epoch"):
        text = ran(capsys, tmp_path, "--by", by, "-f", output_format).out
        assert all(c.isprintable() or c == "\n" for c in text)


# --- the plot ---------------------------------------------------------------------------------------------------------


def curves(page: str) -> list[dict]:
    """What plotly draws, from the page."""
    (data,) = re.findall(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*(\[.*?\]),\s*\{\"", page, re.DOTALL)
    return json.loads(data)


def test_the_plot_has_four_curves_of_every_run(capsys, folder, tmp_path) -> None:
    pytest.importorskip("plotly")
    target = tmp_path / "curves.html"
    captured = ran(capsys, folder, "--plot", target)
    assert "large-batch" in captured.out, "the table is printed as well"
    page = target.read_text(encoding="utf-8")
    assert not re.search(r"<script[^>]+src=|<link[^>]+href=", page), "it needs no network"
    found = {(curve["name"], curve["xaxis"]): curve["y"] for curve in curves(page)}
    assert len(found) == 4 * 3
    assert found["large-batch, test", "x"] == [2.1, 0.7415]
    assert found["large-batch, test", "x2"] == [0.20, 0.7390]
    assert found["large-batch, training", "x2"] == [0.10, 0.3695]
    assert found["diverged, test", "x"] == [2.5, None]


def test_names_in_the_plot_are_no_tags(capsys, tmp_path) -> None:
    pytest.importorskip("plotly")
    write_training(tmp_path / "a<b>c", Trained())
    ran(capsys, tmp_path, "--plot", tmp_path / "p.html")
    names = {curve["name"] for curve in curves((tmp_path / "p.html").read_text(encoding="utf-8"))}
    assert names == {"a&lt;b&gt;c, test", "a&lt;b&gt;c, training"}


def test_without_plotly_a_plot_says_what_to_install(capsys, folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    captured = ran(capsys, folder, "--plot", tmp_path / "p.html", code=1)
    assert captured.err == ('error: plotly is not installed, and --plot needs it: pip install "commtrace[plot]"\n')
    assert not (tmp_path / "p.html").exists()
    ran(capsys, folder)


def test_plotly_is_imported_for_a_plot_only(folder) -> None:
    code = (
        "import sys; from commtrace.cli import main; "
        "main(['table', 'training', sys.argv[1]]); sys.exit('plotly' in sys.modules)"
    )
    done = fresh_python("-c", code, folder)
    assert done.returncode == 0, done.stderr
