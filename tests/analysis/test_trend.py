"""A series of runs of known truth: what changed from each to the next, and why."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from builders import MS, Collective, Trace, traces_of, write_run

from commtrace import Analysis, Comparison, RunTrend, analyse, plots, run_trend
from commtrace.analysis.cli.commands import compare as cli_compare
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.report.across import trend_page
from commtrace.analysis.show import trend as shown
from commtrace.cli import main

STEPS = 6
WORLD = 3
SPREAD = (0, 3, -4, 2, -3, 1, -2, 3)
MIB = 1 << 20


def run(
    folder: Path,
    *,
    gemm: float = 20.0,
    kernel: str = "gemm",
    late: float = 0.0,
    transfer: float = 10.0,
    mib: int = 144,
    pause: float = 10.0,
    sync: float = 0.0,
    steps: int = STEPS,
) -> Path:
    """Steps of `gemm` ms of compute, an all_gather of `mib` for which rank 1 is `late`, and idle time.

    In `sync` ms of that the CPU waits for its device, in `pause` ms it does nothing that the trace shows.
    """
    length = round((gemm + late + transfer + pause + sync) * MS)
    begins = [number * length for number in range(steps)]
    grown = [round(gemm * MS * (1000 + SPREAD[number % len(SPREAD)]) / 1000) for number in range(steps)]
    ready = [begin + dur for begin, dur in zip(begins, grown, strict=True)]
    arrivals = [tuple(at + round(late * MS) * (rank == 1) for rank in range(WORLD)) for at in ready]
    truth = [Collective(each, round(transfer * MS), collective="all_gather", elems=mib * MIB // 4) for each in arrivals]
    for rank, trace in enumerate(traces_of(WORLD, truth)):
        for number, (begin, dur) in enumerate(zip(begins, grown, strict=True)):
            trace.step(number + 2, begin, begin + length)
            trace.op("aten::mm", begin - MS, 2 * MS).kernel(kernel, begin, dur, launch=begin)
            if rank == 1 and late:
                trace.kernel("straggler", begin + dur, round(late * MS), launch=begin + 1)
            if sync:
                ended = begin + dur + round((late + transfer) * MS)
                trace.event(
                    "cuda_runtime", "cudaDeviceSynchronize", ended, round(sync * MS), correlation=900_000 + number
                )
        trace.write(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Analysis]:
    """The run with these options, each made and read once."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def analysed(**options: Any) -> Analysis:
        name = "_".join(f"{name}-{value}" for name, value in options.items()) or "plain"
        return analyse(run(folder / name, **options), details=True)

    return analysed


def rows(*runs: Analysis) -> list[Row]:
    return records(RunTrend(runs).trend)


@pytest.mark.slow
def test_every_change_has_its_cause(made: Any) -> None:
    series: list[dict[str, float]] = [
        {},
        {"transfer": 25},
        {"transfer": 25, "late": 30},
        {"transfer": 25, "late": 30, "gemm": 80},
        {"transfer": 25, "late": 30, "gemm": 80, "pause": 70},
    ]
    found = rows(*(made(**options) for options in series))
    assert [row["run"] for row in found[:2]] == ["plain", "transfer-25"]
    assert [row["step_ns"] for row in found] == [pytest.approx(ms * MS, rel=0.02) for ms in (40, 55, 85, 145, 205)]
    assert [row["cause"] for row in found] == [
        None,
        "all_gather of 144 MiB, transfer",
        "rank 1 computes 30.0 ms per step longer than the others, mostly in straggler",
        "compute, gemm",
        "CPUs take 114.9 ms more before they launch aten::mm (+105.1 ms, of which +61.7 ms shows)",
    ]
    assert found[2]["verdict"] == "skew-bound"
    assert found[2]["headline"].startswith("Rank 1 ")
    for row in found:
        parts = ("compute_alone", "overlap", "exposed_transfer", "exposed_wait", "exposed_unsplit", "exposed_memory")
        assert row["step_ns"] == sum(row[f"{part}_ns"] for part in (*parts, "idle"))


@pytest.mark.slow
def test_what_gets_better_has_a_cause_as_well(made: Any) -> None:
    found = rows(made(late=40, transfer=30), made(late=20, transfer=30), made(transfer=30), made(transfer=15, mib=72))
    longer = "it computes 20.0 ms per step longer than the others, mostly in straggler"
    assert [row["cause"] for row in found[1:]] == [
        f"rank 1 is less late than in the run before: {longer}",
        f"rank 1 is no longer late: in the run before, {longer}",
        "all_gather of 72 MiB instead of 144 MiB, transfer",
    ]
    assert all(row["change_ns"] < 0 for row in found[1:])


