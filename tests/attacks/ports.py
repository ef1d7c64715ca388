"""Who can reach a run on one node: `python tests/attacks/ports.py --tries 6 --seed 0`.

Each try is a command with some number of ranks. While it runs, every address on which one of its processes listens is
noted, and its store is given a pickle where torch's own launcher would unpickle one. Nothing may listen but on the
loopback, nobody may unpickle, and the run ends well.
"""

import base64
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from attacking import ROOT, run_attack
from capturing import SCRIPTS, environment
from process_tree import listening, mark, marked
from torch.distributed import TCPStore

LOOPBACK = {"127.0.0.1", "::1"}
TRAIN = ("train", "--device", "cpu", "--batch-size", "1", "--wait", "1", "--active", "1")
COMMS = ("comms", "all_reduce", "--device", "cpu", "--max-bytes", "64K")
SCRIPT = ("run", str(SCRIPTS / "users" / "ddp.py"), "finish")


class Planted:
    """Unpickles as a file that says so."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """What was run, and what was open."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for number in range(tries):
        command, *options = (TRAIN, COMMS, SCRIPT)[number % 3]
        workers = chance.choice((1, 2, 2, 3))
        out = ("--workers", str(workers), "--out", str(folder), "--run-name", str(number))
        found = attacked((command, *out, *options), folder / f"unpickled-{number}")
        counts[command] += 1
        wrong += [f"try {number}, {command} of {workers}: {fault}" for fault in found]
    return counts, wrong


def attacked(arguments: tuple[str, ...], proof: Path) -> list[str]:
    """What is wrong with a run of that command."""
    variable, addresses, ports = mark(), set[str](), set[int]()
    with subprocess.Popen(
        [sys.executable, "-m", "commtrace", *arguments], cwd=ROOT, env=environment() | variable,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while process.poll() is None:
            pids = marked(variable)
            addresses |= listening(pids)
            for port, run_id in {store for pid in pids if (store := store_of(pid)) and store[0] not in ports}:
                ports.add(port)
                plant(port, run_id, proof)
            time.sleep(0.05)
    faults = [f"listens on {address}" for address in addresses - LOOPBACK]
    faults += ["no store was found"] * (not ports) + ["a pickle was believed"] * proof.exists()
    return faults + [f"exit code {process.returncode}"] * bool(process.returncode)


def store_of(pid: int) -> tuple[int, str] | None:
    """The port of a rank's store and the name of its job, by the rank's environment."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return None
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return (int(found["MASTER_PORT"]), found["TORCHELASTIC_RUN_ID"]) if "MASTER_PORT" in found else None


def plant(port: int, run_id: str, proof: Path) -> None:
    """Write what would touch a file where it is unpickled."""
    with suppress(RuntimeError):  # it is over
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
        state = base64.b64encode(pickle.dumps(Planted(proof))).decode()
        for key in (f"torch.rendezvous.{run_id}", run_id, f"/{run_id}", "state"):
            store.set(key, state)


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    sys.exit(run_attack(attack, __doc__))
