"""NCCL's own log, kept with a run. What opens the file, as NCCL does, is a stand-in: gloo has no such log."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
import torch
from capturing import SCRIPTS, metas, python

from commtrace import analyse, capture
from commtrace.profiling.base.detail import Detail
from commtrace.profiling.base.schedule import Schedule
from commtrace.profiling.errors import RunDirError
from commtrace.profiling.ranks import nccl_log
from commtrace.profiling.train import loop
from commtrace.profiling.train.config import TrainConfig

USERS = SCRIPTS / "users"
FILE = "NCCL_DEBUG_FILE"


def opened(env=os.environ) -> TextIO:
    """A stand-in for NCCL's first use in this process; it writes a line, and stays open."""
    parts = [part.replace("%h", "node").replace("%p", str(os.getpid())) for part in env[FILE].split("%%")]
    file = Path("%".join(parts)).open("w", buffering=1)  # noqa: SIM115
    file.write("NCCL INFO Bootstrap\n")
    return file


@pytest.fixture
def redirected(tmp_path, monkeypatch) -> Path:
    """Where runs go, and NCCL logs as --nccl-debug asks for."""
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    monkeypatch.delenv(FILE, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    out = tmp_path / "100%h"
    nccl_log.redirect(out, "INFO")
    assert os.environ["NCCL_DEBUG"] == "INFO"
    yield out
    nccl_log.tidy()
    monkeypatch.delenv(FILE, raising=False)


def stepped(run_dir: Path) -> None:
    with capture(run_dir, wait=0, warmup=0, active=1, device="cpu") as session:
        session.step()


@pytest.mark.parametrize(
    "env",
    [{}, {"NCCL_DEBUG": "INFO", FILE: "mine.%p"}, {"NCCL_DEBUG": "WARN"}],
    ids=["no level", "a file of the user's", "warnings only"],
)
def test_it_stays_where_it_was(tmp_path, env) -> None:
    before = dict(env)
    nccl_log.redirect(tmp_path / "out", None, env)
    assert env == before
    assert list(tmp_path.iterdir()) == []
    nccl_log.tidy(env)
    assert not nccl_log.keep(tmp_path / "log", env)


def test_a_level_of_the_users_is_enough_and_it_is_said(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    env = {"NCCL_DEBUG": "info"}
    nccl_log.redirect(tmp_path / "out", None, env)
    said = "NCCL_DEBUG=INFO: what NCCL logs goes to a file of each rank in the run directory; warnings come here, too"
    assert capfd.readouterr().err == f"commtrace: {said}\n"
    assert env["NCCL_DEBUG"] == "info"
    assert Path(env[FILE]).is_absolute()
    nccl_log.tidy(env)
    assert list((tmp_path / "out").iterdir()) == []
    assert FILE not in env


def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunDirError, match="out: cannot be written"):
        nccl_log.redirect(tmp_path / "out", "INFO", {})


def test_it_is_kept_with_the_run_and_goes_on(redirected, capfd) -> None:
    with opened() as log:
        stepped(redirected / "run")
        log.write("later\n")
    (kept,) = (redirected / "run").glob("*.nccl.log")
    assert kept.read_text() == "NCCL INFO Bootstrap\nlater\n"
    assert kept.name == f"{metas(redirected / 'run')[0]['worker']}.nccl.log"
    assert f"commtrace: NCCL's log of each rank is {redirected}/run/*.nccl.log\n" in capfd.readouterr().err
    nccl_log.tidy()
    assert [path.name for path in redirected.iterdir()] == ["run"]
    assert analyse(redirected / "run").run.ranks, "no reader takes it for a trace"


def test_warnings_stay_on_the_console(redirected, capfd) -> None:
    warning = "node:1:7 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer"
    with opened() as log:
        log.write(f"{warning} 1\n")
        stepped(redirected / "run")
        log.write(f"{warning} 2\nNCCL INFO comm destroyed\n{warning} 3")
        log.write(" in two parts\n")
        nccl_log.tidy()
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "NCCL" in line and not line.startswith("commtrace")] == [
        f"{warning} 1", f"{warning} 2", f"{warning} 3 in two parts"
    ]  # fmt: skip
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("commtrace-nccl")]


def test_communication_that_begins_inside_the_block(redirected) -> None:
    with capture(redirected / "run", wait=0, warmup=0, active=1, device="cpu") as session:
        opened().close()
        session.step()
    assert len(list((redirected / "run").glob("*.nccl.log"))) == 1


def test_logs_of_other_processes_stay(redirected) -> None:
    folder = Path(os.environ[FILE].replace("%%", "%")).parent
    (folder / "node.1").write_text("of another one")
    stepped(redirected / "run")
    nccl_log.tidy()
    assert [path.name for path in folder.iterdir()] == ["node.1"]
    (folder / "node.1").unlink()


def test_train_leads_it_there_before_ranks_communicate(tmp_path, monkeypatch) -> None:
    """With stand-ins for the GPU and for the training."""
    monkeypatch.delenv(FILE, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")

    def trained(config: TrainConfig, *_: object) -> Path:
        opened().close()
        stepped(config.out / "run")
        return config.out / "run"

    monkeypatch.setattr(loop, "_train", trained)
    monkeypatch.setattr(loop.parallel, "rank_device", lambda *_: torch.device("cuda", 0))
    config = TrainConfig(Schedule(0, 0, 1), 1, parallel="single", out=tmp_path, detail=Detail(nccl_debug="INFO"))
    run_dir = loop.train_rank(config, [])
    assert len(list(run_dir.glob("*.nccl.log"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert FILE not in os.environ
    monkeypatch.setattr(loop.parallel, "rank_device", lambda *_: torch.device("cpu"))
    monkeypatch.setattr(loop, "_train", lambda *_: FILE in os.environ)
    assert not loop.train_rank(replace(config, detail=Detail()), [])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["step", "nothing"])
def test_run(tmp_path, how) -> None:
    """A script that is a stand-in for NCCL, too; one that captures nothing leaves its log in a hidden folder."""
    options = ("--nccl-debug", "info", "--out", tmp_path, "--run-name", "run")
    done = python("-m", "commtrace", "run", *options, USERS / "logs_as_nccl.py", how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "INFO\n"
    (log,) = tmp_path.glob("*/*.nccl.log" if how == "step" else ".nccl-log-*/node.*")
    assert log.read_text() == "NCCL INFO Bootstrap\nthe end\n"
    assert len(list(tmp_path.iterdir())) == 1
