"""The launcher: how the ends of ranks are told, that nobody outlives it, and who can reach it and its ranks."""

import json
import signal
import subprocess
import sys

import pytest
from capturing import ROOT, SCRIPTS, environment
from process_tree import mark, survivors

from commtrace.profiling.base.tied_process import tied_program
from commtrace.profiling.errors import RankFailedError
from commtrace.profiling.ranks import launch


@pytest.fixture(autouse=True)
def _environment(monkeypatch) -> None:
    for name, value in environment(SCRIPTS).items():
        monkeypatch.setenv(name, value)


def test_good_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert launch.launch(["-m", "rank_ends", "0"], workers=2) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_exit_code_of_the_failed_rank() -> None:
    with pytest.raises(RankFailedError, match="rank 1 failed with exit code 3") as failed:
        launch.launch(["-m", "rank_ends", "3"], workers=2)
    assert failed.value.exit_code == 3


def test_killed_ranks_are_named_by_their_signal() -> None:
    assert launch._failure_line(4, -9).startswith("rank 4 was killed by SIGKILL; out of memory?")
    assert launch._failure_line(4, -11).startswith("rank 4 was killed by SIGSEGV;")
    assert launch._shell_code(-9) == 137


def test_ranks_get_what_torchrun_gives(tmp_path) -> None:
    code = (
        "import json, os, sys; from pathlib import Path; "
        f"Path({str(tmp_path)!r}, os.environ['RANK']).write_text(json.dumps(dict(os.environ)))"
    )
    assert launch.launch(["-c", code], workers=2) == 0
    for rank in ("0", "1"):
        found = json.loads((tmp_path / rank).read_text())
        assert [found[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK")] == [rank, rank, rank, "0"]
        assert [found[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")] == ["2", "2", "2"]
        assert (found["MASTER_ADDR"], found["TORCHELASTIC_RESTART_COUNT"]) == ("127.0.0.1", "0")
        assert found["TORCHELASTIC_ERROR_FILE"].endswith(f"{rank}/error.json")


def test_ranks_share_a_secret_that_each_run_draws_anew(tmp_path, monkeypatch) -> None:
    code = (
        "import os, sys; from pathlib import Path; "
        "Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['COMMTRACE_SECRET'])"
    )
    drawn = []
    for given in (None, None, "mine"):
        if given:
            monkeypatch.setenv("COMMTRACE_SECRET", given)
        assert launch.launch(["-c", code, str(tmp_path)], workers=2) == 0
        of_ranks = {(tmp_path / rank).read_text() for rank in ("0", "1")}
        assert len(of_ranks) == 1
        drawn += of_ranks
    assert drawn[2] == "mine"
    assert len(set(drawn)) == 3
    assert all(len(secret) == 64 for secret in drawn[:2])


def test_a_signal_is_passed_on_and_is_the_exit_code() -> None:
    """As soon as both ranks are there, one sends it to the launcher; the other would sleep on."""
    code = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getppid(), signal.SIGHUP); time.sleep(60)"
    assert launch.launch(["-c", code], workers=2) == 128 + signal.SIGHUP


def test_a_rank_that_ignores_signals_is_killed_at_the_second_ctrl_c() -> None:
    code = (
        "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGINT); "
        "time.sleep(0.2); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    )
    assert launch.launch(["-c", code], workers=1) == 128 + signal.SIGINT


@pytest.mark.slow_cases("0.6")
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.6])
def test_a_rank_ends_with_its_launcher_from_the_first_moment(after_s) -> None:
    """The rank is a script that imports torch, which takes it longer than that."""
    variable = mark()
    *program, _ = tied_program([])
    rank = ["run", str(SCRIPTS / "users" / "endless.py")]
    code = (
        f"import os, subprocess, sys, time; subprocess.Popen([sys.executable, *{program}, str(os.getpid()), *{rank}], "
        "start_new_session=True); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment() | variable, stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        assert survivors(variable, after_s)
        launcher.kill()
    assert survivors(variable, 10) == []
