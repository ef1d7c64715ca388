"""Recordings with a right checksum and one odd value: `python tests/attacks/recordings_changed.py --tries 2000`.

Each is refused in one line, or read; none ends in a traceback, and none takes the memory that it asks for.
"""

from __future__ import annotations

import gzip
import random
import resource
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from attacking import called, complaint, run_attack
from bombs import small_content

from commtrace.analysis.formats.recordings.content import MAGIC

_ODD: list[Any] = [
    None, True, -1, 0, 1, 7, 255, 2**28, 2**40, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -1e300, float("nan"),
    float("inf"), "", "x", "nccl:all_reduce", "ProfilerStep#9", "\0\n", "\u202e", [], [[]], [None], {}, {"x": 1}, b"",
    b"\xff" * 8, "same", "above", "steps", "bends", "among", "whole", "bits", "thousandths",
]  # fmt: skip
_MOST_BYTES = 4 << 30


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a nested value: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def changed(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The content with a mistake or two."""
    made: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(content))
    for _ in range(chance.choice((1, 1, 2, 3))):
        holder, key = chance.choice(_places(made))
        how = chance.randrange(4)
        if how == 0 and isinstance(holder, dict):
            del holder[key]
        elif how == 1 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += chance.choice((-1, 1, -(2**32), 2**32))
        elif how == 2 and isinstance(holder[key], bytes | str | list):
            holder[key] = holder[key] * chance.choice((0, 2)) if chance.random() < 0.5 else holder[key][:-1]
        else:
            holder[key] = chance.choice(_ODD)
    return made


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, before[1]))
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    content = msgspec.to_builtins(small_content(folder), builtin_types=(bytes,))
    for one in folder.iterdir():
        one.unlink()
    path = folder / "rank0.ctrace"
    for number in range(tries):
        payload = msgspec.msgpack.encode(changed(content, chance))
        path.write_bytes(gzip.compress(MAGIC + sha256(payload).digest() + payload, 1))
        command = chance.choice(("summary", "breakdown", "table kernels", "bandwidth"))
        code, out, err = called(*command.split(), "--no-cache", "--workers", "1", "--memory", "0.3", path)
        counts["read" if code == 0 else "refused"] += 1
        if (why := complaint(code, out, err)) is not None:
            wrong.append(f"try {number} of seed {seed}, {command}: {why}")
    resource.setrlimit(resource.RLIMIT_AS, before)
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
