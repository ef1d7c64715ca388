"""Captures onto disks that are full or become it: `python tests/attacks/full_disks.py --tries 20 --seed 0`.

Each try runs a script of two ranks whose files may have only so many bytes each (RLIMIT_FSIZE), or, where that may be
mounted, on a file system of so many bytes, or one that is read-only. The script prints and ends as always; what of the
capture is missing is said at the end, once, and before the script starts where nothing could be written from the
beginning. With --strict the script does not start then, and the exit code is 1. Nothing half written is left.
"""

import os
import random
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacking import ROOT, run_attack
from capturing import SCRIPTS, environment

SCRIPT = (str(SCRIPTS / "users" / "ddp.py"), "finish")
PRINTED = ["rank 0 ends", "rank 1 ends"]
BEFORE = "the script goes on, and there will be no trace of it (--strict ends it here)"
AFTER = re.compile(r"commtrace: error: rank \d: (no trace|\d traces? in .*, but incomplete): ")


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    kinds = ["limited files"] + ["small disk", "read-only disk"] * can_mount(folder)
    for number in range(tries):
        kind = kinds[number % len(kinds)]
        size = 4096 * chance.choice((1, 3, 9, 40, 300, 900))  # without any, torch itself finds no /tmp
        options = ["--strict"] * (chance.random() < 0.3) + chance.choice(
            ([], [], ["--keep", "recording"], ["--analyse"])
        )
        own = folder / str(number)
        own.mkdir()
        what, faults = captured(own, kind, size, options)
        counts[f"{kind}, {what}"] += 1
        wrong += [f"try {number}, {kind} of {size:,} bytes, {options}: {fault}" for fault in faults]
    return counts, wrong


def captured(folder: Path, kind: str, size: int, options: list[str]) -> tuple[str, list[str]]:
    """What became of a capture, and what is wrong with that."""

    def limit() -> None:
        if kind == "limited files":
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with disk(folder, kind, size):
        done = subprocess.run(
            [sys.executable, "-m", "commtrace", "run", "--workers", "2", "--out", str(folder / "runs"),
             "--run-name", "mine", *options, *SCRIPT],
            cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, preexec_fn=limit, timeout=200,
        )  # fmt: skip
        run = folder / "runs" / "mine"
        left = [path.name for path in run.glob(".*")] if run.is_dir() else []
        traces = len({path.name.split(".pt.trace")[0] for path in run.glob("*.pt.trace.*")}) if run.is_dir() else 0
    faults = ["a traceback"] * ("Traceback" in done.stderr) + [f"left behind: {left}"] * bool(left)
    after = [line for line in done.stderr.splitlines() if AFTER.match(line)]
    if done.returncode == 1 and "--strict" in options:
        faults += ["the script had started"] * bool(done.stdout) + ["not said"] * (
            "cannot be written" not in done.stderr
        )
        return "refused", faults
    faults += [f"exit code {done.returncode}"] * bool(done.returncode)
    faults += [f"printed {done.stdout}"] * (sorted(done.stdout.splitlines()) != PRINTED)
    faults += [f"said twice: {after}"] * (len(after) > max(1, traces))
    if traces < len(PRINTED):
        faults += [f"not said at the end: {done.stderr}"] * (not after)
        faults += ["not said before"] * (kind == "read-only disk" and BEFORE not in done.stderr)
    return f"{traces} traces", faults


@contextmanager
def disk(folder: Path, kind: str, size: int) -> Iterator[None]:
    """A disk of that kind in the folder."""
    if kind == "limited files":
        yield
        return
    options = "ro" if kind == "read-only disk" else f"size={size}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this user may mount file systems here."""
    if os.geteuid():
        return False
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)
    return done.returncode == 0


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    sys.exit(run_attack(attack, __doc__))