@pytest.mark.slow
def test_several_causes_stand_with_their_amounts(made: Any) -> None:
    [_, row] = rows(made(), made(transfer=30, gemm=30))
    assert row["cause"] == "all_gather of 144 MiB, transfer (+20.0 ms); compute, gemm (+10.0 ms)"


@pytest.mark.slow
def test_a_kernel_that_is_only_a_part_of_the_change_has_its_own_amount(made: Any) -> None:
    [_, row] = rows(made(), made(transfer=30, gemm=30, late=3))
    assert row["cause"] == "all_gather of 144 MiB, transfer (+20.0 ms); compute, gemm (+10.0 ms)"


@pytest.mark.slow
def test_a_kernel_in_place_of_another(made: Any) -> None:
    [_, there, back] = rows(made(), made(kernel="gemm_v2", gemm=30), made())
    assert there["cause"] == "compute, gemm_v2 in place of gemm"
    assert back["cause"] == "compute, gemm in place of gemm_v2"


@pytest.mark.slow
def test_idle_time_by_what_the_cpu_did(made: Any) -> None:
    [_, row] = rows(made(), made(sync=50))
    assert row["cause"] == "waiting for devices costs 50.0 ms instead of 20.0 ms (+30.0 ms)"


@pytest.mark.slow
def test_where_nothing_changed_that_is_said(made: Any) -> None:
    found = RunTrend((made(), made(), made()))
    assert found.names == ["plain", "plain #2", "plain #3"]
    assert [row["cause"] for row in records(found.trend)[1:]] == ["no part of a step changed"] * 2
    assert [row["beyond"] for row in records(found.trend)] == [None, "nothing", "nothing"]
    assert found.verdict.endswith(" in plain #3: +0.0 ms (+0%), within the spread of steps.")


@pytest.mark.slow
def test_a_change_is_beyond_steps_or_even_beyond_runs(made: Any) -> None:
    found = rows(made(), made(gemm=22), made(gemm=62))
    assert [row["beyond"] for row in found] == [None, "steps", "runs"]
    assert [row["from_first_beyond"] for row in found] == [None, "steps", "runs"]
    assert [row["from_first_ns"] for row in found[1:]] == [
        found[1]["change_ns"],
        found[1]["change_ns"] + found[2]["change_ns"],
    ]
    [_, row] = records(RunTrend((made(), made(gemm=22)), run_spread_frac=0.001).trend)
    assert row["beyond"] == "runs"


@pytest.mark.slow
def test_runs_before_a_change_show_how_much_runs_differ(made: Any) -> None:
    gemms = (20.0, 20.1, 20.05, 22.0, 22.05)
    found = rows(*(made(gemm=gemm) for gemm in gemms))
    assert [row["beyond"] == "runs" for row in found] == [False, False, False, True, False]
    assert [row["from_first_beyond"] == "runs" for row in found] == [False, False, False, True, True]


@pytest.mark.slow
def test_too_few_steps_tell_nothing(made: Any) -> None:
    [_, row] = rows(made(steps=2), made(steps=2, gemm=90))
    assert (row["beyond"], row["from_first_beyond"]) == (None, None)
    assert row["cause"].startswith("compute, gemm")


@pytest.mark.slow
def test_unprofiled_steps_that_changed_the_other_way_tell_nothing_of_traced_ones(tmp_path: Path) -> None:
    for name, ns, gemm in (("a", 90 * MS, 20), ("b", 30 * MS, 30)):
        folder = run(tmp_path / name, gemm=gemm)
        listed = [{"step": number, "phase": "idle", "dur_ns": ns + number} for number in range(10)]
        for rank in range(WORLD):
            (folder / f"node_{rank}.meta.json").write_text(json.dumps({"rank": rank, "steps": listed}))
    [_, row] = records(run_trend(tmp_path / "a", tmp_path / "b").trend)
    assert row["change_ns"] > 0
    assert row["beyond"] is None


