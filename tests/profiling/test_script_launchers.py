"""`commtrace run` under launchers other than torchrun, with stand-ins for those, and with real ones."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import warm_python
from capturing import (
    ROOT,
    SCRIPTS,
    begun,
    elsewhere,
    environment,
    free_port,
    fresh_python,
    metas,
    python,
    torchrun,
    trace,
    traced_steps,
)
from samples import with_slow

from commtrace.profiling.base.patches import Patches
from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.script.config import RunConfig, Target
from commtrace.profiling.script.watch.reruns import RerunWatch

USERS = SCRIPTS / "users"
SOON = ("--wait", "2", "--active", "3")
RUN = ("-m", "commtrace", "run", *SOON)


def assert_both_ranks(run_dir: Path) -> None:
    """Each has a complete trace of its own, and rank 0 knows that none is missing."""
    found = metas(run_dir)
    assert sorted(found) == [0, 1]
    for rank, meta in found.items():
        assert (meta["complete"], meta["world_size"]) == (True, 2)
        content = trace(run_dir / meta["traces"][0])
        assert (content["distributedInfo"]["rank"], traced_steps(content)) == (rank, [3, 4, 5])
    assert found[0]["absent_ranks"] == []
    assert len(list(run_dir.glob("*.trace.json.gz"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", with_slow(["srun", "deepspeed"], ["mpirun", "mpiexec"]))
def test_ranks_of_a_launcher(tmp_path, launcher) -> None:
    run = [*RUN, "--out", tmp_path, "--run-name", "run", USERS / "launched.py", "x"]
    done = python(SCRIPTS / "launching.py", launcher, *run)
    assert done.returncode == 0, done.stderr
    got = [[f"--local_rank={rank}", "x"] if launcher == "deepspeed" else ["x"] for rank in (0, 1)]
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 ends with {got[rank]}" for rank in (0, 1)]
    assert_both_ranks(tmp_path / "run")
    assert {rank: meta["local_rank"] for rank, meta in metas(tmp_path / "run").items()} == {0: 0, 1: 1}
    assert f"done: 2 ranks traced in {tmp_path}/run" in done.stderr


@pytest.mark.slow
def test_srun_starts_the_ranks_of_a_measurement(tmp_path) -> None:
    """A stand-in that sets Slurm's variables: one run of two ranks, and not two runs."""
    options = ["all_reduce", "--max-bytes", "64", "--min-bytes", "64", "--iters", 1, "--warmup", 1, "--device", "cpu"]
    run = ["-m", "commtrace", "comms", *options, "--out", tmp_path, "--run-name", "run"]
    done = python(SCRIPTS / "launching.py", "srun", *run)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "comms.json").read_text())["world_size"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_a_job_that_torchrun_starts_again_has_a_run_for_each_time(tmp_path, monkeypatch) -> None:
    """With a store for each time: in the one that torch 2.13 keeps, gloo may find addresses of the time before."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    script = tmp_path / "script.py"
    script.write_text((USERS / "ddp.py").read_text().replace("step == 5 and rank == 1", "_fails(step)").replace(
        "def main", "def _fails(step):\n    return step == 9 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n\n\n"
        "def main"))  # fmt: skip
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = python(*start, *RUN, "--out", tmp_path / "out", "--run-name", "run", script, "raise")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run", "run-restart1"]
    assert_both_ranks(tmp_path / "out" / "run-restart1")


@pytest.mark.slow
def test_processes_of_a_launcher_that_never_meet_have_runs_of_their_own(tmp_path) -> None:
    run = [*RUN, "--out", tmp_path, "--run-name", "run", USERS / "loaders.py"]
    done = python(SCRIPTS / "launching.py", "mpirun", *run)
    assert done.returncode == 0, done.stderr
    for place in (0, 1):
        meta = metas(tmp_path / f"run-{place}")[0]
        assert (meta["complete"], meta["world_size"]) == (True, 1)


def test_what_is_wrong_is_said_once_on_a_node(tmp_path) -> None:
    done = python(SCRIPTS / "launching.py", "srun", *RUN, "--out", tmp_path, tmp_path / "none.py")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/none.py: no such script; for a module, put -m before its name\n"


@pytest.mark.slow
def test_the_script_of_a_batch_job_is_traced_whole_without_srun(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    done = python("-m", "commtrace", "run", "--whole-run", "--out", tmp_path, "--run-name", "run", USERS / "loaders.py")
    assert done.returncode == 0, done.stderr
    assert (metas(tmp_path / "run")[0]["complete"], metas(tmp_path / "run")[0]["world_size"]) == (True, 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", with_slow(["flag"], ["script", "module"]))
def test_ranks_by_running_the_script_again(tmp_path, how) -> None:
    target = ["-m", "running_itself"] if how == "module" else [USERS / "running_itself.py"]
    flag = ["-u"] if how == "flag" else []
    (tmp_path / "profiling.py").write_text("raise ImportError('of somebody else')")
    folder = USERS if how == "module" else tmp_path
    done = elsewhere(folder, "run", *SOON, "--out", tmp_path, "--run-name", "run", *target, free_port(), *flag)
    assert done.returncode == 0, done.stderr
    ends = ["rank 0 ends after a helper", "rank 1 ends after a helper", "the other one ended with 0"]
    assert sorted(done.stdout.splitlines()) == ends
    assert_both_ranks(tmp_path / "run")
    assert done.stderr.count("commtrace:") == 2  # where traces go, and what became of it


@pytest.mark.slow
def test_a_whole_run_says_that_ranks_which_the_script_starts_are_missing(tmp_path) -> None:
    run = ("-m", "commtrace", "run", "--whole-run", "--out", tmp_path, "--run-name", "run")
    done = python(*run, USERS / "running_itself.py", free_port())
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("starts other ranks itself, which --whole-run does not trace: start them with torchrun") == 1
    )
    assert sorted(metas(tmp_path / "run")) == [0]


@pytest.mark.slow
def test_a_rank_that_a_launcher_starts_past_us_is_named(tmp_path) -> None:
    """Rank 0 alone is run by us: the other one runs the script itself."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "SLURM_NTASKS": "2"}
    env = environment() | meeting | {"SLURM_STEP_NUM_TASKS": "2"}
    run = [*RUN, "--out", tmp_path, "--run-name", "run"]
    others = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    with subprocess.Popen([sys.executable, USERS / "launched.py"], env=env | others, stdout=subprocess.DEVNULL):
        own = env | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        done = warm_python.run([*map(str, run), str(USERS / "launched.py")], cwd=ROOT, env=own)
    assert "only 1 rank of 2 traced" in done.stderr
    assert "rank 1 took no part" in done.stderr


# --- which commands count as the script run again ---------------------------------------------------------------------

OTHER = {"LOCAL_RANK": "1"}


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    """What `__main__` is, as if it had been started by its path."""
    found = tmp_path / "train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(found), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def started(tmp_path, monkeypatch) -> Callable[..., Any]:
    """What `Popen(args, **options)` would start while a script is watched."""
    seen: list[Any] = []
    real = subprocess.Popen.__init__

    @functools.wraps(real)
    def instead(self, args, *rest, **options) -> None:
        self._child_created = False
        seen.append(args)

    monkeypatch.setattr(subprocess.Popen, "__init__", instead)

    def start(args: Any, **options: Any) -> Any:
        patches = Patches()
        RerunWatch(RunConfig(Target("train.py", ("0",)), tmp_path, Schedule(1, 1, 3)), ["run"], patches)
        try:
            subprocess.Popen(args, **options)
        finally:
            patches.undo()
        return seen.pop()

    return start


def test_another_rank_gets_the_arguments_that_it_was_to_get(script, started) -> None:
    python, *flags, code, config, command = started([sys.executable, "-u", os.fsencode(script), "--a", "1"], env=OTHER)
    assert (python, flags) == (sys.executable, ["-u", "-c"])
    assert "run_again" in code
    config, command = json.loads(config), json.loads(command)
    assert config["target"] == {"name": str(script), "args": ["--a", "1"], "is_module": False}
    assert command == ["run"]


def test_a_script_is_found_from_the_folder_of_the_new_process(script, started) -> None:
    (script.parent / "elsewhere").mkdir()
    command = [sys.executable, "../train.py"]
    assert started(command, env=OTHER, cwd=script.parent / "elsewhere") != command
    assert started(command, env=OTHER) == command


def test_a_module_is_run_again_by_its_name(script, started, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("package.train", None))
    config = json.loads(started([sys.executable, "-m", "package.train", "--a"], env=OTHER)[-2])
    assert config["target"] == {"name": "package.train", "args": ["--a"], "is_module": True}
    assert started([sys.executable, "-m", "package.other"], env=OTHER) == [sys.executable, "-m", "package.other"]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([sys.executable, "train.py"], {}),
        ([sys.executable, "train.py"], {"env": {"LOCAL_RANK": "0"}}),  # this very place
        ([sys.executable, "train.py"], {"env": {"OWN_RANK": "1"}}),
        ([sys.executable, "train.py"], {"env": OTHER, "shell": True}),
        ([sys.executable, "train.py"], {"env": OTHER, "executable": "/bin/true"}),
        ([sys.executable, "other.py"], {"env": OTHER}),
        ([sys.executable, "-c", "pass"], {"env": OTHER}),
        ([sys.executable, "-W", "ignore", "train.py"], {"env": OTHER}),
        ([sys.executable], {"env": OTHER}),
        (["torchrun", "train.py"], {"env": OTHER}),
        ([], {"env": OTHER}),
        ("train.py", {"env": OTHER}),
        ([sys.executable, 1], {"env": OTHER}),
    ],
)
def test_all_other_processes_are_started_as_they_are(script, started, monkeypatch, args, options) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert started(args, **options) is args


