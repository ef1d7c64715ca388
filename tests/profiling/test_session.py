import json
import signal
import sys
import threading
import time
import weakref
from typing import ClassVar

import pytest
import torch
from capturing import SCRIPTS, leftovers, metas, python, three, torchrun, trace, traced_steps
from samples import with_slow

from commtrace import capture
from commtrace.profiling.base import run_directory as rundir
from commtrace.profiling.base import torch_private
from commtrace.profiling.errors import CaptureError, RunDirError, UsageError
from commtrace.profiling.script.run_command import _StepOptions
from commtrace.profiling.sessions import session as sessions
from commtrace.profiling.sessions import step_clock
from commtrace.profiling.sessions.afterwards import conclusion, packing
from commtrace.profiling.sessions.afterwards.aside import Printed
from commtrace.profiling.sessions.step_clock import HostMark


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def run(session, steps: int) -> None:
    for _ in range(steps):
        work()
        session.step()


def test_without_distributed_this_is_rank_0_of_1(tmp_path) -> None:
    model = torch.nn.Linear(3, 2)
    with three(tmp_path / "mine", device="cpu", model=model, batch_size=5, config={"lr": 1}) as session:
        run(session, 6)
    meta = metas(tmp_path / "mine")[0]
    assert (meta["rank"], meta["world_size"], meta["complete"], meta["reason"]) == (0, 1, True, None)
    assert meta["model"] == {"name": "Linear", "parameters": 8, "bytes": 32, "buffer_bytes": 0}
    assert meta["batch_size_per_rank"] == 5
    assert [step["phase"] for step in meta["steps"]] == ["idle", "warmup", "active", "active", "active", "idle"]
    assert all(step["dur_ns"] > 0 for step in meta["steps"])
    (name,) = session.traces
    assert meta["traces"] == [name]
    assert traced_steps(trace(session.run_dir / name)) == [2, 3, 4]
    run_file = json.loads((session.run_dir / "run.json").read_text())
    assert (run_file["run"], run_file["backend"], run_file["config"]) == ("mine", None, {"lr": 1})
    assert leftovers(session.run_dir) == []


def test_what_comes_before_the_first_step_is_noted_and_not_timed_with_it(tmp_path) -> None:
    with three(tmp_path / "run", device="cpu") as session:
        begun_ns = time.time_ns()
        session.note(epochs=[{"phase": "timed"}])
        assert metas(tmp_path / "run")[0]["epochs"] == [{"phase": "timed"}], "whatever happens next"
        run(session, 5)
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["epochs"]) == (True, [{"phase": "timed"}])
    assert meta["steps"][0]["start_unix_ns"] >= begun_ns


def test_shapes_are_recorded(tmp_path) -> None:
    with capture(tmp_path / "run", device="cpu", wait=0, warmup=1, active=1) as session:
        run(session, 2)
    events = trace(session.run_dir / session.traces[0])["traceEvents"]
    dims = [event["args"]["Input Dims"] for event in events if event.get("name") == "aten::mm"]
    assert dims == [[[8, 8], [8, 8]]]


def test_fewer_steps_than_scheduled_write_what_there_is(tmp_path) -> None:
    with capture(tmp_path / "run", device="cpu", wait=0, warmup=1, active=5) as session:
        run(session, 3)
    meta = metas(tmp_path / "run")[0]
    assert meta["complete"] is False
    advice = "run more steps, or trace fewer (wait, warmup, active, repeat)"
    assert meta["reason"] == f"the loop ended after 3 of 6 scheduled steps; {advice}"
    assert {1, 2} <= set(traced_steps(trace(session.run_dir / session.traces[0])))


def test_no_active_step_no_trace(tmp_path) -> None:
    with three(tmp_path / "run", device="cpu") as session:
        run(session, 1)
    assert metas(tmp_path / "run")[0]["complete"] is False
    assert session.traces == []
    assert sorted(path.suffix for path in session.run_dir.iterdir()) == [".json", ".json"]


def test_exception_keeps_the_trace_so_far_and_says_why(tmp_path) -> None:
    with pytest.raises(ValueError, match="bad luck"), three(tmp_path / "run", device="cpu") as session:  # noqa: PT012
        run(session, 3)
        raise ValueError("bad luck\nand more")
    meta = metas(tmp_path / "run")[0]
    assert meta["complete"] is False
    assert meta["reason"] == "ValueError: bad luck (after 3 of 5 scheduled steps)"
    assert 2 in traced_steps(trace(session.run_dir / session.traces[0]))


