"""What is put into the run directory of a running job: `python tests/attacks/on_demand.py --tries 2000 --seed 0`.

Each try has two ranks that listen, and a watch. It puts a few things there: requests that are right, wrong or damaged,
plans and pulses with any numbers, and links, folders, pipes or files at every name that is read or written, such as
those of the next captures. What is traced is what somebody asked for, and what is not is refused in words. Nothing
changes in the folder that links lead to. Once all that is gone, both ranks hear of the next request. Other users put
nothing there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from unittest import mock

from attacking import mutated, run_attack
from local_clients import CAN_BE_ANOTHER, OTHER_USER

from commtrace.analysis.watching.job import Job
from commtrace.common import trigger
from commtrace.common.trigger import Plan, Request
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.script.watch import listener
from commtrace.profiling.script.watch.listener import Listener

NUMBERS = (0, 1, 2, 5, 100, 1000, 1001, 5000, -1, 1 << 31, (1 << 63) - 1, 1 << 63, 10**400, 2.5, 1e300, True, None, "5")
RANKS = (None, [0], [1], [0, 1], [1, 0, 1], [0, 7], [7], [], "0-7", "0", 0, [-1], [0.0], [True], [[0]], {"0": 1})
NAMES = ("trigger", "trigger.refused", ".trigger", ".trigger/plan", ".trigger/pulse-0", ".trigger/pulse-1")
KEPT = {"plan": b"mine", "pulse-0": b"mine", "pulse-1": b"mine", "trigger": b"", "trigger.refused": b"mine"}
AS_OTHER = f"""
import os, sys
os.setgroups([]), os.setgid({OTHER_USER}), os.setuid({OTHER_USER})
for path in sys.argv[1:]:
    for act in ("open(path, 'w')", "os.symlink('/tmp', path)", "os.unlink(path)", "os.mkdir(path)",
                "os.rename(path, path + 'x')"):
        try:
            eval(act)
            print(path)
        except OSError:
            pass
