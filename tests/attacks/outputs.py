"""Outputs onto inputs, links, devices and full disks: `python tests/attacks/outputs.py`.

No input is changed, nothing is left behind, a file that was there is replaced whole or not at all.
"""

from __future__ import annotations

import errno
import os
import random
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

from attacking import called, complaint, run_attack
from builders import MS, Collective, write_run

import commtrace.common.disk

_KINDS = (
    "trace", "side file", "link to a trace", "hard link", "through a folder", "link", "dangling link", "link to itself",
    "new", "old", "folder", "no folder", "full device", "null", "stdout", "full disk", "short writes",
)  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """Everything below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def target(kind: str, run: Path, out: Path, trace: Path) -> Path:
    """Where the output goes in this try."""
    place = out / "table.csv"
    if kind == "link to a trace":
        place.symlink_to(trace)
    elif kind == "hard link":
        place.hardlink_to(trace)
    elif kind == "link":
        (out / "real.csv").write_text("old")
        place.symlink_to("real.csv")
    elif kind == "dangling link":
        place.symlink_to("nowhere")
    elif kind == "link to itself":
        place.symlink_to("table.csv")
    elif kind in ("old", "full disk"):
        place.write_text("old")
        place.chmod(0o604)
    named = {
        "trace": trace, "side file": run / "run.json", "through a folder": out / ".." / run.name / trace.name,
        "folder": out, "no folder": out / "no" / "table.csv", "full device": Path("/dev/full"),
        "null": Path("/dev/null"), "stdout": Path("/dev/stdout"),
    }  # fmt: skip
    return named.get(kind, place)


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance = random.Random(seed)
    run = folder / "run"
    write_run(run, 2, [Collective((0, 3 * MS), 10 * MS, elems=250_000_000)])
    (run / "run.json").write_text('{"world_size": 2}')
    before, trace = contents(run), sorted(run.glob("*.pt.trace.json*"))[0]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    sound = called("table", "calls", "-f", "csv", run)[1]
    for number in range(tries):
        kind, out = chance.choice(_KINDS), folder / f"out{number}"
        out.mkdir()
        place = target(kind, run, out, trace)
        there = sorted(path.name for path in out.iterdir())
        code, text, err = _written(kind, chance, "table", "calls", "-f", "csv", "-o", place, run)
        counts[kind] += 1
        good = kind in ("new", "old", "null", "stdout", "short writes")
        is_input = kind in ("trace", "side file", "link to a trace", "hard link", "through a folder")
        expected = 0 if good else 2 if is_input else 1
        after = sorted(path.name for path in out.iterdir())
        if code != expected:
            wrong.append(f"try {number}, {kind}: exit code {code}, expected {expected}: {err[-300:]}")
        elif expected != 2 and complaint(code, text, err):
            wrong.append(f"try {number}, {kind}: {complaint(code, text, err)}")
        elif contents(run) != before:
            wrong.append(f"try {number}, {kind}: an input was changed")
        elif after != sorted({*there, *(["table.csv"] if kind in ("new", "short writes") else [])}):
            wrong.append(f"try {number}, {kind}: left behind {after}")
        elif kind == "full disk" and place.read_text() != "old":
            wrong.append(f"try {number}, {kind}: half a file")
        elif kind in ("new", "old", "short writes") and place.read_text() != sound:
            wrong.append(f"try {number}, {kind}: not what is written to stdout")
        elif kind == "old" and place.stat().st_mode & 0o777 != 0o604:
            wrong.append(f"try {number}, {kind}: other permissions")
    return counts, wrong


def _written(kind: str, chance: random.Random, *arguments: object) -> tuple[int | str, str, str]:
    if kind not in ("full disk", "short writes"):
        return called(*arguments)
    left = chance.randrange(300)

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal left
        if kind == "short writes":
            return os.write(descriptor, data[: 1 + chance.randrange(100)])
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = os.write(descriptor, data[:left])
        left -= done
        return done

    with mock.patch.object(commtrace.common.disk, "write", write):
        return called(*arguments)


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
