"""Run a program as ranks that share a GPU, each as if on a node of its own: `nodes.py RANKS PROGRAM.py|-m MODULE ...`.

NCCL refuses two ranks on one GPU of a host, and compares hosts by NCCL_HOSTID where that is set. So these ranks
exchange data through sockets, and the GPU takes turns between them: what they do is real, how fast is not.
"""

import os
import signal
import socket
import subprocess
import sys
import time

_GRACE_S = 30.0  # for the others, after the first one has failed


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would set for the only rank of this node, and what NCCL takes a host by."""
    return dict(os.environ) | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_HOSTID": f"node{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def main() -> int:
    ranks, program, port = int(sys.argv[1]), [sys.executable, *sys.argv[2:]], free_port()
    started = [subprocess.Popen(program, env=environment(rank, ranks, port)) for rank in range(ranks)]

    def pass_on(signum: int, _: object) -> None:
        for process in started:
            process.send_signal(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, pass_on)
    while all(process.poll() in (None, 0) for process in started) and any(p.poll() is None for p in started):
        time.sleep(0.1)
    until_s = time.monotonic() + _GRACE_S
    while any(p.poll() is None for p in started) and time.monotonic() < until_s:
        time.sleep(0.1)
    for process in started:
        if process.poll() is None:
            process.kill()
    codes = [process.wait() for process in started]
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed


if __name__ == "__main__":
    sys.exit(main())