def test_what_ends_it_after_the_last_scheduled_step_takes_nothing_away(tmp_path) -> None:
    with pytest.raises(SystemExit) as stopped, three(tmp_path / "run", device="cpu") as session:  # noqa: PT012
        run(session, 7)
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["reason"], len(meta["steps"])) == (True, None, 7)


def test_signal_while_a_trace_is_written_waits_for_it(tmp_path, monkeypatch) -> None:
    write_trace = rundir.write_trace

    def interrupted(path, export) -> None:
        signal.raise_signal(signal.SIGTERM)
        write_trace(path, export)

    monkeypatch.setattr(rundir, "write_trace", interrupted)
    with pytest.raises(SystemExit) as stopped, three(tmp_path / "run", device="cpu") as session:
        run(session, 20)
    assert stopped.value.code == 143
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["reason"]) == (True, None)
    assert traced_steps(trace(session.run_dir / session.traces[0])) == [2, 3, 4]
    assert leftovers(session.run_dir) == []


def test_what_has_stopped_records_nothing_more_and_ends_once(tmp_path, capfd) -> None:
    with three(tmp_path / "run", device="cpu") as session:
        for _ in range(6):
            session.step()
        session.stop()
        with pytest.raises(CaptureError, match=r"has ended.*call capture"):
            session.step()
    assert len(list((tmp_path / "run").glob("*.pt.trace.json*"))) == 1
    assert capfd.readouterr().err.count("commtrace: done: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["SIGINT"], ["SIGTERM"]))
def test_a_rank_that_is_blocked_on_leaving_is_freed_and_writes(tmp_path, name) -> None:
    done = python(SCRIPTS / "leaving_blocked.py", tmp_path / "run", name)
    assert (done.returncode, done.stdout) == (-signal.SIGINT if name == "SIGINT" else 143, "aborted\n"), done.stderr
    meta = metas(tmp_path / "run")[0]
    assert meta["reason"] == f"{name} after 3 of 7 scheduled steps"
    assert 2 in traced_steps(trace(tmp_path / "run" / meta["traces"][0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "end"),
    with_slow([("SIGTERM", "the summary")], [("SIGINT", "commtrace: the run is not analysed: interrupted")]),
)
def test_a_rank_that_stays_blocked_says_what_is_lost_and_what_the_rest_shows(tmp_path, name, end) -> None:
    run = tmp_path / "run"
    done = python(SCRIPTS / "blocked_in_second_cycle.py", run, name)
    why = f"{name} while blocked, in step 2; the trace of that cycle is lost"
    assert done.stderr.splitlines() == [f"commtrace: rank 0: 1 trace in {run}, but incomplete: {why}", end]
    assert done.returncode == 128 + signal.Signals[name]
    assert metas(run)[0]["reason"] == why


class LaggingMark(HostMark):
    """A stand-in for events of CUDA: the device is as many marks behind the host as `behind` says."""

    behind = 4
    made: ClassVar[list["LaggingMark"]] = []

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.made.append(self)

    def reached(self) -> bool:
        return self in self.made[: len(self.made) - LaggingMark.behind]


@pytest.mark.parametrize("arrives", [True, False])
def test_steps_that_the_device_has_not_finished_are_waited_for(tmp_path, monkeypatch, arrives) -> None:
    monkeypatch.setattr(LaggingMark, "made", [])
    monkeypatch.setattr(step_clock, "mark", LaggingMark)
    if arrives:
        monkeypatch.setattr(LaggingMark, "behind", 4)  # put back afterwards
        monkeypatch.setattr(step_clock.time, "sleep", lambda seconds: setattr(LaggingMark, "behind", 0))
    else:
        monkeypatch.setattr(step_clock.StepClock.await_device, "__defaults__", (0.01,))
    with three(tmp_path / "run", device="cpu") as session:
        run(session, 9)
    meta = metas(tmp_path / "run")[0]
    assert len(meta["steps"]) == len(session.step_times()) == (9 if arrives else 7)
    missing = "the device did not reach the end of the last 2 steps"
    assert (meta["complete"], meta["reason"]) == ((True, None) if arrives else (False, missing))


def test_a_cuda_error_that_stays_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    """A stand-in for a device assert: from then on every call that asks the device fails, also those of torch."""
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]

    def failed(*args: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")

    with pytest.raises(ValueError, match="the loss is wrong"), three(tmp_path / "run", device="cpu") as session:  # noqa: PT012
        run(session, 3)
        monkeypatch.setattr(torch.autograd.profiler.profile, "__exit__", failed)
        monkeypatch.setattr(HostMark, "reached", failed)
        monkeypatch.setattr(sessions.parallel, "process_groups", failed)
        raise ValueError("the loss is wrong")
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["reason"]) == (
        False,
        "ValueError: the loss is wrong (after 3 of 5 scheduled steps)",
    )
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before
    assert not torch_private.profiler_is_on()


def test_a_cuda_error_that_shows_as_a_cycle_ends_is_the_programs(tmp_path, monkeypatch) -> None:
    """A stand-in for torch, which waits for the device before it ends the profiler."""

    def failed(*args: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.autograd.profiler.profile, "__exit__", failed)
    with pytest.raises(RuntimeError, match="device-side assert"), three(tmp_path / "run", device="cpu") as session:
        run(session, 5)
    assert metas(tmp_path / "run")[0]["reason"].startswith("RuntimeError: CUDA error: device-side assert triggered")
    assert not torch_private.profiler_is_on()


def test_a_full_disk_is_said_and_marked(tmp_path, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rundir.shutil, "copyfileobj", full)
    with pytest.raises(RunDirError, match="No space left"), three(tmp_path / "run", device="cpu") as session:
        run(session, 5)
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["traces"]) == (False, [])
    assert "No space left" in meta["reason"]
    assert leftovers(session.run_dir) == []


