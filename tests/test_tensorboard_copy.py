"""`tensorboard-copy` and `tensorboard-scalars`: what a real TensorBoard shows of them is what our tables say."""

import gzip
import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import MS, Collective, analysed, traces_of, write_run
from distributed_view import View, assert_times_of_breakdown, copied, transfer_us
from tensorboards import content, once_loaded, tensorboard

from commtrace import analyse, cli
from commtrace.analysis.core.expressions import cut_name
from commtrace.analysis.errors import MissingLibrary
from commtrace.analysis.tensorboard.pairing import paired_collectives, workers_of
from commtrace.analysis.tensorboard.scalars import event_file, step_scalars

DATA = Path(__file__).parent / "data"
RUNS = ("nccl-straggler", "nccl-rooted", "nccl-two-hosts")
needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None or find_spec("torch_tb_profiler") is None,
    reason="needs tensorboard and torch-tb-profiler",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard with copies of recorded runs, one beside its scalars."""
    logdir = tmp_path_factory.mktemp("logdir")
    for name in RUNS:
        assert cli.main(["export", "tensorboard-copy", str(DATA / name), str(logdir / name)]) == 0
    scalars = ["export", "tensorboard-scalars", str(DATA / RUNS[0]), "--output", str(logdir / RUNS[0])]
    assert cli.main(scalars) == 0
    with tensorboard(logdir) as found:
        yield found


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.parametrize("name", RUNS)
def test_times_are_those_of_breakdown(address: str, name: str) -> None:
    assert_times_of_breakdown(View(address, name), analyse(DATA / name))


@pytest.mark.slow
@needs_tensorboard
def test_waiting_is_right_where_all_take_part(address: str) -> None:
    """It takes the shortest of a collective for its transfer; ours differ by when each rank ended."""
    analysis = analyse(DATA / "nccl-straggler")
    chart = View(address, "nccl-straggler").chart("waittime")
    for row in analysis.breakdown_steps.itertuples():
        [(transfer, wait)] = [
            times for worker, times in chart[str(row.step)].items() if worker.endswith(f"_{row.rank}")
        ]
        assert transfer + wait == pytest.approx(row.comm_ns / 1e3, abs=1e-3)
        assert transfer == pytest.approx(transfer_us(analysis, row.step)[row.rank], rel=0.02)


@pytest.mark.slow
@needs_tensorboard
@pytest.mark.parametrize("name", RUNS)
def test_every_operation_is_in_a_step(address: str, name: str) -> None:
    """Also one that ends with it."""
    steps = set(analyse(DATA / name).breakdown_steps["step"].astype(str))
    assert set(View(address, name).chart("waittime")) <= {"all", *steps}


@pytest.mark.slow
@needs_tensorboard
def test_operations_are_those_of_the_calls(address: str) -> None:
    analysis = analyse(DATA / "nccl-rooted")
    expected = analysis.calls.groupby(["rank", "collective"])["size_bytes"].agg(["count", "sum"])
    for worker, rows in View(address, "nccl-rooted").operations().items():
        found = {row[0].removeprefix("nccl:"): row[1:3] for row in rows if row[2]}
        for collective in ("all_reduce", "broadcast"):
            assert found[collective] == expected.loc[int(worker[-1]), collective].tolist()


@pytest.mark.slow
@needs_tensorboard
def test_groups_are_not_compared_as_if_they_were_one(address: str) -> None:
    """Two groups of four: the n-th collective of each has nothing to do with that of the other."""
    chart = View(address, "nccl-two-hosts").chart("waittime")
    assert {tuple(times) for step in chart.values() for times in step.values()} == {(0, 0)}


@pytest.mark.slow
@needs_tensorboard
def test_scalars_stand_under_the_run(address: str) -> None:
    tags = set(once_loaded(f"{address}data/plugin/scalars/tags", "busbw")[RUNS[0]])
    scalars = step_scalars(analyse(DATA / RUNS[0]))
    assert tags == {scalar.tag for scalar in scalars}
    for tag in tags:
        points = content(f"{address}data/plugin/scalars/scalars?run={RUNS[0]}&tag={tag}")
        own = [scalar for scalar in scalars if scalar.tag == tag]
        assert [step for _, step, _ in points] == [scalar.step for scalar in own]
        assert [value for *_, value in points] == pytest.approx([scalar.value for scalar in own], rel=1e-6)


@pytest.mark.slow
def test_scalars_are_those_of_the_tables() -> None:
    analysis = analyse(DATA / "nccl-straggler")
    found = {(scalar.tag, scalar.step): scalar for scalar in step_scalars(analysis)}
    for step, rows in analysis.breakdown_steps.groupby("step"):
        for tag, column in (("step_ms", "window_ns"), ("exposed_wait_ms", "exposed_wait_ns")):
            assert found[f"{tag}/median", step].value == pytest.approx(rows[column].median() / 1e6)
            assert found[f"{tag}/max", step].value == pytest.approx(rows[column].max() / 1e6)
    first = analysis.run.activities["start_ns"].min() / 1e9
    assert found["step_ms/median", 1].began_s == pytest.approx(first, abs=1)


def test_bandwidth_of_a_step_is_of_all_that_was_moved(tmp_path: Path) -> None:
    """4e6 bytes in 10 ms and as many in 5: with 2 ranks a bus moves what the algorithm does."""
    made = [Collective((0, 0), 10 * MS, elems=10**6), Collective((20 * MS, 20 * MS), 5 * MS, elems=10**6)]
    traces = traces_of(2, made)
    for trace in traces:
        trace.step(0, -MS, 90 * MS)
    found = {scalar.tag: scalar.value for scalar in step_scalars(analysed(tmp_path, *traces))}
    assert found["busbw_gb_per_s/all_reduce"] == pytest.approx(8e6 / 15e6)


def test_what_begins_in_another_order_elsewhere_is_not_compared() -> None:
    analysis = analyse(DATA / "nccl-straggler")
    calls = analysis.calls.merge(analysis.matches[["call_id", "collective_id"]], on="call_id").assign(complete=True)
    numbers = paired_collectives(workers_of(analysis.run.activities, calls))
    assert list(numbers.values()) == list(range(1, 28))
    first, second, *_ = numbers
    swapped = calls["collective_id"].map({first: second, second: first}).fillna(calls["collective_id"])
    calls["collective_id"] = swapped.where(calls["rank"] == 2, calls["collective_id"]).astype("int64")
    assert len(paired_collectives(workers_of(analysis.run.activities, calls))) == 26


def test_a_missing_rank_leaves_nothing_to_compare(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "nccl-straggler", tmp_path / "run")
    sorted(run.glob("*.pt.trace.json.gz"))[0].unlink()
    text = "".join(
        gzip.decompress(file.read_bytes()).decode() for file in copied(analyse(run), tmp_path / "o").iterdir()
    )
    assert '"name":"nccl:all_reduce"' not in text
    assert '"name":"nccl:reduce"' in text


@pytest.mark.slow
def test_names_stay_names(tmp_path: Path) -> None:
    name = 'evil"\n\x1b[2J</script>\u2028' + "x" * 5000
    traces = traces_of(2, [Collective((0, 20 * MS), 30 * MS, elems=10**6)])
    for trace in traces:
        trace.host = "../../" + name
        trace.step(0, 0, 90 * MS).kernel(name, 60 * MS, 5 * MS)
        trace.write(tmp_path, f"x{trace.rank}.json")
    files = list(copied(analyse(tmp_path), tmp_path / "o").iterdir())
    assert len(files) == 2
    assert all(file.name.isascii() and len(file.name) < 120 for file in files)
    events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    assert cut_name(name) in {event["name"] for event in events}


@pytest.mark.slow
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(DATA / "nccl-straggler", tmp_path / "run")
    before = sorted(file.name for file in run.iterdir())
    (tmp_path / "file").write_text("mine")
    for out in ("run", "file"):
        assert cli.main(["export", "tensorboard-copy", str(run), str(tmp_path / out)]) == 1
        assert "is there already; name a new folder" in capsys.readouterr().err
    assert sorted(file.name for file in run.iterdir()) == before
    assert cli.main(["export", "tensorboard-copy", str(run), str(tmp_path / "no" / "where")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["export", "tensorboard-copy", str(run), str(tmp_path / "empty")]) == 0
    assert len(list((tmp_path / "empty").iterdir())) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "run"]


@pytest.mark.slow
def test_it_says_what_the_view_cannot_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "tensorboard-copy", str(DATA / "nccl-rooted"), str(tmp_path / "o")]) == 0
    said = capsys.readouterr()
    assert "4 traces" in said.out
    assert "note: 144 of 192 collectives are in its charts of waiting and of operations" in said.err


def test_a_run_without_communication(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces_of(1, [])[0].step(0, 0, 50 * MS).kernel("gemm", 1 * MS, 5 * MS).write(tmp_path, "x0.json")
    assert cli.main(["export", "tensorboard-copy", str(tmp_path), str(tmp_path / "o")]) == 1
    assert "shows no communication" in capsys.readouterr().err


@pytest.mark.slow
@needs_tensorboard
def test_scalars_replace_earlier_ones_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(DATA / "nccl-straggler", tmp_path / "run")
    (run / "events.out.tfevents.1.training").write_bytes(b"")
    (run / "events.out.tfevents.1.host.commtrace").write_bytes(b"old")
    for _ in range(2):
        assert cli.main(["export", "tensorboard-scalars", str(run)]) == 0
    [file] = run.glob("*.commtrace")
    assert file.stat().st_size > 500
    assert (run / "events.out.tfevents.1.training").exists()
    assert "15 curves over 3 steps" in capsys.readouterr().out


def test_scalars_need_one_folder_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(file) for file in sorted((DATA / "nccl-straggler").glob("*.pt.trace.json.gz"))]
    assert cli.main(["export", "tensorboard-scalars", *files]) == 2
    assert "--output" in capsys.readouterr().err
    write_run(tmp_path, 2, [Collective((0, 0), 10 * MS, elems=10**6)])
    assert cli.main(["export", "tensorboard-scalars", str(tmp_path)]) == 1
    assert "no steps are marked" in capsys.readouterr().err


def test_without_tensorboard_scalars_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingLibrary, match=r"pip install"):
        event_file([])
