"""Who can reach an analysis with `--dask local`: `python tests/attacks/dask_local.py --tries 6 --seed 0`.

While the command runs, every port on which one of its processes listens is noted, and a process of another user (where
this is root; else of this one) asks there, as a client of Dask does, that a file be made. Nothing may listen, no file
may be there, and the tables are those of a run without Dask.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from attacking import ROOT, run_attack
from process_tree import listening_ports, mark, marked

OTHER_USER = 65_534
RUNS = ("nccl-straggler", "nccl-two-hosts", "gloo-collectives")
COMMANDS = ("breakdown", "table lateness", "bandwidth")
# Python itself may lie where another user cannot read, so it is imported before.
ASK = f"""
import os, sys
from pathlib import Path
from distributed import Client, Scheduler
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({OTHER_USER}), os.setuid({OTHER_USER})
Client(sys.argv[1], timeout=3).run(Path.touch, Path(sys.argv[2]))
"""


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for number in range(tries):
        command, run, workers = chance.choice(COMMANDS), ROOT / "tests/data" / chance.choice(RUNS), chance.randint(1, 3)
        arguments = [sys.executable, "-m", "commtrace", *command.split(), "-f", "csv", "--no-cache", str(run)]
        expected = subprocess.run(arguments, cwd=ROOT, capture_output=True, check=True).stdout
        counts[command] += 1
        faults, out = attacked([*arguments, "--dask", "local", "--workers", str(workers)], folder / f"made-{number}")
        faults += ["other tables"] * (out != expected)
        wrong += [f"try {number}, {command} of {run.name}, {workers} workers: {fault}" for fault in faults]
    return counts, wrong


def attacked(command: list[str], proof: Path) -> tuple[list[str], bytes]:
    """What is wrong with how the command ran, and what it printed."""
    variable, ports, asking = mark(), set[tuple[str, int]](), list[subprocess.Popen[bytes]]()
    out = proof.with_suffix(".csv")
    with out.open("wb") as file, subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variable}, stdout=file, stderr=subprocess.DEVNULL
    ) as process:  # fmt: skip
        while process.poll() is None:
            for place in listening_ports(marked(variable)) - ports:
                ports.add(place)
                asking.append(asked(place, proof))
            time.sleep(0.02)
    for one in asking:
        one.wait()
    faults = [f"listens on {address}:{port}" for address, port in sorted(ports)]
    faults += ["ran what another user sent"] * proof.exists()
    return faults + [f"exit code {process.returncode}"] * bool(process.returncode), out.read_bytes()


def asked(place: tuple[str, int], proof: Path) -> "subprocess.Popen[bytes]":
    """A process that has Dask make a file, if Dask is there."""
    command = [sys.executable, "-c", ASK, "tcp://{}:{}".format(*place), str(proof)]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.Popen(command, cwd="/", env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