def test_the_session_does_not_keep_the_model(tmp_path) -> None:
    model = torch.nn.Linear(1, 1)
    with three(tmp_path / "run", device="cpu", model=model) as session:
        alive = weakref.ref(model)
        del model
        assert alive() is None
        run(session, 5)
    assert metas(tmp_path / "run")[0]["model"]["parameters"] == 2


def test_sys_exit_0_after_the_schedule_is_complete(tmp_path) -> None:
    with pytest.raises(SystemExit), three(tmp_path / "run", device="cpu") as session:  # noqa: PT012
        run(session, 5)
        raise SystemExit(0)
    assert metas(tmp_path / "run")[0]["complete"] is True


def test_a_run_directory_is_never_used_twice(tmp_path, capfd) -> None:
    with three(tmp_path / "run", device="cpu") as session:
        run(session, 5)
    before = {path.name: path.read_bytes() for path in session.run_dir.iterdir()}
    (tmp_path / "run-2").mkdir()  # as another process has just made it
    with three(tmp_path / "run", device="cpu") as again:
        run(again, 5)
    assert again.run_dir == tmp_path / "run-3"
    assert metas(again.run_dir)[0]["complete"]
    assert f"commtrace: {tmp_path / 'run'} has files in it; traces go to {again.run_dir}" in capfd.readouterr().err
    assert {path.name: path.read_bytes() for path in session.run_dir.iterdir()} == before


def test_as_an_object_with_a_start_and_a_stop(tmp_path) -> None:
    session = three(tmp_path / "run", device="cpu")
    with pytest.raises(CaptureError, match="was not started"):
        session.stop()
    assert session.start() is session
    run(session, 5)
    session.stop()
    assert metas(tmp_path / "run")[0]["complete"]
    assert traced_steps(trace(tmp_path / "run" / session.traces[0])) == [2, 3, 4]
    with pytest.raises(CaptureError, match="each is one capture"):
        session.start()
    with pytest.raises(CaptureError, match="or has ended"):
        session.stop()


@pytest.mark.parametrize(
    ("steps", "options", "traced", "why"),
    [
        (16, {}, [10, 11, 12, 13, 14], None),
        (7, {}, [2, 3, 4, 5, 6, 7], "the loop ended before step 10, from which 5 steps were to be traced"),
        (11, {}, [2, 3, 4, 5, 6, 7, 8], "the loop ended soon after step 10, from which 5 steps were to be traced"),
        (7, {"from_step": 3, "active": 2}, [3, 4], None),
    ],
)
def test_which_steps_are_traced_is_as_for_run(tmp_path, steps, options, traced, why) -> None:
    """Of a loop that is too short, also what comes behind its last step."""
    with capture(tmp_path / "run", device="cpu", **options) as session:
        run(session, steps)
    found = metas(tmp_path / "run")[0]
    assert found["complete"] is (why is None)
    assert (found["reason"] or "").startswith(why or "")
    assert traced_steps(trace(tmp_path / "run" / session.traces[0])) == traced


