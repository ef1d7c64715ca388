"""Many requests at once for the tab in TensorBoard: `python tests/attacks/tab_requests.py --tries 60 --seed 0`.

Each try is a request for a list or a report, 20 at a time, of runs that are whole, damaged, gone, changing or no runs
at all. No answer is a 500, no more than two reports are being made at a time, and those who ask for the same run at
once get it from one process.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote_from_bytes

from attacking import run_attack
from builders import MS, Collective, write_run
from werkzeug.test import Client

from commtrace.analysis.tensorboard import plugin as tab
from commtrace.analysis.tensorboard.plugin import CommtracePlugin

AT_ONCE = 20
FINE = (200, 404, 422, 503)


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    logdir = folder / "logs"
    for number in range(6):
        write_run(logdir / f"run{number}", 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000)])
    damage(logdir, chance)
    making = Making()
    applications = CommtracePlugin(SimpleNamespace(logdir=str(logdir))).get_plugin_apps()
    runs = [*(f"run{number}" for number in range(6)), "broken", "circle", "..", "", "\0", "name\udcff"]

    def ask(what: str) -> int:
        if what == "a list":
            return Client(applications["/runs"]).get("/").status_code
        return (
            Client(applications["/report"])
            .get("/", query_string=f"run={quote_from_bytes(os.fsencode(what))}")
            .status_code
        )

    with making, ThreadPoolExecutor(AT_ONCE) as threads:
        for begin in range(0, tries, AT_ONCE):
            asked = [chance.choice([*runs, "a list"]) for _ in range(min(AT_ONCE, tries - begin))]
            answers = [threads.submit(ask, what) for what in asked]
            if chance.random() < 0.5:
                time.sleep(chance.random())
                change(logdir, chance)
            for what, answer in zip(asked, answers, strict=True):
                try:
                    code = answer.result()
                except Exception as err:  # noqa: BLE001 - TensorBoard would answer with 500
                    code, what = 500, f"{what!r}: {type(err).__name__}: {err}"
                counts[f"answers {code}"] += 1
                wrong += [f"{what}: {code}"] * (code not in FINE)
    return counts, wrong + [f"{making.most} reports were made at once"] * (making.most > 2) + making.twice


def damage(logdir: Path, chance: random.Random) -> None:
    """What is no run that can be read."""
    broken = logdir / "broken"
    shutil.copytree(logdir / "run0", broken)
    for trace in broken.glob("*.pt.trace.*"):
        trace.write_bytes(chance.randbytes(100))
    (logdir / "circle").mkdir()
    (logdir / "circle" / "a_0.pt.trace.json").symlink_to("a_0.pt.trace.json")
    (logdir / "gone").mkdir()
    (logdir / "gone" / "a_0.pt.trace.json").symlink_to("nothing")
    (logdir / os.fsdecode(b"name\xff")).mkdir()
    shutil.copy(next((logdir / "run0").glob("*.pt.trace.*")), logdir / os.fsdecode(b"name\xff"))


def change(logdir: Path, chance: random.Random) -> None:
    """A run goes, comes back, or is written to."""
    run = logdir / f"run{chance.randrange(6)}"
    if not run.exists():
        shutil.copytree(logdir / "run0" if (logdir / "run0").exists() else logdir / "broken", run)
    elif chance.random() < 0.5:
        shutil.rmtree(run)
    else:
        for trace in run.glob("*.pt.trace.*"):
            os.utime(trace)


class Making:
    """Counts how many reports are being made, at once and of one run."""

    def __init__(self) -> None:
        self.most, self._now, self._lock, self._of = 0, 0, threading.Lock(), Counter[Path]()
        self.twice: list[str] = []

    def __enter__(self) -> None:
        self._made = tab._made
        tab._made = self._counted

    def __exit__(self, *_: object) -> None:
        tab._made = self._made

    def _counted(self, run: Path) -> bytes:
        with self._lock:
            self._now += 1
            self._of[run] += 1
            self.most = max(self.most, self._now)
            self.twice += [f"{run.name} was made twice at once"] * (self._of[run] > 1)
        try:
            return self._made(run)
        finally:
            with self._lock:
                self._now -= 1
                self._of[run] -= 1


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
