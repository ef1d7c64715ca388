"""The critical path: whole, and critical: what is not on it can be shorter, what is on it cannot be longer for free."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from builders import MS, Collective, traces_of
from perfetto_reading import tracks_of
from simulator import PRESETS, Injection, Window, World, draw, simulate
from simulator.programs import ddp, tp

from commtrace import analyse, cli
from commtrace.analysis.core.steps import NEVER, step_windows
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.replay.engine import Playing, play
from commtrace.analysis.replay.programs import RankProgram, steps_of
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.tables.critical_path import path
from commtrace.analysis.tables.replay import replayed

DATA = Path(__file__).parent / "data"
RUNS = [*sorted(folder.name for folder in DATA.glob("nccl-*")), "gloo-training"]
KINDS = {"compute", "copy", "transfer", "unsplit", "cpu", "launch"}


def cycles_of(analysis: Analysis) -> list[list[Playing]]:
    return list(analysis.of(replayed).measured)


def last_end(members: list[Playing]) -> int:
    return max(int(end.max()) for _, end in play(members))


def on_path(analysis: Analysis, member: Playing) -> np.ndarray:
    links = analysis.of(path).links
    ran = links[links["kind"].isin(["compute", "copy", "transfer", "unsplit"]) & (links["rank"] == member.program.rank)]
    outside = (member.program.start < links["start_ns"].min()) | (member.program.end > links["end_ns"].max())
    return np.isin(member.program.row, ran["row"].to_numpy()) | outside  # where nobody knows


def begins_since(program: RankProgram) -> npt.NDArray[np.int64]:
    """Since when devices waited for the first activity of a step."""
    return np.array([
        program.idle_since.get(step, NEVER) if step not in program.step[:place] else NEVER
        for place, step in enumerate(program.step.tolist())
    ], dtype=np.int64)  # fmt: skip


# --- it is whole ------------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("gloo-training")
@pytest.mark.parametrize("name", RUNS)
def test_it_is_as_long_as_each_step_without_a_gap(name: str) -> None:
    found = analyse(DATA / name, details=True)
    links = found.of(path).links
    assert set(links["kind"]) <= KINDS
    for members in cycles_of(found):
        programs = [member.program for member in members]
        of_all = [
            np.concatenate([each(p) for p in programs])
            for each in (lambda p: p.start, lambda p: p.end, steps_of, begins_since)
        ]
        for step, begin, end in step_windows(*of_all):
            own = links[links["step"] == step]
            assert own["start_ns"].iloc[0] == max(begin, of_all[0].min())  # before it, nothing was on any path
            assert own["end_ns"].iloc[-1] == end
            assert own["end_ns"].tolist()[:-1] == own["start_ns"].tolist()[1:]


@pytest.mark.quick_cases("gloo-training")
@pytest.mark.parametrize("name", RUNS)
def test_its_shares_add_up(name: str) -> None:
    found = analyse(DATA / name, details=True)
    assert found.critical_path["share_frac"].sum() == pytest.approx(1)
    assert found.critical_path_steps.groupby("step")["share_frac"].sum().to_numpy() == pytest.approx(1)
    pieces, steps = found.critical_path_pieces, found.critical_path_steps.groupby("step")["dur_ns"].sum()
    assert (pieces.groupby("step")["dur_ns"].sum() <= steps).all()
    assert (pieces.groupby("step").size() <= 10).all()
    assert found.of(path).pieces.groupby("step")["dur_ns"].sum().tolist() == steps.tolist()


# --- it is critical ---------------------------------------------------------------------------------------------------


@pytest.mark.quick_cases("gloo-training")
@pytest.mark.parametrize("name", RUNS)
def test_what_is_not_on_it_can_be_shorter_and_nothing_is_gained(name: str) -> None:
    found = analyse(DATA / name, details=True)
    for members in cycles_of(found):
        shorter = []
        for member in members:
            fixed = on_path(found, member)
            half = {
                key: np.where(fixed, getattr(member, key), getattr(member, key) // 2)
                for key in ("duration", "transfer")
            }
            shorter.append(replace(member, **half))
        assert last_end(shorter) == last_end(members)


@pytest.mark.slow
@pytest.mark.parametrize("which", [*PRESETS, 300, 301, 302])
def test_what_is_on_it_makes_the_run_longer(which: int | str, tmp_path: Path) -> None:
    simulate(PRESETS[which] if isinstance(which, str) else draw(which)).write(tmp_path)
    found = analyse(tmp_path, details=True)
    members = cycles_of(found)[-1]
    links = found.of(path).links
    ran = links[links["kind"] == "compute"].sample(3, random_state=1)
    for rank, row in zip(ran["rank"], ran["row"], strict=True):
        longer = [
            replace(m, duration=m.duration + MS * ((m.program.row == row) & (m.program.rank == rank))) for m in members
        ]
        if any((m.program.row == row).any() for m in members):
            assert last_end(longer) - last_end(members) == pytest.approx(MS, rel=0.01)


# --- it goes where it should ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("program", [ddp, tp])
def test_it_runs_through_a_slow_kernel(program, tmp_path: Path) -> None:
    calm = World(5, program, 1, 4, steps=7, window=Window(((1, 5),)))
    simulate(replace(calm, injections=(Injection("kernel", (2,), (3,), 5000.0, 0.4),))).write(tmp_path)
    found = analyse(tmp_path, details=True)
    pieces = found.critical_path_pieces
    longest = pieces[pieces["step"] == 3].iloc[0]
    assert (longest["rank"], longest["kind"]) == (2, "compute")
    assert longest["dur_ns"] > 5 * MS
    of_others = found.critical_path_steps.query("step != 3 and rank == 2 and kind == 'compute'")["dur_ns"]
    assert of_others.max() < 5 * MS


@pytest.mark.slow
def test_it_goes_on_with_whom_was_waited_for(tmp_path: Path) -> None:
    """Rank 1 computes longer, both all_reduce, and rank 0 computes after that."""
    traces = traces_of(2, [Collective((10 * MS, 30 * MS), 5 * MS, elems=10**6)])
    for trace, until in zip(traces, (10, 30), strict=True):
        trace.kernel("gemm", 0, until * MS).kernel("norm", 35 * MS, (20 - 18 * trace.rank) * MS)
        trace.write(tmp_path, f"x{trace.rank}.json")
    found = analyse(tmp_path, details=True)
    pieces = found.critical_path_pieces.sort_values("start_ns")
    told = pieces[["rank", "kind", "dur_ns", "waiting_rank"]].astype(object)
    assert told.where(told.notna(), None).to_numpy().tolist() == [
        [1, "compute", 30 * MS, 0],
        [0, "transfer", 5 * MS, None],
        [0, "compute", 20 * MS, None],
    ]


# --- where it is shown ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_each_table(capsys: pytest.CaptureFixture[str]) -> None:
    for by, first in (("rank", "rank,kind"), ("step", "step,rank,kind"), ("piece", "step,rank,kind,name")):
        assert cli.main(["table", "critical-path", "--by", by, "-f", "csv", str(DATA / "nccl-straggler")]) == 0
        assert capsys.readouterr().out.startswith(first)


@pytest.mark.slow
def test_the_report_has_it_and_says_nothing_where_it_is_not_known() -> None:
    page = analyse(DATA / "nccl-straggler", details=True).report().html
    assert "What the critical path of a step runs through" in page
    assert 'id="path"' not in analyse(DATA / "nccl-straggler", details=False).report().html


@pytest.mark.slow
def test_remedies_say_how_much_of_it_they_concern() -> None:
    found = analyse(DATA / "nccl-straggler", details=True)
    path = found.critical_path
    shares = found.remedies.set_index("remedy")["path_frac"]
    moving = path[path["kind"].isin(["transfer", "unsplit"])]["share_frac"].sum()
    late = path[(path["rank"] == 2) & ~path["kind"].isin(["transfer", "unsplit"])]["share_frac"].sum()
    assert shares["overlap"] == pytest.approx(moving)
    assert shares["no_straggler"] == pytest.approx(late)
    assert analyse(DATA / "nccl-straggler", details=False).remedies["path_frac"].isna().all()


@pytest.mark.slow
def test_without_details_it_is_not_known() -> None:
    with pytest.raises(NothingMeasured, match="details=False"):
        _ = analyse(DATA / "nccl-straggler", details=False).critical_path


@pytest.mark.slow
def test_the_timeline_has_it_piece_by_piece() -> None:
    found = analyse(DATA / "nccl-straggler", details=True)
    pieces = found.of(path).pieces
    [track] = [track for track in tracks_of(found.timeline()) if track.name == "critical path"]
    assert [s.end - s.start for s in track.slices] == pieces["dur_ns"].tolist()
    assert [s.notes["rank"] for s in track.slices] == pieces["rank"].tolist()
    assert track.slices[0].name.endswith(f" (rank {pieces['rank'].iloc[0]})")
    of_one = [t for t in tracks_of(found.timeline(ranks=[2], steps=[3])) if t.name == "critical path"]
    shown = [s.notes for track in of_one for s in track.slices]
    assert {(notes["rank"], notes["step"]) for notes in shown} == {(2, 3)}
    without = tracks_of(analyse(DATA / "nccl-straggler", details=False).timeline())
    assert not any(track.name == "critical path" for track in without)


def test_a_cpu_is_cut_into_the_operators_that_it_ran(tmp_path: Path) -> None:
    """Outermost ones; what lies between has no name."""
    trace = traces_of(1, [])[0].step(0, 0, 50 * MS).kernel("gemm", 1 * MS, 1 * MS, launch=0)
    trace.op("aten::short", 2 * MS, 5 * MS).op("aten::long", 8 * MS, 20 * MS).op("aten::within", 9 * MS, 3 * MS)
    trace.kernel("late", 40 * MS, 5 * MS, launch=39 * MS).write(tmp_path, "x0.json")
    pieces = analyse(tmp_path, details=True).critical_path_pieces
    of_cpu = pieces[pieces["kind"] == "cpu"].sort_values("start_ns")
    assert of_cpu["name"].fillna("-").tolist() == ["-", "aten::short", "-", "aten::long", "-"]
    assert of_cpu["dur_ns"].tolist()[1:] == [5 * MS, 1 * MS, 20 * MS, 11 * MS]
    assert pieces[pieces["kind"] == "compute"]["name"].tolist() == ["late"]
