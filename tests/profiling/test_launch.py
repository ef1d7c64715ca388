"""The launcher, with ranks that do not need torch: how their ends are told."""

import signal

import pytest
from capturing import SCRIPTS, environment

from profiling import launch
from profiling.errors import RankFailedError


@pytest.fixture(autouse=True)
def _environment(monkeypatch) -> None:
    for name, value in (environment(SCRIPTS) | {"GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)


def test_good_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert launch.launch("rank_ends", ["0"], workers=2) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_exit_code_of_the_failed_rank() -> None:
    with pytest.raises(RankFailedError, match="rank 1 failed with exit code 3") as failed:
        launch.launch("rank_ends", ["3"], workers=2)
    assert failed.value.exit_code == 3


def test_killed_ranks_are_named_by_their_signal() -> None:
    assert launch._failure_line(4, -9).startswith("rank 4 was killed by SIGKILL; out of memory?")
    assert launch._failure_line(4, -11).startswith("rank 4 was killed by SIGSEGV;")
    assert launch._shell_code(-9) == 137