"""


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    folder.chmod(0o755)
    for number in range(tries):
        base = folder / str(number)
        said: list[str] = []
        with mock.patch.object(listener, "say", said.append):
            wrong += [f"try {number}: {what}" for what in one_try(base, chance, counts)]
        counts["refusals"] += sum("refused" in line for line in said)
        wrong += [f"try {number}: {line}" for line in said if "not possible now" in line and "Error: " in line]
        shutil.rmtree(base)
    return counts, wrong


class Ranks:
    """Two ranks of a job, looked after step by step, and the plans that each of them has taken."""

    def __init__(self, run: Path) -> None:
        self.run, self.step = run, 0
        self.ears = [Listener(run, Identity(rank, rank, 2, "host")) for rank in range(2)]
        self.taken: list[list[Plan]] = [[], []]
        self.watch = Job(run, lambda paths, keep_going: None, 1e300)  # which never asks by itself
        self.look(2)

    def look(self, times: int) -> None:
        """Steps, and looks; what is planned is taken when its step has come."""
        for _ in range(times):
            self.step += 10
            for ear, taken in zip(self.ears, self.taken, strict=True):
                ear.stepped(self.step)
                ear._step_s = 0.1
                ear._try(ear._look)
                ear._step_s = 0.1
                plan = ear.take()
                taken += [] if plan is None else [plan]
            list(self.watch.look())


def one_try(base: Path, chance: random.Random, counts: Counter[str]) -> list[str]:
    """What went wrong."""
    run, elsewhere = base / "run", base / "elsewhere"
    run.mkdir(parents=True)
    elsewhere.mkdir()
    for name, content in KEPT.items():
        (elsewhere / name).write_bytes(content)
    ranks, asked = Ranks(run), list[bytes]()
    trigger.make_folder(run)
    trigger.decide(run, Plan())
    ranks.look(1)
    if CAN_BE_ANOTHER and chance.random() < 0.02:
        counts["another user"] += 1
        paths = [str(run / name) for name in NAMES] + [str(base / "run-step100")]
        done = subprocess.run([sys.executable, "-c", AS_OTHER, *paths], capture_output=True, text=True, check=True)
        if done.stdout:
            return [f"another user put something at {done.stdout.split()}"]
    for _ in range(chance.choice((1, 1, 2, 4))):
        kind = chance.choice(("a request", "a request", "a damaged request", "a plan", "a pulse", "a thing", "folders"))
        counts[kind] += 1
        with suppress(OSError):  # what was put there before may be in the way
            asked += put(kind, run, elsewhere, ranks.step, chance)
        ranks.look(chance.choice((1, 2, 3)))
    ranks.look(4)
    found = [what for plan in ranks.taken[0] if (what := unasked(plan, asked))]
    behind = {path.name: path.read_bytes() for path in elsewhere.iterdir() if not path.is_dir()}
    if behind != KEPT:
        found.append(f"behind a link there is {behind}")
    if {path.name for path in base.iterdir() if not path.name.startswith("run-step")} != {"run", "elsewhere"}:
        found.append(f"left {sorted(path.name for path in base.iterdir())}")
    made = [trigger.folder_of_plan(run, plan) for plan in ranks.taken[0]]
    found += [f"{path.name} is no folder of its own" for path in made if path.is_symlink() or not path.is_dir()]
    for name in NAMES:
        remove(run / name)
    ranks.look(5)
    for taken in ranks.taken:
        taken.clear()
    trigger.ask(run, Request(3, (0, 1)))
    ranks.look(4)
    if [[(plan.steps, plan.ranks) for plan in taken] for taken in ranks.taken] != [[(3, (0, 1))]] * 2:
        found.append(f"afterwards the ranks heard {ranks.taken}")
    return found


def put(kind: str, run: Path, elsewhere: Path, step: int, chance: random.Random) -> list[bytes]:
    """Put something there; the requests that this makes."""
    if (run / ".trigger").is_symlink() and kind in ("a plan", "a pulse"):
        return []
    if kind in ("a request", "a damaged request"):
        fields = {"steps": chance.choice(NUMBERS), "ranks": chance.choice(RANKS)}
        fields |= {"step": 2} if chance.random() < 0.1 else {}
        chosen = chance.sample(sorted(fields), chance.choice((0, 1, 1, 1, 1, 2)))
        text = json.dumps({name: fields[name] for name in chosen}).encode() if chance.random() < 0.9 else b""
        text = mutated(text, chance) if kind == "a damaged request" else text
        remove(run / "trigger")
        (run / "trigger").write_bytes(text)
        return [text]
    if kind == "a plan":
        plan = {"number": chance.choice(NUMBERS), "from_step": chance.choice((*NUMBERS, step + 50, step + 10_000))}
        fields = {"steps": chance.choice(NUMBERS), "ranks": chance.choice(RANKS)}
        remove(run / ".trigger/plan")
        (run / ".trigger/plan").write_text(json.dumps(plan | fields))
    elif kind == "a pulse":
        pulse = {name: chance.choice(NUMBERS) for name in ("rank", "step", "unix_ns", "step_ns", "every_s")}
        path = run / f".trigger/pulse-{chance.choice((0, 1, 2, 'x', '01'))}"
        remove(path)
        path.write_text(json.dumps(pulse))
    elif kind == "folders":
        for later in range(chance.choice((3, 60, 150))):
            thing(run.with_name(f"run-step{step + later}"), elsewhere, chance)
    else:
        name = chance.choice(NAMES)
        remove(run / name)
        return thing(run / name, elsewhere, chance)
    return []


def thing(path: Path, elsewhere: Path, chance: random.Random) -> list[bytes]:
    """Something at a path that should be something else; the request that this is, if it is one."""
    kind = chance.choice(("link", "link to nothing", "link to a file", "folder", "pipe", "file"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.touch(exist_ok=False)
        return [b""] if path.name == "trigger" else []
    else:
        path.symlink_to(elsewhere / {"link": "", "link to nothing": "nothing"}.get(kind, "trigger"))
    return []


def unasked(plan: Plan, asked: list[bytes]) -> str | None:
    """What is wrong with a plan, which one of the requests must have asked for."""
    for text in asked:
        with suppress(ValueError, RecursionError, AttributeError, TypeError):
            fields = json.loads(text) if text else {}
            ranks = fields.get("ranks")
            wanted = None if ranks is None else tuple(sorted(set(ranks)))
            is_right = set(fields) <= {"steps", "ranks"} and type(fields.get("steps", 5)) is int
            if is_right and (plan.steps, plan.ranks) == (fields.get("steps", 5), wanted):
                return None
    return f"{plan} was not asked for by {asked}"


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