@pytest.mark.slow_cases("2026-11-21T06:30:41+02:00-2026-11-21 04:30")
@pytest.mark.parametrize(
    ("said", "began"),
    [
        ("2026-11-21T06:30:41+00:00", "2026-11-21 06:30"),
        ("2026-11-21T06:30:41+02:00", "2026-11-21 04:30"),
        ("2026-11-21T06:30:41Z", "2026-11-21 06:30"),
        ("2026-11-21T06:30:41", "2026-11-21 06:30"),
        ("yesterday", None),
        ("0001-01-01T00:00:00+14:00", None),
        (7, "2025-10-01 06:27"),
        (None, "2025-10-01 06:27"),
    ],
)
def test_when_a_run_began(made: Any, said: object, began: str | None) -> None:
    known = made()
    dated = Analysis(replace(known.run, config={"created_utc": said}))
    vars(dated).update({name: value for name, value in vars(known).items() if name != "run"})  # computed once
    assert rows(dated)[0]["began_utc"] == began


@pytest.mark.slow
def test_clocks_that_do_not_count_from_1970_tell_no_date(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, [Collective((0,))])
    Trace(0, 1, base_ns=None).step(0, 0, 9 * MS).kernel("gemm", 0, MS).write(tmp_path / "b")
    found = run_trend(tmp_path / "a", tmp_path / "b").trend
    assert [row["began_utc"] for row in records(found)] == ["2025-10-01 06:27", None]


@pytest.mark.slow
def test_two_sides_have_the_cause_too(made: Any) -> None:
    plain, late = made(), made(late=30)
    assert Comparison((plain,), (late,)).cause == (
        "+30.0 ms: rank 1 computes 30.0 ms per step longer than the others, mostly in straggler"
    )
    in_one_of_two = Comparison((plain, plain), (late, plain))  # no price differs for certain, so where it shows is said
    assert in_one_of_two.cause == "+15.0 ms: ranks wait for rank 1 (+10.0 ms); compute (+5.0 ms)"
    in_both = Comparison((plain, plain), (late, late))
    assert in_both.cause == "+30.0 ms: rank 1 computes 30.0 ms per step longer than the others, mostly in straggler"


@pytest.mark.slow
def test_a_run_without_activity_is_a_row_without_a_step(made: Any, tmp_path: Path) -> None:
    empty = analyse(Trace(0, 1).step(1, 0, 5 * MS).write(tmp_path / "empty").parent, details=True)
    found = RunTrend((made(), empty, made()))
    [_, row, last] = records(found.trend)
    assert (row["step_ns"], row["change_ns"], row["cause"], row["headline"]) == (None, None, None, None)
    assert (last["change_ns"], last["from_first_ns"]) == (None, 0)
    assert "empty: nothing was measured." in found.summary()
    assert 'id="figure-trend"' in trend_page("runs", found).html
    nothing = RunTrend((empty, empty))
    assert nothing.verdict == "steps cannot be compared: fewer than two of the runs show any activity"
    assert 'id="figure-trend"' not in trend_page("runs", nothing).html


def test_one_run_is_no_series(tmp_path: Path) -> None:
    with pytest.raises(NothingMeasured, match="at least two runs"):
        run_trend(tmp_path)


# --- the command line, and the page ----------------------------------------------------------------------------------


