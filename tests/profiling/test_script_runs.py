"""`commtrace run` on whole scripts: several processes, several ranks, and ends that are not good."""

import json
import signal
import time

import pytest
from capturing import (
    ROOT,
    SCRIPTS,
    begun,
    elsewhere,
    free_port,
    leftovers,
    metas,
    python,
    torchrun,
    trace,
    traced_steps,
)
from process_tree import family, listening
from samples import with_slow

from commtrace import analyse

USERS = SCRIPTS / "users"
SOON = ("--wait", "2", "--active", "3")
RUN = ("-m", "commtrace", "run", *SOON)


@pytest.mark.slow
def test_ranks_of_torchrun(tmp_path) -> None:
    done = torchrun(2, *RUN, "--out", tmp_path, "--run-name", "run", USERS / "ddp.py", "finish")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 ends", "rank 1 ends"]
    found = metas(tmp_path / "run")
    assert sorted(found) == [0, 1]
    for rank, meta in found.items():
        assert (meta["complete"], meta["reason"], meta["world_size"]) == (True, None, 2)
        assert [step["phase"] for step in meta["steps"]][2:6] == ["warmup", "active", "active", "active"]
        assert [group["ranks"] for group in meta["process_groups"]] == [[0, 1]]
        assert meta["model"] == {"name": "Linear", "parameters": 72, "bytes": 288, "buffer_bytes": 0}
        assert meta["ddp"]["rebuilt_bucket_sizes"] == [288]
        assert meta["clock_probe_reason"] is None
        content = trace(tmp_path / "run" / meta["traces"][0])
        assert content["distributedInfo"]["rank"] == rank
        assert traced_steps(content) == [3, 4, 5]
        assert sum(event.get("name") == "gloo:all_reduce" for event in content["traceEvents"]) == 3
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["world_size"], run["backend"]) == (2, "gloo")
    assert run["command"][-2:] == [str(USERS / "ddp.py"), "finish"]
    assert run["config"]["target"] == {"name": str(USERS / "ddp.py"), "args": ["finish"], "is_module": False}
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_ranks_with_optimizers_in_hooks_of_the_backward_pass(tmp_path) -> None:
    done = torchrun(2, *RUN, "--out", tmp_path, "--run-name", "run", USERS / "hooked.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 ends", "rank 1 ends"]
    said = [line for line in done.stderr.splitlines() if line]
    assert [line.partition(":")[0] for line in said] == ["commtrace", "commtrace"], done.stderr
    assert said[1].startswith("commtrace: done: 2 ranks traced")
    for meta in metas(tmp_path / "run").values():
        assert (meta["complete"], meta["model"]["parameters"]) == (True, 144)
        content = trace(tmp_path / "run" / meta["traces"][0])
        assert traced_steps(content) == [3, 4, 5]
        assert sum(event.get("name") == "gloo:all_reduce" for event in content["traceEvents"]) == 3 * 4


@pytest.mark.slow
def test_every_rank_of_a_whole_run_counts_though_its_group_is_gone(tmp_path) -> None:
    command = ("-m", "commtrace", "run", "--whole-run")
    done = torchrun(2, *command, "--out", tmp_path, "--run-name", "run", USERS / "ddp.py", "finish")
    assert done.returncode == 0, done.stderr
    assert "commtrace: done: 2 ranks traced in" in done.stderr


