"""`commtrace watch` as people and programs use it: lines, JSON, exit codes, curves, interruptions."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from terminals import ESCAPES, on_a_terminal, widest
from watched import command, name_of, rows_in, write_cycle, write_side

from commtrace.analysis.core.schema import Row
from commtrace.analysis.core.tables.cycles import CYCLES
from commtrace.analysis.render.cycle_lines import cycle_header, cycle_line
from commtrace.analysis.watching.ledger import numbered
from commtrace.analysis.watching.rows import unusable_row
from commtrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
ONCE = ("--once", "--patience", "0")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Two ranks, two cycles, and the run has ended."""
    folder = tmp_path / "my run"
    for cycle in (0, 1):
        write_cycle(folder, cycle)
    for rank in (0, 1):
        write_side(folder, rank, reason=None)
    return folder


def started(*arguments: object, **options: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "commtrace", "watch", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(words, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


# --- what it prints --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_line_for_each_cycle_until_the_run_has_ended(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(run_dir, "--every", "0.01") == 0
    printed = capsys.readouterr()
    header, *lines = printed.out.splitlines()
    assert header.split() == [
        *("cycle", "ended", "ranks", "step", "ms", "exposed", "wait", "GB/s", "waits", "for", "verdict", "collective"),
    ]
    assert [line.split()[:4:2] for line in lines] == [["0", "2/2"], ["1", "2/2"]]
    assert re.search(r" 1 \(100%\) +(skew|transfer)-bound +all_reduce of 1,000,000,000 bytes$", lines[0]), lines
    assert printed.err == "note: the run has ended; 2 cycles reported\n"


@pytest.mark.slow
def test_json_lines(run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command(run_dir, *ONCE, "-f", "jsonl", "-o", tmp_path / "rows.jsonl") == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [list(row) for row in rows] == [list(CYCLES.columns)] * 2
    assert rows == rows_in(tmp_path / "rows.jsonl")
    assert {(row["run"], row["steps"], row["blamed_rank"], row["busbw_gb_per_s"]) for row in rows} == {
        ("my run", 1, 1, 100.0)
    }
    assert command(run_dir, *ONCE, "-f", "jsonl", "-o", tmp_path / "rows.jsonl") == 0
    assert capsys.readouterr().out == ""
    assert rows == rows_in(tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_what_is_unusual_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cycle in (0, 1):
        write_cycle(tmp_path / "run", cycle, [0])
    assert command(tmp_path / "run", *ONCE) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "note: cycle 0: no trace of rank 1"
    assert said[-1] == "note: all existing cycles were processed; 2 cycles reported"
    assert not any(line.startswith("note: cycle 1") for line in said)


ROW: Row = numbered("run", None, 1234, {
    "ended_utc": "2026-11-24T08:00:00+00:00", "ranks": 64, "world_size": 64, "step_ns": 123_456_789,
    "exposed_comm_frac": 1.0, "exposed_wait_frac": 0.999, "collective": "reduce_scatter", "size_bytes": 10**11,
    "busbw_gb_per_s": 0.0123, "blamed_rank": 1023, "caused_wait_frac": 1.0, "verdict": "transfer-bound",
})  # fmt: skip


def test_lines_fit_a_terminal() -> None:
    for width in (80, 100, 120, 200):
        for line in (cycle_header(width), cycle_line(ROW, width)):
            assert len(line.rstrip("\n")) <= width, line
    assert "reduce_scatter of 100,000,000,000 bytes" in cycle_line(ROW)
    nothing = cycle_line(numbered("run", None, 0, unusable_row("why")))
    assert nothing.split() == ["0", "-", "0/?", *"-------"]
    hostile = cycle_line(ROW | {"verdict": "\x1b[2J", "collective": "a\nb"})
    assert hostile.count("\n") == 1
    assert "\x1b" not in hostile


@pytest.mark.slow
def test_on_a_terminal(run_dir: Path) -> None:
    shown = ESCAPES.sub("", on_a_terminal(80, "watch", "--every", "0.1", str(run_dir)))
    assert widest(shown) <= 80
    assert [line.split()[0] for line in shown.splitlines()] == ["cycle", "0", "1"]


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_limit_ends_it_with_3(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(run_dir, "--fail-above", "wait=99", "--fail-above", "exposed=1") == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert re.search(r"^limit: cycle 0: exposed \d+\.\d % > 1 %$", printed.err, re.MULTILINE)


@pytest.mark.slow
def test_with_go_on_it_ends_with_3_at_the_end(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(run_dir, "--fail-above", "exposed=1", "--go-on", "--every", "0.01") == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert "limit: cycle 0: exposed" in printed.err


def test_a_limit_that_cannot_be_checked_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from builders import Trace

    Trace(0, 1).kernel("gemm", 0, 1000).write(tmp_path, name_of(0, 0))
    assert command(tmp_path, *ONCE, "--fail-above", "step-ms=1", "--fail-above", "exposed=5") == 1
    assert "error: no cycle shows step-ms, so nothing was compared with that limit\n" in capsys.readouterr().err


@pytest.mark.slow
def test_damaged_files_end_it_with_1(run_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cut = run_dir / name_of(0, 1)
    cut.write_bytes(cut.read_bytes()[:-30])
    assert command(run_dir, "--once") == 0
    assert f"note: cycle 1 is not reported yet: {cut}" in capsys.readouterr().err
    assert command(run_dir, *ONCE, "-o", tmp_path / "rows.jsonl") == 1
    printed = capsys.readouterr()
    assert f"note: cycle 1: {cut}" in printed.err
    for rank in (0, 1):
        (run_dir / name_of(rank, 2)).write_bytes(b"no trace")
    assert command(run_dir, *ONCE) == 1
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["2", "-", "0/?"]
    assert printed.err.endswith("error: 1 cycle had unusable files; see the messages above, or the column `note`\n")
    assert [row["partial"] for row in rows_in(tmp_path / "rows.jsonl")] == [True]


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("--fail-above", "exposed"), 2, "is not a limit, such as exposed=20"),
        (("--go-on",), 2, "needs --fail-above"),
        (("--once", "--idle", "3"), 2, "cannot be given together with --once"),
        (("--every", "0"), 2, "0.01"),
        (("--every", "nan"), 2, "--every"),
        (("--idle", "inf"), 2, "inf is not a finite number"),
        (("--comm-kernel", "("), 2, "is not a regular expression"),
        (("--once", "nowhere"), 1, "nowhere: no such directory"),
        (("pyproject.toml",), 1, "pyproject.toml: is a file; expected a run directory"),
        (("--output", "."), 1, "rows cannot be added to it"),
        (("--output", "/dev/null"), 1, "rows cannot be added to it: is a device"),
        (("--state", "/dev/null/state"), 1, "cannot be written"),
    ],
)
def test_what_cannot_be(
    arguments: Sequence[str], code: int, what: str, run_dir: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(ROOT)
    named = [*arguments, *([] if arguments[-1] in ("nowhere", "pyproject.toml") else [str(run_dir)])]
    assert command(*named) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert what in " ".join(printed.err.replace("│", " ").split())
    assert not list(run_dir.glob(".*"))


def test_rows_never_go_into_what_is_read(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run_dir / name_of(0, 0)).read_bytes()
    assert command(run_dir, "--once", "-o", run_dir / name_of(0, 0)) == 2
    assert "which is read; name another file" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (run_dir / name_of(0, 0)).read_bytes() == before


@pytest.mark.slow
def test_curves_for_tensorboard(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    assert command(run_dir, *ONCE, "--tensorboard", tmp_path / "logs") == 0
    write_cycle(run_dir, 2)
    assert command(run_dir, *ONCE, "--tensorboard", tmp_path / "logs") == 0
    found = set()
    for file in (tmp_path / "logs").iterdir():
        for event in loader.EventFileLoader(str(file)).Load():
            found |= {(value.tag, event.step) for value in event.summary.value}
    assert {step for tag, step in found if tag == "step_ms/median"} == {0, 5, 10}
    assert ("busbw_gb_per_s/all_reduce", 5) in found
    main(["export", "tensorboard-scalars", str(run_dir), "-o", str(tmp_path / "logs")])
    assert len(list((tmp_path / "logs").glob("*.commtrace-watch"))) >= 1  # these are of another command


# --- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    write_cycle(tmp_path / "run", 0)
    process = started(tmp_path / "run", "--every", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("cycle")
    assert process.stdout.readline().split()[0] == "0"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, "")


@pytest.mark.slow
def test_it_ends_when_nobody_reads_on(tmp_path: Path) -> None:
    for cycle in range(4):
        write_cycle(tmp_path / "run", cycle)
    process = started(tmp_path / "run", "--every", "0.05")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=100) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.slow
def test_two_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cycle(tmp_path / "run", 0)
    process = started(tmp_path / "run", "--every", "0.05")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert command(tmp_path / "run", "--once") == 1
        assert "another watch uses it; end that one, or name a --state" in capsys.readouterr().err
        assert command(tmp_path / "run", "--once", "--state", tmp_path / "state.json") == 0
    finally:
        process.kill()
        process.communicate()
    assert command(tmp_path / "run", "--once") == 0  # a lock does not outlive its process


@pytest.mark.slow
def test_killed_again_and_again_no_cycle_is_lost_or_twice(tmp_path: Path) -> None:
    """While a run goes on; SIGKILL hits the watch at random moments, a third of them within some ms of a new row."""
    folder, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    chance, cycles, kills = random.Random(5), 0, 0
    for rank in (0, 1):
        write_side(folder, rank)
    while kills < 12:
        process = started(folder, "--every", "0.01", "--workers", "1", "-o", rows, "-f", "jsonl", stderr=None)
        for _ in range(chance.randrange(1, 4)):
            write_cycle(folder, cycles)
            cycles += 1
        assert process.stdout is not None
        if chance.random() < 1 / 3:
            process.stdout.readline()
            time.sleep(chance.uniform(0, 0.02))
        else:
            time.sleep(chance.uniform(0.3, 1.5))
        process.kill()
        process.communicate()
        kills += 1
    for rank in (0, 1):
        write_side(folder, rank, reason=None)
    process = started(folder, "--every", "0.01", "-o", rows)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert [row["cycle"] for row in rows_in(rows)] == list(range(cycles))
