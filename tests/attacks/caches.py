"""Caches that were planted, changed or put in another place: `python tests/attacks/caches.py`.

Whatever lies in the cache's place, the command prints what it prints without a cache, and no traceback. A cache that is
not exactly what was kept is said to be unusable; also one with a fitting key and checksum whose content is changed.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import sys
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attacking import called, mutated, run_attack
from builders import MS, Collective, traces_of
from default_sizes import default_sizes

from commtrace.analysis.formats.recordings.content import MAGIC
from commtrace.analysis.reading.cache import Cache
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions

_OTHER_USER = 65_534
_ODD: list[Any] = [
    None, True, -1, 0, 1, 1.5, 1 << 24, (1 << 63) - 1, (1 << 64) - 1, float("nan"), float("inf"), "", "x", b"",
    b"1234567", b"\xff" * 8, b"\x7f" * 64, [], [[]], {}, {"a": 1}, [None] * 3,
]  # fmt: skip


def with_odd_value(packed: bytes, chance: random.Random) -> bytes:
    """The content of a cache with another value somewhere."""
    content = msgspec.msgpack.decode(packed)
    inner = content
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = chance.choice(keys)
        if isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.8:
            inner = inner[key]
            continue
        if isinstance(inner[key], bytes) and inner[key] and chance.random() < 0.7:
            column = bytearray(inner[key])
            column[chance.randrange(len(column))] ^= 1 << chance.randrange(8)
            inner[key] = bytes(column)
        else:
            inner[key] = chance.choice(_ODD)
        return msgspec.msgpack.encode(content)


def planted(place: Path, sound: bytes, chance: random.Random) -> str:
    """Something else in the cache's place; what it is."""
    kinds = [
        "bytes",
        "value",
        "pipe",
        "device",
        "folder",
        "link",
        "hard link",
        "giant",
        "open to others",
        "open folder",
    ]
    kind = chance.choice(kinds + (["another user's", "another user's folder"] if os.geteuid() == 0 else []))
    elsewhere = place.with_name("elsewhere")
    if kind == "bytes":
        place.write_bytes(mutated(sound, chance))
    elif kind == "value":
        plain = gzip.decompress(sound)[len(MAGIC) + sha256().digest_size :]
        content = with_odd_value(plain, chance)
        place.write_bytes(gzip.compress(MAGIC + sha256(content).digest() + content))
    elif kind in ("link", "hard link", "pipe", "device", "folder"):
        place.unlink()
        elsewhere.write_bytes(sound)
        if kind == "link":
            place.symlink_to(elsewhere.name)
        elif kind == "hard link":
            place.hardlink_to(elsewhere)
        elif kind == "pipe":
            os.mkfifo(place)
        elif kind == "device":
            place.symlink_to("/dev/zero")
        else:
            place.mkdir()
    elif kind == "giant":
        with place.open("r+b") as file:
            file.truncate(1 << 42)
    elif kind == "open to others":
        place.chmod(chance.choice((0o666, 0o620)))
    elif kind == "open folder":
        place.parent.chmod(0o777)
    elif kind == "another user's":
        os.chown(place, _OTHER_USER, _OTHER_USER)
    else:
        os.chown(place.parent, _OTHER_USER, _OTHER_USER)
    return kind


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance = random.Random(seed)
    truth = [Collective((k * MS, k * MS + 3000), 1 * MS, elems=250_000) for k in range(3)]
    traces = [trace.write(folder / "run") for trace in traces_of(2, truth)]
    os.environ["XDG_CACHE_HOME"] = str(folder / "home")
    default_sizes(pytest.MonkeyPatch(), cache_bytes=0)
    place = Cache().place(traces[0])
    expected = called("table", "calls", "-f", "csv", "--no-cache", folder / "run")[1]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(tries):
        for hidden in (place.parent, folder / "home"):
            with suppress(FileNotFoundError):
                shutil.rmtree(hidden)
        Cache().read(TraceInput(traces[0]), ReadOptions())
        sound = place.read_bytes()
        kind = planted(place, sound, chance)
        changed = kind != "bytes" or place.read_bytes() != sound
        code, out, err = called("table", "calls", "-f", "csv", "--workers", "1", folder / "run")
        counts[kind] += 1
        told = "its cache" in err
        if code != 0 or (kind != "value" and out != expected):
            wrong.append(f"try {number}, {kind}: exit code {code}, {err[-300:]}")
        elif changed and kind != "value" and not told:
            wrong.append(f"try {number}, {kind}: believed, or not said")
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
