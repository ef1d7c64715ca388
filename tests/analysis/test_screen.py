"""What a terminal shows: nothing wider than it is, the columns and ranks that matter, colours only where wanted."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from samples import with_slow
from terminals import ESCAPES, HOSTILE, on_a_terminal, widest

from commtrace import Analysis, analyse
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.render import as_text
from commtrace.analysis.render.fitting import Column, fitted, shortened
from commtrace.analysis.render.screen import MOST_RANKS, WORST, Screen
from commtrace.analysis.show.summary import summary
from commtrace.analysis.tables.ranks import RANKS
from commtrace.cli import main
from commtrace.common.wording import counted

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests/data/nccl-straggler"
TABLES = [e.name for e in CATALOG.values() if e.of is InputKind.run and e.command and "ceiling" not in e.name]
MOST_ROWS = 30
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture(scope="module")
def run() -> Analysis:
    return analyse(RUN, details=True, workers=1)


# --- fitting ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases("gaps", "verdicts")
@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_wider_than_the_screen(run: Analysis, name: str) -> None:
    table = run.table(name).head(MOST_ROWS)
    whole = as_text(name, table)
    for width in (60, 80, 100, 120, 200):
        for ascii_only in (False, True):
            text = as_text(name, table, Screen(width=width, ascii_only=ascii_only))
            assert widest(text) <= width, text
    wide = as_text(name, table, Screen(width=1000))
    assert wide == whole or ("..." in whole and "..." not in wide)  # with room, names are whole


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_of_a_summary_is_wider(run: Analysis, width: int) -> None:
    text = summary(run, "table", Screen(width=width))
    assert widest(text) <= width
    assert run.verdict.split()[0] in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_of_any_characters_fit(width: int) -> None:
    rows = of_ranks(len(HOSTILE), 3).assign(host=HOSTILE, because=HOSTILE, kernel=HOSTILE)
    text = as_text("ranks", RANKS.conform(rows), Screen(width=width, colour=True))
    assert widest(ESCAPES.sub("", text)) <= width
    assert "\x1b[31m" not in text


def test_a_row_is_one_line_unless_it_holds_a_sentence(run: Analysis) -> None:
    for name in ("calls", "collectives", "participation", "kernels", "breakdown_steps"):
        table = run.table(name).drop(columns=["note"], errors="ignore")
        _, below = re.split(r" ─+\n", as_text(name, table, Screen(width=80)))
        assert len(re.split("\n(?:no room|empty columns)", below)[0].splitlines()) == len(table)


def test_what_is_left_out_is_named(run: Analysis) -> None:
    table = run.table("breakdown")
    narrow, whole = (as_text("breakdown", table, Screen(width=width)) for width in (80, 400))
    assert "no room" not in whole
    named = " ".join(narrow.partition("no room for ")[2].split())
    assert named.endswith("(--all shows all)")
    assert "overlap (us)" in named
    assert "overlap" not in narrow.partition("no room")[0]
    assert "idle" in narrow.partition("no room")[0]


def test_the_columns_that_matter_most_stay() -> None:
    columns = [Column(name, name, ["x" * 10], is_number=False) for name in "abcdef"]
    widths, left_out = fitted(columns, ("e", "b"), 30)
    assert list(widths) == ["e", "b"]
    assert [column.name for column in left_out] == list("acdf")
    widths, _ = fitted(columns, ("e", "b"), 5)
    assert list(widths) == ["e"]


@pytest.mark.slow
def test_a_wider_screen_shows_no_less_of_what_matters_most(run: Analysis) -> None:
    for name in TABLES:
        first = [column for column in CATALOG[name].narrow if column not in CATALOG[name].optional][:2]
        for width in (60, 80, 120, 200):
            head = as_text(name, run.table(name).head(MOST_ROWS), Screen(width=width))
            for column in first:
                assert column.split("_")[0] in head, (name, width)


@pytest.mark.parametrize("text", [*HOSTILE, KERNEL])
def test_shortening_keeps_both_ends(text: str) -> None:
    for width in range(90):
        short = shortened(text, width)
        assert cell_len(short) <= width
        if cell_len(text) <= width:
            assert short == text
        elif width > 20 and text.isascii():
            assert short.startswith(text[:6])
            assert short.endswith(text[-6:])


# --- many ranks -------------------------------------------------------------------------------------------------------


def of_ranks(count: int, culprit: int) -> Any:
    return RANKS.frame(
        {"rank": n, "calls": 3, "split_calls": 3, "comm_call_ns": 10 * n, "times_last": n % 5,
         "wait_ns": 1000 + n, "caused_wait_ns": 10**6 if n == culprit else n}
        for n in range(count)
    )  # fmt: skip


def test_of_many_ranks_the_worst_are_shown() -> None:
    text = as_text("ranks", of_ranks(64, 37), Screen(width=80, worst_only=True))
    rows = re.split(r" ─+\n", text)[1].partition("8 of 64")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["37", "63", "62", "61", "60", "59", "58", "57", "min", "median", "max"]
    assert f"{WORST} of 64 rows, the worst by caused wait" in text
    minimum, median, maximum = (row.split() for row in rows[-3:])
    assert ("1.0" in minimum, "1.1" in maximum) == (True, True)
    assert median[0] == "median"


def test_the_worst_of_many_ranks_is_red() -> None:
    screen = Screen(width=80, worst_only=True, colour=True)
    (red,) = [line for line in as_text("ranks", of_ranks(64, 37), screen).splitlines() if "\x1b[1;31m" in line]
    assert ESCAPES.sub("", red).split()[0] == "37"


@pytest.mark.parametrize("screen", [Screen(), Screen(width=80), Screen(width=80, everything=True)])
def test_otherwise_all_are_shown(screen: Screen) -> None:
    assert " of 64 rows" not in as_text("ranks", of_ranks(64, 37), screen)
    assert " of 16 rows" not in as_text("ranks", of_ranks(MOST_RANKS, 3), Screen(width=80, worst_only=True))


def test_values_that_are_missing_do_not_hide_the_worst() -> None:
    table = of_ranks(64, 5)
    table.loc[table["rank"] > 40, ["caused_wait_ns", "wait_ns"]] = None
    rows = re.split(r" ─+\n", as_text("ranks", table, Screen(width=80, worst_only=True)))[1].splitlines()
    assert [row.split()[0] for row in rows[:3]] == ["5", "40", "39"]


# --- real terminals ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("columns", with_slow([80], [120, 200]))
def test_a_terminal_of_that_width(columns: int) -> None:
    screen = ESCAPES.sub("", on_a_terminal(columns, str(RUN)))
    assert widest(screen.partition("Everything: ")[0]) <= columns  # then comes the path, however long, to be copied
    assert "rank 2" in screen
    text = on_a_terminal(columns, "bandwidth", str(RUN))
    assert "\x1b[1" in text
    assert columns - 90 < widest(ESCAPES.sub("", text)) <= columns


@pytest.mark.slow
def test_all_on_a_terminal_is_what_a_pipe_gets() -> None:
    text = on_a_terminal(80, "breakdown", "--all", str(RUN), NO_COLOR="1")
    assert text == piped("breakdown", str(RUN))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plain", with_slow([{"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}], [{"NO_COLOR": "1"}])
)
def test_no_colours_where_none_are_wanted(plain: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(80, "ranks", str(RUN), **plain)


def piped(*arguments: str, **environment: str) -> str:
    """What it writes where nobody looks, as by a process of its own."""
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(written):
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        assert main(arguments) == 0
    written.seek(0)
    return written.read()


@pytest.mark.slow
def test_a_pipe_gets_it_whole_and_without_colours_unless_forced() -> None:
    plain = piped("ranks", str(RUN), COLUMNS="60")
    assert "\x1b" not in plain
    assert "no room" not in plain
    coloured = piped("ranks", str(RUN), FORCE_COLOR="1")
    assert "\x1b[1;31m" in coloured
    lines = [[line.rstrip() for line in text.splitlines()] for text in (ESCAPES.sub("", coloured), plain)]
    assert lines[0] == lines[1]
    assert "\x1b" not in piped("ranks", "--format", "csv", str(RUN), FORCE_COLOR="1")
    assert "\x1b" not in piped("ranks", "--format", "markdown", str(RUN), FORCE_COLOR="1")


def test_an_error_stands_out() -> None:
    command = [sys.executable, "-m", "commtrace", "breakdown", "no-such-folder"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"FORCE_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("\x1b[1;31merror\x1b[0m: no-such-folder")


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 traces"), (1, "1 trace"), (2, "2 traces"), (1234, "1,234 traces")]
)
def test_nouns_agree_with_numbers(number: int, words: str) -> None:
    assert counted(number, "trace") == words


@pytest.mark.slow
@pytest.mark.parametrize("output_format", with_slow(["table"], ["markdown", "latex"]))
def test_a_summary_of_many_ranks_is_short_unless_asked_for_everything(output_format: str) -> None:
    many = analyse(RUN, workers=1)
    many.__dict__["ranks"] = of_ranks(64, 37)
    short, whole = (summary(many, output_format, Screen(everything=everything)) for everything in (False, True))
    assert "8 of 64 rows, the worst by caused wait (--all shows all)" in short.replace("-{}-", "--")
    assert "of 64 rows" not in whole
    assert whole.count("\n") - short.count("\n") > 64 - 2 * WORST


@pytest.mark.slow
def test_a_summary_in_python_is_a_screen_or_everything() -> None:
    many = analyse(RUN, workers=1)
    many.__dict__["ranks"] = of_ranks(64, 37)
    assert len(many.summary().splitlines()) < 40
    assert len(many.summary(everything=True).partition("Who waits, and for whom")[2].splitlines()) > 64
