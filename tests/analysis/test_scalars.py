"""The numbers of a run for the log of a training: those of its tables, under names that stay."""

import json
from pathlib import Path

import pytest
from builders import MS, Collective, traces_of, write_run

from commtrace import cli
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.show.scalars import RUN_SCALARS, SCALAR_PREFIX, run_scalars

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
STAY = [
    "step_ms", "compute_ms", "exposed_comm_ms", "exposed_wait_ms", "exposed_transfer_ms", "hidden_comm_ms", "idle_ms",
    "exposed_comm_frac", "mfu_frac", "busbw_gb_per_s", "busbw_of_normal_frac", "late_rank", "late_rank_wait_frac",
    "first_gain_ms", "steps", "ranks",
]  # fmt: skip


def test_the_names_stay() -> None:
    assert [scalar.name for scalar in RUN_SCALARS] == STAY, "charts of former trainings have these names: only add"


@pytest.mark.slow_cases("tests/data/nccl-straggler", "traces/resnet18-ddp-w2")
@pytest.mark.parametrize("run", ["tests/data/nccl-straggler", "tests/data/host-bound", "traces/resnet18-ddp-w2"])
def test_the_numbers_are_those_of_the_tables(run: str) -> None:
    analysis = analyse(ROOT / run)
    found = run_scalars(analysis)
    of = {name.removeprefix(SCALAR_PREFIX): value for name, value in found.scalars.items()}
    rows = analysis.breakdown
    for name, column in (
        ("step_ms", "window_ns"),
        ("compute_ms", "compute_ns"),
        ("exposed_comm_ms", "exposed_comm_ns"),
        ("hidden_comm_ms", "overlap_ns"),
        ("idle_ms", "idle_ns"),
    ):
        per_step_ns = rows[column].sum() / len(rows) / of["steps"]
        assert of[name] == pytest.approx(per_step_ns / 1e6, abs=1e-6), name  # parts are whole ns of a device
    assert of["exposed_wait_ms"] + of["exposed_transfer_ms"] == pytest.approx(of["exposed_comm_ms"], abs=1e-6)
    assert of["ranks"] == len(analysis.run.ranks)
    assert found.headline == analysis.verdicts["headline"].iloc[0]
    remedies = analysis.remedies
    assert of["first_gain_ms"] == pytest.approx(remedies["gain_ns"].iloc[0] / 1e6)
    assert {*found.scalars, *found.unknown} == {SCALAR_PREFIX + name for name in STAY}
    assert not found.scalars.keys() & found.unknown.keys()


@pytest.mark.slow
def test_the_rank_that_is_late() -> None:
    found = run_scalars(analyse(DATA / "nccl-straggler")).scalars
    assert (found["commtrace/late_rank"], round(found["commtrace/late_rank_wait_frac"], 2)) == (2, 0.98)


def test_what_is_not_known_has_a_reason(tmp_path: Path) -> None:
    write_run(tmp_path, 2, [Collective((0, 0), 10 * MS, elems=10**6)])
    found = run_scalars(analyse(tmp_path))
    assert found.unknown["commtrace/late_rank"] == "no rank is known to have made others wait"
    assert all(found.unknown.values())


def test_a_trace_without_devices_has_ranks_only(tmp_path: Path) -> None:
    traces_of(1, [])[0].write(tmp_path, "x0.json")
    found = run_scalars(analyse(tmp_path))
    assert found.scalars == {"commtrace/ranks": 1.0}
    assert found.headline == "Nothing was measured"


@pytest.mark.slow
def test_the_command_and_the_report_write_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(DATA / "nccl-straggler")
    assert cli.main(["export", "scalars", run]) == 0
    printed = capsys.readouterr().out
    page, file = tmp_path / "page.html", tmp_path / "scalars.json"
    assert cli.main(["report", run, "--output", str(page), "--scalars", str(file)]) == 0
    assert file.read_text() == printed
    assert json.loads(printed)["headline"].endswith(said := "costs 1.5 ms of every 4.8 ms step")
    assert said in page.read_text()


def test_no_scalars_of_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = str(DATA / "nccl-straggler"), tmp_path / "scalars.json"
    assert cli.main(["report", run, "--against", run, "--scalars", str(file)]) == 2
    assert "is for a run only" in capsys.readouterr().err
    assert not file.exists()


def test_the_page_of_the_documentation_has_every_scalar() -> None:
    page = (ROOT / "docs/logs.md").read_text()
    for scalar in RUN_SCALARS:
        assert f"| `{SCALAR_PREFIX}{scalar.name}` | {scalar.what} |" in page
