"""A run on one screen: never more than that, whatever the run, and its numbers are those of the tables."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS, Collective, analysed, traces_of, write_run
from rich.cells import cell_len
from samples import with_slow
from terminals import ESCAPES, on_a_terminal

from commtrace import analyse
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.show.first_screen import Rate, first_screen
from commtrace.analysis.show.overview import overview

DATA = Path(__file__).parent.parent / "data"
RUNS = with_slow(["nccl-two-hosts", "nccl-pipeline", "gloo-training"], ["nccl-straggler", "nccl-rooted", "nccl-hang"])


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    return analyse(DATA / request.param)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_it_fits_one_screen(run, width) -> None:
    lines = overview(run, Screen(width=width)).splitlines()
    assert len(lines) <= (34 if width >= 80 else 36)
    assert max(map(cell_len, lines[:-2])) <= width  # then come commands, to be copied
    rows = [line for line in lines if line.startswith("  ")]
    assert max(map(cell_len, lines[: lines.index(rows[0]) - 1])) <= 120  # sentences


@pytest.mark.slow
def test_a_wide_terminal_says_where_to_begin_and_draws_longer_bars(run) -> None:
    narrow, wide = (overview(run, Screen(width=width)) for width in (80, 200))
    assert wide.count("\u2588") > 1.5 * narrow.count("\u2588")
    for remedy in first_screen(run).remedies[:2]:
        [line] = [line for line in wide.splitlines() if line.startswith(f"  {remedy.what[:40]}")]
        assert remedy.how[:40] in line
        assert remedy.how[:40] not in narrow


def test_a_message_that_is_latency_has_its_time_and_no_bandwidth() -> None:
    """16 bytes take as long as thousands: that is no bandwidth of 8.13e-07 GB/s."""
    rate = Rate("all_gather", 16, 8, 8, 1, 24.1, 8.13e-7, 8.13e-7, None, "", None, None)
    assert (*rate.amount, rate.beside) == ("24.1", "us a call", "latency")
    large = replace(rate, size_bytes=1 << 16, slowest_gb_per_s=1.5, fastest_gb_per_s=2.0)
    assert (*large.amount, large.beside) == ("1.5 to 2", "GB/s", "")


@pytest.mark.slow
def test_a_wider_terminal_shows_no_less(run) -> None:
    """No row of any kind, sentence or warning is lost."""

    def shown(width: int) -> list[int]:
        screen = overview(run, Screen(width=width))
        _, headline, *blocks = screen.split("\n\n")
        rows = "\n".join(blocks).splitlines()
        return [
            len(" ".join(headline.split())),
            sum(bool(re.search(r" (ms|us) +[\d.]+%$", line.rstrip(" \u2588"))) for line in rows),
            sum("GB/s" in line for line in rows),
            sum(line.startswith("warning") for line in rows),
            len(re.findall(r"(?m)^  (?:\d+ more )?ranks? ?\d*(?: \(.*\))?: ", screen)),
        ]

    before = shown(60)
    for width in range(66, 108, 6):
        now = shown(width)
        assert all(less <= more for less, more in zip(before, now, strict=True)), width
        before = now


def test_it_says_first_what_limits_the_run(run) -> None:
    first = run.verdicts.iloc[0]
    text = " ".join(overview(run).split())
    assert f"{first['headline']} ({first['verdict']})." in text
    assert text.index(first["headline"]) < text.index("A step takes")


def test_parts_of_a_step_add_up_to_it(run) -> None:
    text = overview(run)
    [whole] = re.findall(r"A step takes ([\d,.]+) ms", text)
    block = text.partition("A step takes")[2].partition("\n\n")[0]
    parts = re.findall(r"([\d,.]+) ms +[\d.]+%", block)
    numbers = [float(part.replace(",", "")) for part in (whole, *parts)]
    assert sum(numbers[1:]) == pytest.approx(numbers[0], abs=0.06 * len(numbers))


@pytest.mark.slow
def test_who_and_what_to_try_are_those_of_the_tables(tmp_path) -> None:
    made = [Collective({0: 0, 1: 0, 2: 20 * MS, 3: 0}, 5 * MS, elems=10**6)]
    result = analyse(write_run(tmp_path, 4, made, host="node0"), details=False)
    text = overview(result)
    assert text.splitlines()[2].startswith("Waiting for rank 2 takes 15.0 ms of ")
    assert "100% of the exposed wait" not in text  # that is said
    assert re.search(r"\n  rank 2 as fast as the others +20.0 ms +100.0%\n", text)
    assert re.search(r"\n  all_reduce of 3.81 MiB, 4 ranks, 1 call +1.2 GB/s, under 1% of NVLink 4\n", text)


@pytest.mark.slow
def test_hostile_names_move_no_cursor(tmp_path) -> None:
    name = "evil\x1b[2J\r\n\u202e" + "x" * 5000
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    for trace in traces:
        trace.host = name
        trace.step(0, 0, 90 * MS).kernel(name, 60 * MS, 5 * MS)
    text = overview(analysed(tmp_path, *traces), Screen(width=80, ascii_only=True))
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert max(map(len, text.splitlines())) <= 80


def test_it_names_what_there_is_besides(run) -> None:
    text = " ".join(overview(run).split())
    for command in ("commtrace summary --all", "commtrace report"):
        assert command in text


def test_a_run_without_communication(tmp_path) -> None:
    trace = traces_of(1, [])[0].step(0, 0, 50 * MS).kernel("gemm", 1 * MS, 5 * MS)
    text = overview(analysed(tmp_path, trace))
    assert "No communication was traced." in text
    assert "Who makes the others wait" not in text


@pytest.mark.slow
def test_of_many_files_some_are_shown_first_on_a_terminal(tmp_path) -> None:
    made = [Collective([0] * 65 + [20 * MS], 5 * MS, elems=10**6)]
    run = str(write_run(tmp_path, 66, made, host="node0"))
    shown = ESCAPES.sub("", on_a_terminal(100, run, "--no-cache"))
    look, _, whole = shown.partition("Reading all 66 files, to tell who waits for whom ...\n")
    assert look.startswith("First look, at 14 ranks:\n")
    assert "rank 65" not in look
    assert whole.lstrip().startswith(f"{tmp_path.name}: 66 ranks")
    assert "Waiting for rank 65 takes" in whole
