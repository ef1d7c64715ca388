"""The analysis killed at random moments: `python tests/attacks/kills_of_analysis.py --tries 100`.

Whatever the moment and the signal, its output is there whole or not at all, nothing is left beside it, and what the
caches hold then gives the same numbers.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from attacking import ROOT, run_attack

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def command(run: Path, *options: str) -> list[str]:
    """An analysis of the run that prints CSV."""
    return [sys.executable, "-m", "commtrace", "breakdown", "--format", "csv", *options, str(run)]


def printed(run: Path, *options: str) -> str:
    """What an analysis that nobody disturbs prints, complaints included."""
    done = subprocess.run(command(run, *options), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def attack(folder: Path, tries: int, seed: int, run: Path) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; of a copy of this `run`, whose traces are cached if they are large."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    traces, output, cache = folder / "run", folder / "out.csv", folder / "cache"
    shutil.copytree(run, traces)
    whole = printed(traces, "--no-cache")
    for number in range(tries):
        if chance.random() < 0.3:
            shutil.rmtree(cache, ignore_errors=True)
        process = subprocess.Popen(
            command(traces, "--cache", str(cache), "-o", str(output)), cwd=ROOT, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0.02, 2.5))
        process.send_signal(chance.choice(SIGNALS))
        counts["killed" if process.wait() else "had ended"] += 1
        if output.exists() and output.read_text() != whole:
            wrong.append(f"try {number} of seed {seed}: half an output")
        output.unlink(missing_ok=True)
        if number % 5 == 4 and printed(traces, "--cache", str(cache)) != whole:
            wrong.append(f"try {number} of seed {seed}: other numbers, or a complaint, from the cache")
    left = {path.name for path in folder.iterdir()} - {"run", "cache"}
    return counts, wrong + ([f"left behind: {sorted(left)}"] if left else [])


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__, run=ROOT / "traces" / "resnet18-ddp-w2"))
