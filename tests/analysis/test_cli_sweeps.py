"""The commands across runs: output for people and programs, exit codes, and one line for every bad input."""

import csv
import io
import json
import re

import pytest
from builders import MS, Collective, traces_of, write_bytes
from sweep_builders import Cell, edited, write_sweep

from commtrace.analysis.sweeps.by_hand import KNOWN_MISTAKES
from commtrace.cli import main

COMMANDS = ("scaling", "subtraction")
FORMATS = ("table", "csv", "markdown", "json", "latex")
HEADER = "model,parallel,workers,batch_size_per_rank,epoch_s"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two cells that worked, with traces, one that is out of memory, and one that is still open."""
    traces = [t.step(0, 0, 90 * MS) for t in traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])]
    cells = [
        Cell(1, epoch_s=10),
        Cell(2, epoch_s=4.5, traced=traces, steps=20),
        Cell(2, batch=2048, status="out_of_memory", reason="CUDA out of memory"),
        Cell(4, status="open"),
    ]
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "my sweep", cells)


def ran(capsys, *arguments, code=0):
    assert main([str(a) for a in arguments]) == code
    return capsys.readouterr()


def fails(capsys, *arguments, naming):
    captured = ran(capsys, *arguments, code=1)
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert naming in captured.err


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("arguments", ["scaling", "subtraction", "subtraction --mistake all"], ids=str)
def test_every_command_in_every_format(capsys, sweep, arguments, output_format):
    captured = ran(capsys, "table", *arguments.split(), sweep, "--format", output_format)
    assert captured.out.endswith("\n")
    assert captured.err == ""


@pytest.mark.slow_cases("subtraction")
@pytest.mark.parametrize("arguments", ["scaling", "subtraction", "subtraction --mistake all"], ids=str)
def test_json_and_csv_say_the_same(capsys, sweep, arguments):
    content = json.loads(ran(capsys, "table", *arguments.split(), sweep, "-f", "json").out)
    rows = list(csv.DictReader(io.StringIO(ran(capsys, "table", *arguments.split(), sweep, "-f", "csv").out)))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in content["rows"]] == rows
    assert content["table"] == ("mistakes" if "--mistake" in arguments else arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_cell_is_dropped(capsys, sweep, command):
    text = ran(capsys, "table", command, sweep).out
    for shown in ("out_of_memory", "CUDA out of memory", "open", "not run yet", "scaled to a whole epoch"):
        assert shown in text


@pytest.mark.slow
def test_negative_communication_is_shown(capsys, sweep):
    (row, *_) = json.loads(ran(capsys, "table", "subtraction", sweep, "-f", "json").out)["rows"]
    assert row["subtracted_comm_ns"] == pytest.approx(-500 * MS, abs=100)
    assert "-0.50" in ran(capsys, "table", "subtraction", sweep).out
    assert "$-$0.50" in ran(capsys, "table", "subtraction", sweep, "-f", "latex").out
    assert "leaves no time for communication" in row["note"]


def test_mistakes_are_asked_for_by_name_each_once(capsys, sweep):
    out = ran(
        capsys,
        "table",
        "subtraction",
        "--mistake",
        "gib",
        "--mistake",
        "elements",
        "--mistake",
        "gib",
        sweep,
        "-f",
        "json",
    )
    names = [row["mistake"] for row in json.loads(out.out)["rows"]]
    assert names == ["gib", "elements"] * 3
    rows = json.loads(ran(capsys, "table", "subtraction", "--mistake", "all", sweep, "-f", "json").out)["rows"]
    assert [row["mistake"] for row in rows] == list(KNOWN_MISTAKES) * 3


def test_an_unknown_mistake_is_wrong_usage(capsys, sweep):
    captured = ran(capsys, "table", "subtraction", "--mistake", "hubris", sweep, code=2)
    assert "'hubris' is not one of one-message, elements" in " ".join(captured.err.split())


def test_mistakes_need_no_traces(capsys, sweep, tmp_path):
    write_sweep(tmp_path, [Cell(1), Cell(2, epoch_s=9)])
    write_bytes(tmp_path / "resnet18-ddp-w2-b32" / "node_0.0001.pt.trace.json", b"{")
    ran(capsys, "table", "subtraction", "--mistake", "gib", tmp_path)
    fails(capsys, "table", "subtraction", tmp_path, naming="node_0.0001.pt.trace.json")


@pytest.mark.quick_cases("scaling")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_parse(capsys, sweep, tmp_path, monkeypatch, command):
    text = ran(capsys, "table", command, "--help").out
    assert "{prog}" not in text
    examples = re.findall(r"^ *commtrace (.+)$", text.partition("Examples:")[2], re.MULTILINE)
    assert len(examples) == 3
    assert text.rstrip().endswith(examples[-1])
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "my-sweep").symlink_to(sweep)
    (tmp_path / "timings.csv").write_text(f"{HEADER}\nm,ddp,1,32,9\nm,ddp,2,32,5\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for example in examples:
        ran(capsys, *example.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_input_is_one_line(capsys, sweep, tmp_path, command):
    fails(capsys, "table", command, tmp_path / "nowhere", naming="nowhere: no such file or directory")
    fails(capsys, "table", command, tmp_path, naming="expected a sweep")
    table = tmp_path / "t.csv"
    table.write_text(f'{HEADER}\nm\x1b[2J,ddp,1,32,"5,0"\n', encoding="utf-8")
    fails(capsys, "table", command, table, naming="t.csv, line 2: epoch_s is '5,0'")
    fails(capsys, "table", command, sweep, sweep, naming="give each cell once")
    assert ran(capsys, "table", command, code=2).out == ""


def test_a_sweep_is_no_run_but_holds_some(capsys, sweep):
    fails(
        capsys, "breakdown", sweep, naming="did you mean one of its folders (resnet18-ddp-w1-b32, resnet18-ddp-w2-b32)?"
    )


def test_only_one_worker(capsys, tmp_path):
    write_sweep(tmp_path, [Cell(1)])
    fails(capsys, "table", "subtraction", tmp_path, naming="no cell has more than one worker")
    fails(capsys, "table", "subtraction", "--mistake", "all", tmp_path, naming="no cell has more than one worker")
    ran(capsys, "table", "scaling", tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_keep_going_shows_the_other_cells_and_exits_1(capsys, tmp_path, command):
    folder = write_sweep(tmp_path, [Cell(1), Cell(2), Cell(4)])
    edited(folder / "resnet18-ddp-w2-b32" / "node_1.meta.json", epochs=None)
    fails(capsys, "table", command, folder, naming="node_1.meta.json")
    captured = ran(capsys, "table", command, folder, "--keep-going", "-f", "json", code=1)
    rows = {row["workers"]: row for row in json.loads(captured.out)["rows"]}
    assert (rows[2]["status"], rows[4]["status"]) == ("unreadable", "done")
    assert "node_1.meta.json" in captured.err


def test_keep_going_past_damaged_traces(capsys, tmp_path):
    write_sweep(tmp_path, [Cell(1), Cell(2)])
    write_bytes(tmp_path / "resnet18-ddp-w2-b32" / "node_0.0001.pt.trace.json", b"{")
    captured = ran(capsys, "table", "subtraction", tmp_path, "--keep-going", "-f", "json", code=1)
    (row,) = json.loads(captured.out)["rows"]
    assert row["note"].startswith("traces cannot be used")
    assert captured.err.count("error: ") == 1


@pytest.mark.parametrize("output_format", ["table", "markdown", "latex", "csv"])
def test_names_cannot_move_the_cursor(capsys, tmp_path, output_format):
    write_sweep(
        tmp_path, [Cell(1, model="=m\x1b[2J|x"), Cell(2, model="=m\x1b[2J|x", status="failed", reason="\x07\n")]
    )
    for command in COMMANDS:
        text = ran(capsys, "table", command, tmp_path, "-f", output_format).out
        assert all(c.isprintable() or c == "\n" for c in text)


def test_the_traces_are_not_touched(capsys, sweep):
    before = {p: p.stat().st_mtime_ns for p in sweep.rglob("*")}
    for command in COMMANDS:
        ran(capsys, "table", command, sweep)
    assert {p: p.stat().st_mtime_ns for p in sweep.rglob("*")} == before
