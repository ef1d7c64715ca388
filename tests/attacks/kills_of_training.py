"""Launchers killed with SIGKILL: `python tests/attacks/kills_of_training.py --tries 20 --seed 0`.

Each try starts a command, waits until the first of its ranks is there and then up to a second more, or with --late up
to ten, kills what it started, and nothing else. No process of the tree may be there some seconds later; ranks that had
begun to train have time to write what they have.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from attacking import ROOT, run_attack
from capturing import SCRIPTS, environment
from process_tree import mark, marked, survivors

TRAIN = ("train", "--device", "cpu", "--batch-size", "1", "--workers", "2", "--active", "500", "--steps", "600")
COMMS = ("comms", "--device", "cpu", "--workers", "3")
SCRIPT = ("run", "--workers", "2", str(SCRIPTS / "users" / "endless.py"))
SWEEP = ("sweep", "--device", "cpu", "--batch-size", "2", "--workers", "2")
COMMANDS = (TRAIN, SCRIPT, COMMS, SWEEP)
# While they import; and when they may be in a collective, where they wait for a while before they give up.
PATIENCE_S, LATE_PATIENCE_S = 5.0, 40.0


def attack(folder: Path, tries: int, seed: int, *, late: bool) -> tuple[Counter[str], list[str]]:
    """What was killed, and what stayed; `late` is in the midst of the work."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    most_s, patience_s = (10.0, LATE_PATIENCE_S) if late else (1.0, PATIENCE_S)
    for number in range(tries):
        command, *options = COMMANDS[number % len(COMMANDS)]
        after_s = chance.uniform(0, most_s)
        found = killed((command, "--out", str(folder), "--run-name", str(number), *options), after_s, patience_s)
        counts[command] += 1
        wrong += [f"try {number}, {command} killed after {after_s:.2f} s: {fault}" for fault in found]
    return counts, wrong


def killed(arguments: tuple[str, ...], after_s: float, patience_s: float) -> list[str]:
    """What is wrong after a run of that command was killed, so long after its first rank began."""
    variable = mark()
    with subprocess.Popen(
        [sys.executable, "-m", "commtrace", *arguments], cwd=ROOT, env=environment() | variable,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while len(marked(variable)) < 2 and process.poll() is None:
            time.sleep(0.02)
        time.sleep(after_s)
        early = process.poll()
        process.kill()
    left = survivors(variable, patience_s)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"it had ended with {early}"] * (early is not None) + [f"{len(left)} processes stayed"] * bool(left)


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__, late=False))
