"""Start the ranks of one node and end them together, as `torchrun --standalone --max-restarts 0` would.

Not through torch's own launcher: its stores listen on every address, and it unpickles whatever is written there. Here
one store for the ranks listens on the loopback address; this process reads nothing from it.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..errors import RankFailedError
from . import secret

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LOOPBACK = "127.0.0.1"
_POLL_S = 0.02
# Time for ranks to write their files; torchrun gives them as much.
_GRACE_S = 30.0

_Rank = subprocess.Popen[bytes]


def launch(program: Sequence[str], workers: int) -> int:
    """Run `python program` as `workers` ranks; return 0, or 128 + N after signal N to the launcher.

    Ranks get the variables that torchrun sets, and their own sessions: Ctrl-C reaches only the launcher. If one fails,
    or a signal comes, all are ended; SIGUSR2 is passed on to rank 0. Raises RankFailedError, with the exit code of the
    rank that failed first.
    """
    ranks: list[_Rank] = []
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # also in ranks, until they have a handler
    with _signals() as received, _store_port() as port, _error_files(workers) as files:
        env = launch_settings(workers) | secret.new_setting() | dict(os.environ)  # what the user has set stays
        env |= _of_all(workers, port)
        try:
            for rank, error_file in enumerate(files):
                of_rank = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")} | error_file
                ranks.append(
                    subprocess.Popen(  # noqa: S603  (this program itself)
                        [sys.executable, *program], env=env | of_rank, start_new_session=True
                    )
                )
            with _passed_on(ranks[0]):
                failed = _first_failure(ranks, received)
        finally:
            _end(ranks, received)
    if failed is not None:
        code = ranks[failed].returncode
        raise RankFailedError(_failure_line(failed, code), _shell_code(code))
    return 128 + received[0] if received else 0


def launch_settings(workers: int) -> dict[str, str]:
    """Environment variables for `workers` ranks on one machine, without those that the user has set."""
    settings = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    # gloo looks up its own host name, which fails on many machines; one node needs only the loopback interface.
    if "lo" in (name for _, name in socket.if_nameindex()):
        settings["GLOO_SOCKET_IFNAME"] = "lo"
    return settings


def _of_all(workers: int, port: int) -> dict[str, str]:
    """The environment variables of torchrun that all ranks share."""
    sizes = {name: str(workers) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")}
    return sizes | {
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default_role",
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # so that no rank makes its own store, on every address
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals, so that ranks are ended in order; ignored signals stay ignored, as under nohup."""
    received: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in _HANDLED}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(signum, lambda signum, _: received.append(signum))
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _passed_on(rank: _Rank) -> Iterator[None]:
    """Pass SIGUSR2, the request for a capture, on to this rank."""

    def pass_on(signum: int, _: object) -> None:
        with suppress(ProcessLookupError):
            rank.send_signal(signum)

    signal.signal(signal.SIGUSR2, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@contextmanager
def _store_port() -> Iterator[int]:
    """Yield the port of a store for the ranks. Given only a port, torch would listen on every address."""
    listening = socket.create_server((_LOOPBACK, 0))
    port: int = listening.getsockname()[1]
    store = TCPStore(
        _LOOPBACK,
        port,
        is_master=True,
        timeout=timedelta(seconds=_GRACE_S),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    try:
        yield port
    finally:
        del store


@contextmanager
def _error_files(workers: int) -> Iterator[list[dict[str, str]]]:
    """Yield variables that make torch.distributed.elastic write the error of each rank; none if the disk is full."""
    with ExitStack() as stack:
        files: list[dict[str, str]] = [{} for _ in range(workers)]
        with suppress(OSError):
            folder = stack.enter_context(TemporaryDirectory(prefix="commtrace-", ignore_cleanup_errors=True))
            for rank, variables in enumerate(files):
                file = Path(folder, str(rank), "error.json")
                file.parent.mkdir()
                variables["TORCHELASTIC_ERROR_FILE"] = str(file)
        yield files


def _first_failure(ranks: Sequence[_Rank], received: Sequence[int]) -> int | None:
    """Wait for the first rank that fails; None if all end normally, or a signal comes."""
    while not received:
        codes = [rank.poll() for rank in ranks]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed
        time.sleep(_POLL_S)
    return None


def _end(ranks: Sequence[_Rank], received: Sequence[int]) -> None:
    """End running ranks by the received signal or SIGTERM; by SIGKILL after a while or at a second Ctrl-C."""
    _send(ranks, received[0] if received else signal.SIGTERM)
    until_s = time.monotonic() + _GRACE_S
    while any(rank.poll() is None for rank in ranks):
        if time.monotonic() > until_s or received.count(signal.SIGINT) > 1:
            _send(ranks, signal.SIGKILL)
            break
        time.sleep(_POLL_S)
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):  # a driver may keep even a killed process
            rank.wait(_GRACE_S)


def _send(ranks: Sequence[_Rank], signum: int) -> None:
    for rank in ranks:
        if rank.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signum)


def _failure_line(rank: int, exit_code: int) -> str:
    if exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
        hint = "; out of memory?" if -exit_code == signal.SIGKILL else ""
        return f'rank {rank} {how}{hint}; side files of captures that had not ended say "complete": false'
    return f"rank {rank} failed with exit code {exit_code}; its own message is above"


def _shell_code(exit_code: int) -> int:
    return exit_code if exit_code > 0 else 128 - exit_code
