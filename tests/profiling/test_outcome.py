"""What people are told at the end of a capture: by `capture()` itself, and by `run`."""

import asyncio
import gc
import inspect
import pydoc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from capturing import metas, three

import commtrace
from commtrace import analyse, capture
from commtrace.analysis.errors import NoTraces
from commtrace.cli import main
from commtrace.profiling.base.run_directory import ranks_here
from commtrace.profiling.errors import CaptureError
from commtrace.profiling.ranks import process_group as parallel
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.sessions import kineto_buffers
from commtrace.profiling.sessions.outcome import TOO_SHORT, Outcome


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def steps(session, count: int) -> None:
    for _ in range(count):
        torch.ones(8, 8) @ torch.ones(8, 8)
        session.step()


def test_success_is_one_line(tmp_path, capfd) -> None:
    with three(tmp_path / "my run", device="cpu") as session:
        steps(session, 5)
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(f"commtrace: done: 1 rank traced in {tmp_path}/my run")
    assert err.endswith(f"; next: commtrace '{tmp_path}/my run'\n")


def test_a_block_without_a_step(tmp_path, capfd) -> None:
    with three(tmp_path / "run", device="cpu"):
        torch.ones(8, 8) @ torch.ones(8, 8)
    why = "session.step() was never called, so no step was traced; call it at the end of every training step"
    assert capfd.readouterr().err == f"commtrace: rank 0: no trace: {why}\n"
    assert metas(tmp_path / "run")[0]["reason"] == why
    with pytest.raises(NoTraces, match=r"ended without a trace: rank 0: session\.step\(\) was never called"):
        analyse(tmp_path / "run")


