"""Start the ranks of one node through torch's own elastic launcher, as `torchrun --standalone` would."""

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from .errors import RankFailedError

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def launch(module: str, args: Sequence[str], workers: int) -> int:
    """Run `python -m module args` as `workers` ranks; the exit code: 0, or 128 + N after signal N to the launcher.

    Raises RankFailedError, with the exit code of the rank that failed first.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # the first free port
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    os.environ.update(settings(workers) | os.environ)  # what the user has set stays
    logging.disable(logging.CRITICAL)  # the launcher's own log: what it says of failures is said below in one line
    handlers = {signum: signal.getsignal(signum) for signum in _HANDLED}  # the launcher leaves its own behind
    try:
        elastic_launch(config, sys.executable)("-m", module, *args)
    except ChildFailedError as err:
        rank, failure = err.get_first_failure()
        raise RankFailedError(_failure_line(rank, failure.exitcode), _shell_code(failure.exitcode)) from None
    except SignalException as err:
        return 128 + err.sigval
    finally:
        logging.disable(logging.NOTSET)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    return 0


def settings(workers: int) -> dict[str, str]:
    """Environment variables for so many ranks on this machine, for those that the user has not set."""
    found = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    # gloo looks its own host name up, which on many machines leads nowhere; one node needs no more than the loopback.
    if "lo" in (name for _, name in socket.if_nameindex()):
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return found


def _failure_line(rank: int, exit_code: int) -> str:
    if exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
        hint = "; out of memory?" if -exit_code == signal.SIGKILL else ""
        return f"rank {rank} {how}{hint}; its side file, and the other ranks' traces so far, are marked incomplete"
    return f"rank {rank} failed with exit code {exit_code}; its own message is above"


def _shell_code(exit_code: int) -> int:
    return exit_code if exit_code > 0 else 128 - exit_code
