"""The analysis killed at random moments: `python tests/attacks/kills_of_analysis.py --tries 100`.

Whatever the moment and the signal, its output is there whole or not at all, nothing is left beside it, and what the
caches hold then gives the same numbers.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def command(run: Path, *options: str) -> list[str]:
    """An analysis of the run that prints CSV."""
    return [sys.executable, "-m", "analysis", "breakdown", "--format", "csv", *options, str(run)]


def printed(run: Path, *options: str) -> str:
    """What an analysis that nobody disturbs prints, complaints included."""
    done = subprocess.run(command(run, *options), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def attack(source: Path, tries: int, seed: int) -> list[str]:
    """What went wrong."""
    chance, wrong = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        run, output, cache = Path(folder) / "run", Path(folder) / "out.csv", Path(folder) / "cache"
        shutil.copytree(source, run)
        whole = printed(run, "--no-cache")
        for number in range(tries):
            if chance.random() < 0.3:
                shutil.rmtree(cache, ignore_errors=True)
            process = subprocess.Popen(
                command(run, "--cache", str(cache), "-o", str(output)), cwd=ROOT, stderr=subprocess.DEVNULL
            )
            time.sleep(chance.uniform(0.02, 2.5))
            process.send_signal(chance.choice(SIGNALS))
            process.wait()
            if output.exists() and output.read_text() != whole:
                wrong.append(f"try {number} of seed {seed}: half an output")
            output.unlink(missing_ok=True)
            if number % 5 == 4 and printed(run, "--cache", str(cache)) != whole:
                wrong.append(f"try {number} of seed {seed}: other numbers, or a complaint, from the cache")
        left = {path.name for path in Path(folder).iterdir()} - {"run", "cache"}
        wrong += [f"left behind: {sorted(left)}"] if left else []
    return wrong


def main() -> int:
    """Attack; 1 if anything goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, default=ROOT / "traces" / "resnet18-ddp-w2", help="large ones are cached")
    args = parser.parse_args()
    wrong = attack(args.run, args.tries, args.seed)
    print(f"tried {args.tries:,}, failed {len(wrong)}")
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