@pytest.fixture
def series(made: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of three runs, which are read once."""
    known = {"mon": made(), "tue": made(late=30), "wed": made(late=30, gemm=80)}
    for name, one in known.items():
        known[name] = Analysis(replace(one.run, name=name))
        vars(known[name]).update({name: value for name, value in vars(one).items() if name != "run"})

    def read(paths: list[Path], _: object, *, details: bool) -> Analysis:
        assert details
        return known[paths[0].name]

    monkeypatch.setattr(cli_compare, "analysis_of", read)
    return list(known)


@pytest.mark.slow
def test_three_runs_are_a_series(capsys: pytest.CaptureFixture[str], series: list[str]) -> None:
    assert main(["compare", *series]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.partition("\n\n")[0].split()) == (
        "A step takes 40.0 ms in mon and 128.3 ms in wed: +88.3 ms (+221%), beyond the spread of runs. The largest "
        "change is from tue to wed, +58.3 ms: compute, gemm."
    )
    assert "  tue: rank 1 computes 30.0 ms per step longer than the others" in out
    assert main(["compare", "--all", *series]) == 0
    assert "What limits each run\n\nmon: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_series_is_one_screen_with_bars_on_one_scale(made: Any, width: int) -> None:
    trend = RunTrend((made(), made(late=30), made(gemm=40, late=30)))
    lines = shown.series(trend, Screen(width=width)).splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= min(width, 120)
    steps = [row["step_ns"] for row in records(trend.trend)]
    bars = [re.search("[\u2588\u2593\u2592\u2591\u259a\u00b7]+$", line) for line in lines]
    cells = [len(bar[0]) for bar in bars if bar]
    assert cells == pytest.approx([cells[-1] * ns / steps[-1] for ns in steps], abs=1.5)


@pytest.mark.slow
def test_what_begins_is_said_with_when_where_and_of_which_commit(made: Any, tmp_path: Path) -> None:
    folders = [run(tmp_path / "mon"), run(tmp_path / "tue"), run(tmp_path / "wed", late=30)]
    for day, folder in enumerate(folders):
        said = {"run": folder.name, "created_utc": f"2026-11-0{day + 1}T02:00:00Z", "commit": f"{day}" * 40}
        (folder / "run.json").write_text(json.dumps({"schema_version": 1, **said}), encoding="utf-8")
    trend = run_trend(*folders)
    assert [(row["run"], row["beyond"]) for row in trend.begins] == [("wed", "runs")]
    row = records(trend.trend)[2]
    assert (row["began_utc"], row["commit"], row["devices"]) == ("2026-11-03 02:00", "2" * 40, "NVIDIA H100 80GB HBM3")
    assert records(RunTrend((made(), made(late=30))).trend)[0]["commit"] is None
    brief = shown.series_in_brief(trend)
    table = [line for line in brief.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert table[2].startswith("| wed 2026-11-03 02:00 22222222 | rank 1 computes 30.0 ms per step longer")
    assert "2026-11-03 02:00 22222222" in shown.series(trend)


@pytest.mark.slow
def test_a_series_is_judged_by_its_last_run(capsys: pytest.CaptureFixture[str], series: list[str]) -> None:
    mon, tue, wed = series
    for runs, code in (([mon, mon, tue], 3), ([tue, tue, mon], 0), ([mon, tue, wed], 4)):
        assert main(["compare", "--by", "run", "--fail-above", "50", *runs]) == code
    assert "cannot tell: the steps of B take " in capsys.readouterr().err


@pytest.mark.slow
def test_two_runs_are_a_series_on_wish(capsys: pytest.CaptureFixture[str], series: list[str]) -> None:
    assert main(["compare", "--by", "run", "--where", "run=tue", "-f", "csv", *series[:2]]) == 0
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["run"], row["cause"]) == (
        "tue",
        "rank 1 computes 30.0 ms per step longer than the others, mostly in straggler",
    )


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["table", "csv", "markdown", "json", "latex"])
@pytest.mark.parametrize("by", [(), ("--by", "run")], ids=str)
def test_every_format(
    capsys: pytest.CaptureFixture[str], series: list[str], by: tuple[str, ...], output_format: str
) -> None:
    assert main(["compare", *by, "-f", output_format, *series]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("\n")
    assert not captured.err
    assert "tue" in captured.out
    if output_format == "json":
        content = json.loads(captured.out)
        assert content["table"] == "trend"
        assert by or list(dict.fromkeys(row["run"] for row in content["causes"])) == ["tue", "wed"]
        assert [row["run"] for row in content["rows"]] == ["mon", "tue", "wed"]


@pytest.mark.slow
def test_a_page(capsys: pytest.CaptureFixture[str], series: list[str], tmp_path: Path) -> None:
    target = tmp_path / "trend.html"
    assert main(["compare", *series, "-o", str(target)]) == 0
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith(f"note: {target}: ")
    html = target.read_text(encoding="utf-8")
    for said in (
        "beyond the spread of runs",
        "rank 1 computes 30.0 ms per step longer than the others",
        'id="figure-trend"',
        "report on a series of runs",
    ):
        assert said in html
    assert main(["compare", *series[:2], "-o", str(target)]) == 0
    assert "30.0 ms (75%) longer than those of A: rank 1 computes 30.0 ms" in target.read_text(encoding="utf-8")
    assert main(["compare", *series, "-o", str(target), "-f", "csv"]) == 0
    assert target.read_text(encoding="utf-8").startswith("run,began_utc,")


@pytest.mark.slow
def test_names_of_runs_mark_nothing_up(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, 2, [Collective((0, 0))]) for name in ("a", "<img src=x>", "[x](y)\x1b[31m")]
    found = run_trend(*folders)
    html = trend_page("runs", found).html + plots.runs(found).svg
    assert "<img" not in html
    assert "\x1b" not in html + found.summary()
    assert isinstance(found, RunTrend)
    assert "\x1b" not in repr(found)


@pytest.mark.slow
def test_what_differs_from_run_to_run_is_said(made: Any, tmp_path: Path) -> None:
    other = analyse(write_run(tmp_path / "two", 2, [Collective((0, 0))]), details=True)
    assert "ranks: 3 in plain, 2 in two" in RunTrend((made(), other)).summary()