def test_whole_periods_of_a_loop_are_traced(tmp_path, monkeypatch) -> None:
    model = torch.nn.Linear(2, 2)
    with capture(tmp_path / "run", device="cpu") as session:
        for step in range(30):
            work()
            if step % 3 == 2:
                model.eval()
                model.train()
            session.step()
    assert traced_steps(trace(tmp_path / "run" / session.traces[0])) == list(range(10, 18))


def test_run_and_capture_declare_their_steps_once(tmp_path) -> None:
    assert capture(tmp_path / "run", device="cpu").schedule == _StepOptions().schedule()


def test_a_schedule_that_cannot_be_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(UsageError, match="active must be at least 1"):
        capture(tmp_path / "run", active=0)
    assert not (tmp_path / "run").exists()


def test_inside_another_profiler_is_refused(tmp_path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer:
        work()
        with pytest.raises(CaptureError, match="another profiler runs"), three(tmp_path / "run", device="cpu"):
            pass
    assert len(outer.events()) > 0, "the other profiler loses nothing"
    assert not (tmp_path / "run").exists()


def test_a_capture_before_another_has_ended_is_refused(tmp_path) -> None:
    """Also where no profiler runs yet: torch would begin two, and end the process if they are in two threads."""
    with three(tmp_path / "a", device="cpu") as session:
        with pytest.raises(CaptureError, match="has not ended"), three(tmp_path / "b", device="cpu"):
            pass
        run(session, 6)
    assert metas(tmp_path / "a")[0]["complete"]
    assert not (tmp_path / "b").exists()
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunDirError), three(tmp_path / "taken", device="cpu"):
        pass
    with three(tmp_path / "b", device="cpu") as session:
        run(session, 6)
    assert metas(tmp_path / "b")[0]["complete"]


def test_another_profiler_at_the_start_of_a_cycle_is_refused(tmp_path) -> None:
    other = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with pytest.raises(CaptureError), three(tmp_path / "run", device="cpu") as session:  # noqa: PT012
        other.start()
        run(session, 1)
    other.stop()
    assert "another profiler runs" in metas(tmp_path / "run")[0]["reason"]


def test_another_profiler_inside_the_traced_steps_is_noted(tmp_path) -> None:
    with three(tmp_path / "run", device="cpu") as session:
        run(session, 2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            work()
        run(session, 4)
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["traces"]) == (False, [])
    assert "another profiler was started" in meta["reason"]


def test_captures_follow_one_another(tmp_path) -> None:
    for name in ("a", "b"):
        with three(tmp_path / name, device="cpu", repeat=2) as session:
            run(session, 10)
        assert [traced_steps(trace(session.run_dir / file)) for file in session.traces] == [[2, 3, 4], [7, 8, 9]]


def test_outside_the_main_thread(tmp_path) -> None:
    def body() -> None:
        with three(tmp_path / "run", device="cpu") as session:
            run(session, 5)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert metas(tmp_path / "run")[0]["complete"] is True


@pytest.mark.slow
def test_distributed_loop_that_destroys_its_group_inside_the_block(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "own_loop.py", tmp_path / "run", "finish")
    assert done.returncode == 0, done.stderr
    found = metas(tmp_path / "run")
    assert sorted(found) == [0, 1]
    for rank, meta in found.items():
        assert meta["complete"] is True, meta["reason"]
        assert [group["ranks"] for group in meta["process_groups"]] == [[0, 1]]
        content = trace(tmp_path / "run" / meta["traces"][0])
        assert content["distributedInfo"]["rank"] == rank
        assert meta["ddp"]["rebuilt_bucket_sizes"] == [288]
    run_file = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run_file["world_size"], run_file["backend"], run_file["config"]) == (2, "gloo", {"ending": "finish"})