@pytest.mark.quick_cases("stepping_module:train_three")
@pytest.mark.parametrize(
    "ending", ["train_step", "stepping:Loop.Inner.step", "stepping_module:Trainer.step", "stepping_module:train_three"]
)
def test_a_step_ends_where_a_function_returns(tmp_path, ending) -> None:
    options = ["--out", tmp_path, "--run-name", "run", "--wait", 1, "--active", 2, "--step-on", ending]
    done = python(*RUN, *options, USERS / "stepping.py", folders=(USERS,))
    assert (done.returncode, done.stdout) == (0, "ends __main__ train_step\n"), done.stderr
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], len(meta["steps"]), meta["model"]["parameters"]) == (True, 6, 20)
    names = [event.get("name") for event in trace(tmp_path / "run" / meta["traces"][0])["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == 2 * 3


@pytest.mark.slow
def test_a_function_that_is_not_there_is_said(tmp_path) -> None:
    done = python(*RUN, "--out", tmp_path, "--step-on", "train", USERS / "stepping.py", folders=(USERS,))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --step-on train: {USERS / 'stepping.py'} defines no function of that name\n"
    done = python(*RUN, "--out", tmp_path, "--step-on", "stepping_module:no", USERS / "stepping.py", folders=(USERS,))
    assert (done.returncode, done.stdout) == (0, "ends __main__ train_step\n")
    assert done.stderr.splitlines() == [
        "commtrace: error: --step-on: stepping_module has no function no; the script goes on",
        "commtrace: nothing was captured: stepping_module:no did not return in this process (--step-on)",
    ]


def test_a_folder_that_takes_no_files_is_said_before_the_script_starts(tmp_path) -> None:
    """/proc takes no folder from anybody, root or not."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print('trains', file=sys.stderr); sys.exit(3)")
    done = python(*RUN, "--out", "/proc/traces", script)
    assert done.returncode == 3
    before, _, after = done.stderr.partition("trains\n")
    assert before.startswith("commtrace: error: /proc/traces: cannot be written: ")
    assert before.endswith("; the script goes on, and there will be no trace of it (--strict ends it here)\n")
    assert "cannot be written" not in after


@pytest.mark.slow
def test_strict_ends_where_nothing_can_be_written_before_the_script_starts(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('trains')")
    done = python(*RUN, "--strict", "--workers", 2, "--out", "/proc/traces", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: /proc/traces: cannot be written: ")
    done = python(*RUN, "--strict", "--out", tmp_path / "new" / "traces", script)
    assert (done.returncode, done.stdout) == (0, "trains\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused_before_the_script_starts(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "theirs.txt").write_text("mine")
    done = torchrun(2, *RUN, "--out", tmp_path, "--run-name", "run", USERS / "ddp.py", "finish")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{tmp_path}/run: expected a new or empty run directory, found files in it; choose" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["theirs.txt"]


@pytest.mark.slow
def test_one_of_two_ranks_fails(tmp_path) -> None:
    reached = set()
    options = ["--workers", "2", "--out", tmp_path, "--run-name", "run"]
    with begun(*RUN, *options, USERS / "ddp.py", "raise") as process:
        while process.poll() is None:
            reached |= listening(family(process.pid))
            time.sleep(0.1)
        err = process.stderr.read()
    assert reached == {"127.0.0.1"}  # by nobody from elsewhere
    assert process.returncode == 1, err
    assert "error: rank 1 failed with exit code 1" in err
    found = metas(tmp_path / "run")
    assert [found[rank]["complete"] for rank in (0, 1)] == [False, False]
    assert found[1]["reason"] == "ValueError: bad luck (after 4 of 6 scheduled steps)"
    assert found[0]["reason"].startswith(("another rank ended first", "SIGTERM"))
    for rank in (0, 1):
        assert 3 in traced_steps(trace(tmp_path / "run" / found[rank]["traces"][0]))
    traceback = err.partition("ValueError: bad luck")[0].rpartition("Traceback")[2]
    assert str(ROOT / "profiling") not in traceback


@pytest.mark.slow
def test_ranks_that_the_script_spawns(tmp_path) -> None:
    done = elsewhere(tmp_path, "run", *SOON, "--run-name", "run", USERS / "spawning.py", free_port())
    assert done.returncode == 1, done.stderr
    # In a child the script is imported before anything of ours is there.
    assert sorted(done.stdout.splitlines()) == ["rank 0 begins", "rank 1 begins"]
    found = metas(tmp_path / "traces" / "run")
    assert sorted(found) == [0, 1]
    for rank, meta in found.items():
        # One of them failed in the end, when everything had been traced.
        assert (meta["complete"], meta["reason"], meta["world_size"], meta["model"]["name"]) == (True, None, 2, "Net")
        content = trace(tmp_path / "traces" / "run" / meta["traces"][0])
        assert (content["distributedInfo"]["rank"], traced_steps(content)) == (rank, [3, 4, 5])
    assert "torch.multiprocessing.spawn.ProcessRaisedException" in done.stderr
    assert str(ROOT / "profiling") not in done.stderr
    assert "nothing was captured" not in done.stderr


@pytest.mark.slow
def test_a_rank_that_the_script_starts_on_its_own_is_missed(tmp_path) -> None:
    done = python(*RUN, "--out", tmp_path, "--run-name", "run", USERS / "own_launcher.py", free_port())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the other one ended with 0\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"commtrace: only 1 rank of 2 traced in {tmp_path}/run")
    assert "rank 1 took no part: start every rank through the same launcher" in last
    assert metas(tmp_path / "run")[0]["absent_ranks"] == [1]


@pytest.mark.slow
def test_workers_of_loaders_are_left_alone(tmp_path) -> None:
    """The script changes the directory first, and that is not where the run goes."""
    (tmp_path / "theirs").mkdir()
    done = elsewhere(tmp_path, "run", *SOON, "--run-name", "run", USERS / "loaders.py", "theirs")
    assert done.returncode == 0, done.stderr
    expected = [[float(index), 0.0] for index in range(8)]
    assert done.stdout.splitlines() == [f"fork {expected}", f"spawn {expected}"]
    assert metas(tmp_path / "traces" / "run")[0]["complete"] is True
    assert len(list((tmp_path / "traces" / "run").iterdir())) == 3
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.slow
def test_forked_children_and_names_are_the_scripts_own(tmp_path) -> None:
    """Children of the steps in which the profiler is off, on, and over; in a checkout our package has such a name."""
    done = python(*RUN, "--out", tmp_path, "--run-name", "run", USERS / "names" / "forking.py", "1", "4", "11")
    assert done.returncode == 0, done.stderr
    children = ["child 1 ends", "1", "child 4 ends", "4", "child 11 ends", "11"]
    assert done.stdout.splitlines() == [*children, "profiling of the script", "analysis of the script"]
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["commtrace", "commtrace"]
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], len(list((tmp_path / "run").iterdir()))) == (True, 3)
    assert traced_steps(trace(tmp_path / "run" / meta["traces"][0])) == [3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("signum", with_slow([signal.SIGINT], [signal.SIGTERM]))
def test_a_stopped_script_leaves_what_was_traced_and_ends_by_the_signal(tmp_path, signum) -> None:
    options = ["--active", "100000", "--out", tmp_path, "--run-name", "run"]
    with begun(*RUN, *options, USERS / "endless.py") as process:
        assert process.stdout.readline() == "going\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=120)
    assert process.returncode == -signum, err
    assert out == "cleaned up\n"
    assert ("KeyboardInterrupt" in err) == (signum == signal.SIGINT)
    assert str(ROOT / "profiling") not in err
    meta = metas(tmp_path / "run")[0]
    assert meta["reason"].startswith(signum.name)
    assert 4 in traced_steps(trace(tmp_path / "run" / meta["traces"][0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("lightning_fit", []),
        ("transformers_train", ["{}/theirs"]),
        ("hydra_conf", ["steps=16", "hydra.run.dir={}/theirs"]),
    ],
)
def test_trainings_of_others(tmp_path, script, words) -> None:
    theirs = [word.format(tmp_path) for word in words]
    done = python(*RUN, "--out", tmp_path, "--run-name", "run", USERS / f"{script}.py", *theirs)
    assert done.returncode == 0, done.stderr
    assert "steps 16" in done.stdout
    assert "commtrace: done: 1 rank traced in" in done.stderr
    meta = metas(tmp_path / "run")[0]
    assert (meta["complete"], meta["model"]["parameters"], len(meta["steps"])) == (True, 5, 15)
    assert traced_steps(trace(tmp_path / "run" / meta["traces"][0])) == [3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rollout", "sync", "evaluation"])
def test_a_loop_that_is_longer_than_a_step_is_traced_in_whole_periods(tmp_path, kind) -> None:
    # Only lengths tell rollouts from other steps: they tell each rank another story, and all must trace the same steps.
    traced = [*range(10, 15 if kind == "rollout" else 20)]
    done = torchrun(2, "-m", "commtrace", "run", "--out", tmp_path, "--run-name", "run", USERS / "periodic.py", kind)
    assert done.returncode == 0, done.stderr
    said = "what steps do repeats after 4 of them: steps 10 to 19 are traced, which are two periods and the ends"
    assert (said in done.stderr) == (kind != "rollout")
    for meta in metas(tmp_path / "run").values():
        assert traced_steps(trace(tmp_path / "run" / meta["traces"][0])) == traced
        assert meta["schedule"]["active"] == len(traced)
    found = analyse(tmp_path / "run", cache=False)
    period = found.typical_step.period
    assert period is not None
    assert (period.steps, len(period.long)) == (4, 1)
    [first, *_] = found.verdicts["headline"]
    assert first.startswith("Every 4th step ("), first
    if kind == "evaluation":
        assert "is an eval step" in first
    if kind == "rollout":
        assert found.remedies.set_index("remedy")["what"].get("no_straggler") == "rank 1 as fast as the others"
