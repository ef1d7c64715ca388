"""The command that compares trainings: output for people and programs, the plot, and one line for every bad input."""

import csv
import io
import json
import re

import pytest
from training_builders import Trained, write_training

from commtrace.analysis.report.across import training_page
from commtrace.analysis.training.analysis import analyse_training
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


def test_the_plot_is_the_report(capsys, folder, tmp_path) -> None:
    target = tmp_path / "curves.html"
    captured = ran(capsys, folder, "--plot", target)
    assert "large-batch" in captured.out, "the table is printed as well"
    page = target.read_text(encoding="utf-8")
    assert page == training_page(folder.name, analyse_training(folder)).html
    assert {"Loss after every epoch", "Accuracy after every epoch"} <= {*re.findall('aria-label="([^"]+)"', page)}
    assert "large-batch: 0.7415" in page


def test_the_plot_compares_as_the_table_does(capsys, folder, tmp_path) -> None:
    target = tmp_path / "curves.html"
    ran(capsys, folder, "--baseline", "large-batch", "--epoch", "1", "--plot", target)
    expected = analyse_training(folder, baseline="large-batch", after_epochs=1)
    assert target.read_text(encoding="utf-8") == training_page(folder.name, expected).html