def test_a_session_that_is_not_entered(tmp_path, capfd) -> None:
    gc.collect()  # those of other tests say it as well
    capfd.readouterr()
    session = three(tmp_path / "run", device="cpu")
    with pytest.raises(CaptureError, match=r"write `with commtrace\.capture\(\.\.\.\) as session:`"):
        session.step()
    del session
    gc.collect()
    assert capfd.readouterr().err == (
        f"commtrace: capture('{tmp_path}/run') recorded nothing, because its block was not entered; write: with "
        "commtrace.capture(...) as session: ...\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_function_is_captured_by_its_decorator(tmp_path, capfd) -> None:
    @capture(tmp_path / "run", device="cpu", wait=0, active=2)
    def train(count: int) -> str:
        for _ in range(count):
            torch.ones(8, 8) @ torch.ones(8, 8)
            commtrace.step()
        return "trained"

    commtrace.step()  # no capture is on
    assert train(count=5) == "trained"
    assert (train.__name__, capfd.readouterr().err.startswith("commtrace: done: 1 rank traced")) == ("train", True)
    assert len(metas(tmp_path / "run")[0]["steps"]) == 5
    assert train(5) == "trained"
    assert len(metas(tmp_path / "run-2")[0]["steps"]) == 5


def test_a_decorated_coroutine_or_generator_is_captured_while_it_runs(tmp_path) -> None:
    def step() -> None:
        torch.ones(8, 8) @ torch.ones(8, 8)
        commtrace.step()

    @capture(tmp_path / "coroutine", device="cpu", wait=0, active=2)
    async def awaited(count: int) -> str:
        for _ in range(count):
            step()
            await asyncio.sleep(0)
        return "trained"

    @capture(tmp_path / "generator", device="cpu", wait=0, active=2)
    def generated(count: int) -> Iterator[int]:
        for number in range(count):
            step()
            yield number

    assert asyncio.run(awaited(5)) == "trained"
    assert list(generated(5)) == [0, 1, 2, 3, 4]
    for kind in ("coroutine", "generator"):
        found = metas(tmp_path / kind)[0]
        assert (found["complete"], len(found["steps"])) == (True, 5)


def test_the_help_of_capture_is_its_own() -> None:
    assert list(inspect.signature(commtrace.capture).parameters)[:4] == ["out", "from_step", "wait", "warmup"]
    assert "Which steps are traced is as for `commtrace run`" in pydoc.render_doc(commtrace.capture)


def test_a_schedule_that_is_longer_than_the_loop(tmp_path, capfd) -> None:
    with three(tmp_path / "run", device="cpu", active=5) as session:
        steps(session, 4)
    err = capfd.readouterr().err
    why = "the loop ended after 4 of 7 scheduled steps; run more steps, or trace fewer (wait, warmup, active, repeat)"
    assert err == f"commtrace: rank 0: 1 trace in {tmp_path}/run, but incomplete: {why}\n"
    assert any(why in note for note in analyse(tmp_path / "run").run.notes)


@pytest.mark.parametrize("destroys", [False, True])
@pytest.mark.parametrize("other", [True, False])
def test_a_rank_that_took_no_part_is_named(tmp_path, monkeypatch, capfd, other, destroys) -> None:
    """Also where the group is gone before the block ends."""
    store = dist.HashStore()
    monkeypatch.setattr(parallel, "default_store", lambda: store)
    monkeypatch.setattr(parallel, "identity", lambda: Identity(0, 0, 2, "host"))
    if other:
        store.add("commtrace/entries/1", 1)
    monkeypatch.setattr("commtrace.profiling.sessions.clock_probe._PATIENCE_S", 0.01)
    with three(tmp_path / "run", device="cpu") as session:
        steps(session, 5)
        if destroys:
            monkeypatch.setattr(parallel, "default_store", lambda: None)
    err = capfd.readouterr().err
    meta = metas(tmp_path / "run")[0]
    assert (meta["absent_ranks"], meta["complete"]) == ([] if other else [1], True)
    assert len(err.splitlines()) == 1
    assert ("commtrace: done: 2 ranks traced" in err) is other
    assert ("commtrace: only 1 rank of 2 traced" in err) is not other
    assert ("rank 1 took no part: start every rank" in err) is not other
    assert ("the files of rank 1 are on nodes that do not share this folder" in err) is other
    notes = analyse(tmp_path / "run").run.notes
    assert any("rank 1 took no part in the capture" in note for note in notes) is not other


def test_many_ranks_are_not_listed() -> None:
    found = Outcome("run", 0, 1024, 1, None, range(1, 1024)).sentence()
    assert "only 1 rank of 1,024 traced" in found
    assert "rank 1, 2, 3, 4, 5 and 1,018 more took no part" in found


def test_files_of_other_nodes_are_missed_only_where_they_are_not_here(tmp_path) -> None:
    for name in ("a_0.meta.json", "b-1_10.meta.json", "b_1.meta.json", "run.json", "_.meta.json"):
        (tmp_path / name).touch()
    assert ranks_here(tmp_path) == {0, 1, 10}
    assert ranks_here(tmp_path / "gone") == set()
    assert Outcome("a run", 0, 4, 1, None, (), elsewhere={2, 3}).sentence() == (
        "done: 4 ranks traced in a run; the files of ranks 2-3 are on nodes that do not share this folder: copy their "
        "folders of this name to this node, under other names, and give all of them: commtrace summary 'a run' COPY ..."
    )


def test_ranks_that_could_not_hear_of_a_request_are_named_with_the_reason() -> None:
    found = Outcome("run", 0, 4, 1, None, [2, 3], asked=range(4)).sentence()
    assert found == (
        "only 2 ranks of 4 traced in run; ranks 2-3 took no part: the request came too late there, or not at all, as "
        "on nodes that do not share this folder"
    )


def test_ranks_that_nobody_has_counted_are_not_said_to_be_traced() -> None:
    """Where ranks have no process group, but a name for the run."""
    assert Outcome("run", 0, 2, 1, None, None).sentence().startswith("done: rank 0 of 2 traced in run; next: ")


def test_other_ranks_say_only_what_is_their_own() -> None:
    assert Outcome("run", 3, 8, 1, None).sentence() is None
    assert Outcome("run", 3, 8, 1, f"the loop ended; {TOO_SHORT}").sentence() is None
    assert Outcome("run", 0, 8, 1, f"the loop ended; {TOO_SHORT}").sentence() is not None
    assert Outcome("run", 3, 8, 1, "a trace is cut short").sentence() == (
        "rank 3: 1 trace in run, but incomplete: a trace is cut short"
    )


@pytest.mark.slow
def test_train_says_what_its_traces_lack(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(kineto_buffers.GpuRecord, "lost", "a trace is cut short", raising=False)
    monkeypatch.setattr(kineto_buffers.GpuRecord, "__init__", lambda *args: setattr(args[0], "_device", args[1]))
    options = ["--parallel", "single", "--device", "cpu", "--batch-size", "2", "--active", "1", "--warmup", "0"]
    assert main(["train", *options, "--steps", "3", "--out", str(tmp_path), "--run-name", "run"]) == 0
    err = capfd.readouterr().err
    assert f"commtrace: rank 0: 1 trace in {tmp_path}/run, but incomplete: a trace is cut short\n" in err
