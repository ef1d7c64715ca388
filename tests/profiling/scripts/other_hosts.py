"""A capture whose ranks pretend to be on other hosts: `other_hosts.py RUN_DIR RANKS_PER_HOST AHEAD_NS [late]`.

The clocks of host k, which the probe reads, are k * AHEAD_NS ahead; with `late` the last rank enters long after.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from commtrace import capture
from commtrace.profiling.machine import environment
from commtrace.profiling.sessions import clock_probe

PROBES = ("at_start", "at_end")


def pretend(host: int, ahead_ns: int) -> None:
    """Let this process be on host number `host`."""
    socket.gethostname = lambda: f"host{host}"
    environment.boot_id = lambda: f"boot-{host}"
    clock_probe.unix_ns = lambda: time.time_ns() + host * ahead_ns


def timed(spent: dict[str, float]) -> None:
    """Note how long each probe takes, in seconds."""
    for name in PROBES:
        measured = getattr(clock_probe.ClockProbe, name)

        def probe(self, *args, _name=name, _measured=measured, **options) -> None:
            begin = time.monotonic()
            _measured(self, *args, **options)
            spent[_name] = time.monotonic() - begin

        setattr(clock_probe.ClockProbe, name, probe)


def main(run_dir: str, ranks_per_host: str, ahead_ns: str, ending: str = "") -> None:
    rank = int(os.environ["RANK"])
    pretend(rank // int(ranks_per_host), int(ahead_ns))
    spent: dict[str, float] = {}
    timed(spent)
    dist.init_process_group("gloo")
    if ending == "late" and rank == dist.get_world_size() - 1:
        time.sleep(1)
    weights = torch.ones(100_000)
    with capture(run_dir, wait=1, warmup=1, active=4) as session:
        for step in range(6):
            time.sleep(0.003 + 0.002 * rank)
            for part in range(4):  # no two alike, so that nothing but their sizes need tell them apart
                dist.all_reduce(weights[: 1000 * (4 * step + part + 1)])
            session.step()
        if ending == "destroyed":
            dist.destroy_process_group()
    Path(run_dir, f"spent-{rank}.txt").write_text(json.dumps(spent))
    if ending != "destroyed":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