def test_a_wrong_call_gets_the_message_of_popen(script, started) -> None:
    with pytest.raises(TypeError, match="args"):
        started()  # type: ignore[call-arg]


# --- two nodes, which are this machine twice --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("run", *SOON, "--run-name", "r", USERS / "ddp.py", "finish"),
        ("train", "--run-name", "r", "--batch-size", "2", "--image-size", "32", "--active", "1", "--steps", "5"),
    ],
)
def test_two_nodes(tmp_path, words) -> None:
    """Each names a folder of its own; that of rank 0 counts, and the other node says so."""
    first, *rest = words
    options = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    torchrun = ["-m", "torch.distributed.run", *options]
    with ExitStack() as stack:
        nodes = []
        for node in (0, 1):
            own = ["-m", "commtrace", first, "--out", tmp_path / f"node{node}", *rest]
            nodes.append(stack.enter_context(begun(*torchrun, f"--node-rank={node}", *own)))
        with ThreadPoolExecutor() as pool:
            said = [err for _, err in pool.map(lambda node: node.communicate(timeout=300), nodes)]
    assert [node.returncode for node in nodes] == [0, 0], said
    found = metas(tmp_path / "node0" / "r")
    assert {rank: (meta["local_rank"], meta["complete"]) for rank, meta in found.items()} == {
        rank: (rank % 2, True) for rank in range(4)
    }
    assert found[0]["absent_ranks"] == []
    assert not (tmp_path / "node1").exists()
    assert f"rank 2: traces go to {tmp_path}/node0/r, as on rank 0, and not to {tmp_path}/node1" in said[1]
    assert "as on rank 0" not in said[0]
    assert "do not share" not in said[0]


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_lightning_on_two_devices(tmp_path, strategy) -> None:
    done = fresh_python(*RUN, "--out", tmp_path, "--run-name", "run", USERS / "lightning_ddp.py", strategy)
    assert done.returncode == 0, done.stderr
    assert_both_ranks(tmp_path / "run")
    assert f"commtrace: done: 2 ranks traced in {tmp_path}/run" in done.stderr


@pytest.mark.slow
def test_transformers_on_two_ranks(tmp_path) -> None:
    done = torchrun(
        2, *RUN, "--out", tmp_path, "--run-name", "run", USERS / "transformers_train.py", tmp_path / "theirs"
    )
    assert done.returncode == 0, done.stderr
    assert_both_ranks(tmp_path / "run")
    assert f"commtrace: done: 2 ranks traced in {tmp_path}/run" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["debug", "notebook", "launch"])
def test_accelerate(tmp_path, launcher) -> None:
    run = [*RUN, "--out", tmp_path, "--run-name", "run", USERS / "accelerated.py"]
    if launcher == "launch":
        options = [
            "--multi_gpu",
            "--num_processes=2",
            "--num_machines=1",
            "--mixed_precision=no",
            "--dynamo_backend=no",
        ]
        run = ["-m", "accelerate.commands.launch", *options, f"--main_process_port={free_port()}", *run]
    else:
        run += [launcher, free_port()]
    done = fresh_python(*run)
    assert done.returncode == 0, done.stderr
    assert_both_ranks(tmp_path / "run")
    assert f"commtrace: done: 2 ranks traced in {tmp_path}/run" in done.stderr
    assert "nothing was captured" not in done.stderr