@pytest.mark.slow
def test_exception_in_one_rank(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "own_loop.py", tmp_path / "run", "raise")
    assert done.returncode != 0
    assert "ValueError: bad luck" in done.stderr
    found = metas(tmp_path / "run")
    assert [found[rank]["complete"] for rank in (0, 1)] == [False, False]
    assert found[1]["reason"] == "ValueError: bad luck (after 3 of 5 scheduled steps)"
    assert found[0]["reason"].startswith(("another rank ended first", "SIGTERM"))
    for rank in (0, 1):
        assert 2 in traced_steps(trace(tmp_path / "run" / found[rank]["traces"][0]))
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_killed_rank_is_marked_and_the_other_writes(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "own_loop.py", tmp_path / "run", "kill")
    assert done.returncode != 0
    found = metas(tmp_path / "run")
    assert (found[1]["complete"], found[1]["traces"]) == (False, [])
    assert "killed" in found[1]["reason"]
    assert found[0]["complete"] is False
    assert 2 in traced_steps(trace(tmp_path / "run" / found[0]["traces"][0]))


@pytest.mark.slow
def test_recordings_in_place_of_traces(tmp_path) -> None:
    with capture(tmp_path / "run", device="cpu", wait=0, warmup=1, active=1, repeat=2, keep="recording") as session:
        run(session, 4)
    meta = metas(tmp_path / "run")[0]
    recordings = sorted(path.name for path in session.run_dir.glob("*_0.*.ctrace"))
    assert [name.partition("_0.")[2] for name in recordings] == [f"000{cycle}.pt.trace.ctrace" for cycle in (0, 1)]
    assert list(session.run_dir.glob("*.gz")) == []
    assert meta["traces"] == session.traces == recordings
    assert (meta["complete"], meta["keep"], meta["packing_reason"]) == (True, "recording", None)


@pytest.mark.slow
def test_what_was_packed_meanwhile_is_settled_with_the_next_trace(tmp_path) -> None:
    with capture(tmp_path / "run", device="cpu", wait=0, warmup=1, active=1, repeat=2, keep="recording") as session:
        run(session, 2)
        first = session.run_dir / session.traces[0]
        assert metas(session.run_dir)[0]["traces"] == [first.name]
        until_s = time.monotonic() + 60
        while not list(session.run_dir.glob("*.ctrace")) and time.monotonic() < until_s:
            time.sleep(0.01)
        time.sleep(0.5)  # the process that packs has to end
        assert first.is_file(), "the side file still names it"
        run(session, 2)
        assert not first.exists()
        assert (session.run_dir / metas(session.run_dir)[0]["traces"][0]).is_file()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"keep": "all"}, "keep 'all': expected"),
        ({"analyse_max_gb": 0}, "--analyse-max-gb 0: expected a number above 0"),
        ({"analyse_max_seconds": float("nan")}, "--analyse-max-seconds nan"),
        ({"history": "captures.jsonl"}, "--history captures.jsonl: needs --analyse"),
    ],
)
def test_what_cannot_be_kept(options, found, tmp_path) -> None:
    with pytest.raises(UsageError, match=found):
        three(tmp_path / "run", device="cpu", **options)


def ends_late(arguments, is_over=lambda: False) -> Printed:
    """Packing that takes for ever."""
    while not is_over():
        time.sleep(0.01)
    return Printed(why="too late")


def test_an_interrupt_waits_for_no_packing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "run_aside", ends_late)
    with pytest.raises(KeyboardInterrupt), three(tmp_path / "run", device="cpu", keep="recording", analyse=True) as s:  # noqa: PT012
        run(s, 6)
        signal.raise_signal(signal.SIGINT)
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], len(meta["traces"])) == (True, 1)
    assert (s.run_dir / meta["traces"][0]).is_file()
    assert meta["packing_reason"].endswith(": too late")
    assert not (s.run_dir / "summary.txt").exists()


@pytest.mark.slow
def test_an_interrupt_while_packing_is_waited_for_ends_that(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "run_aside", ends_late)
    main = threading.main_thread().ident
    threading.Timer(1.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), three(tmp_path / "run", device="cpu", keep="recording") as session:
        run(session, 5)
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["traces"]) == (True, session.traces)
    assert (session.run_dir / session.traces[0]).is_file()


@pytest.mark.slow
def test_what_goes_wrong_after_the_training_is_not_its_fault(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    monkeypatch.setattr(conclusion, "run_aside", lambda *given: 1 / 0)
    with three(tmp_path / "run", device="cpu", analyse=True) as session:
        run(session, 5)
    assert "commtrace: error: ZeroDivisionError" in capfd.readouterr().err
    assert metas(tmp_path / "run")[0]["traces"] == session.traces
