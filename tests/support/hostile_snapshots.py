"""Pickles that look like snapshots of torch's allocator and would import, call, or fill the memory."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allocator import MIB, Allocator, called, snapshot

_MARK = "@HERE@"
Maker = Callable[[random.Random, Path], bytes]


class Runs:
    """What a pickle of it would run."""

    def __init__(self, how: tuple[Any, ...]) -> None:
        self.how = how

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return self.how


class _Built:
    """Something whose pickle sets attributes, by BUILD."""

    def __init__(self) -> None:
        self.size = 1


def sound(chance: random.Random) -> dict[str, Any]:
    """A small snapshot with everything in it."""
    played = Allocator(expandable=chance.random() < 0.3)
    held: list[int] = []
    played.mark("nccl:all_reduce", "START")
    for number in range(chance.randrange(5, 30)):
        held.append(played.malloc(chance.randrange(1, 3 * MIB), frames=called("forward", number % 7)))
        if chance.random() < 0.4:
            played.free(held.pop(chance.randrange(len(held))))
    played.mark("nccl:all_reduce", "END")
    return snapshot(played)


def placed(chance: random.Random, value: Any) -> dict[str, Any]:
    """A snapshot with this value somewhere in it."""
    content = sound(chance)
    segment, entry = chance.choice(content["segments"]), chance.choice(content["device_traces"][0])
    block, mark = chance.choice(segment["blocks"]), content["external_annotations"][0]
    where = chance.choice([segment, entry, block, mark, content, content["allocator_settings"]])
    key = chance.choice(sorted(where))
    where[key] = value
    return content


def _touching(target: Path) -> tuple[Any, ...]:
    return os.system, (f"touch {target}",)


def _calls(chance: random.Random, target: Path) -> bytes:
    how = chance.choice([_touching(target), (eval, (f"open({str(target)!r}, 'w')",))])
    return pickle.dumps(placed(chance, Runs(how)), protocol=chance.randrange(6))


def _builds(chance: random.Random, target: Path) -> bytes:
    return pickle.dumps(placed(chance, chance.choice([_Built(), {1}, b"raw", 1j, range(3)])), chance.randrange(2, 6))


def _by_hand(chance: random.Random, target: Path) -> bytes:
    """The text at one place of a snapshot replaced by operations that call."""
    run = f"touch {target}".encode()
    short, text = bytes([len(run)]), b"\x8c" + bytes([len(_MARK)]) + _MARK.encode()
    operations = chance.choice([
        b"cos\nsystem\n(V%b\ntR" % run,
        b"(V%b\nios\nsystem\n" % run,
        b"(cos\nsystem\nV%b\no" % run,
        b"\x8c\x02os\x8c\x06system\x93\x8c%b%b\x85R" % (short, run),
        b"cposix\nsystem\n(V%b\nt\x81" % run,
        b"\x8c\x02os\x8c\x06system\x93\x8c%b%b\x85}\x92" % (short, run),
        b"\x82\x01", b"Pid\n", b"U\x03id\x00Q", b"\x97", b"\x98", b"}}b", b"C\x01a", b"\x8f", b"\x91",
    ])  # fmt: skip
    return pickle.dumps(placed(chance, _MARK), protocol=4).replace(text, operations, 1)


def _memo(chance: random.Random, target: Path) -> bytes:
    begin = b"\x80\x02}(X\x08\x00\x00\x00segments]"
    return begin + chance.choice([
        b"r" + struct.pack("<I", chance.randrange(1 << 30, 1 << 32)),
        b"p%d\n" % chance.randrange(1 << 30, 1 << 60),
        b"r\xff\xff\xff\x7f",
    ]) + b"u."  # fmt: skip


def _deep(chance: random.Random, target: Path) -> bytes:
    levels = chance.randrange(1_000, 20_000)
    begin = b"\x80\x04}(\x8c\x08segments"
    inner = chance.choice([b"]" * levels + b"a" * (levels - 1), b")" + b"\x85" * levels, b"}" * levels])
    return begin + inner + b"u."


def _huge(chance: random.Random, target: Path) -> bytes:
    begin = b"\x80\x04}(\x8c\x08segments"
    size = chance.randrange(1 << 33, 1 << 62)
    return begin + chance.choice([
        b"X\xff\xff\xff\xffab" , b"\x8d" + struct.pack("<Q", size) + b"ab",
        b"\x95" + struct.pack("<Q", size) + b"]", b"\x8b\xff\xff\xff\x7f" + bytes(9), b"\x8a\xff" + bytes(255),
        b"I" + b"9" * 5_000 + b"\n", b"L" + b"9" * 5_000 + b"L\n",
    ]) + b"u."  # fmt: skip


def _shared(chance: random.Random, target: Path) -> bytes:
    """A small file in which one list stands many times."""
    content = sound(chance)
    trace, count = content["device_traces"][0] * 40, chance.randrange(600, 900)
    what = chance.choice(["devices", "segments", "marks", "entries"])
    if what == "devices":
        content["device_traces"] = [trace] * count
    elif what == "segments":
        segment = {**content["segments"][0], "blocks": content["segments"][0]["blocks"] * 200}
        content["segments"] = [segment] * 600
    elif what == "marks":
        content["external_annotations"] = content["external_annotations"][:1] * 150_000
    else:
        content["device_traces"][0] = trace[:1] * 120_000
    return pickle.dumps(content, protocol=4)


def _cut(chance: random.Random, target: Path) -> bytes:
    whole = pickle.dumps(sound(chance), protocol=chance.randrange(6))
    return whole[: chance.randrange(3, len(whole))]


def _out_of_range(chance: random.Random, target: Path) -> bytes:
    content = sound(chance)
    entry, segment = chance.choice(content["device_traces"][0]), chance.choice(content["segments"])
    where, key = chance.choice([(entry, "size"), (segment, "total_size"), (segment, "device"), (entry, "action")])
    where[key] = chance.choice([1 << 63, -1, None, [1], "x" * 9]) if key != "action" else chance.choice([None, [1], {}])
    if key == "device":
        where[key] = chance.choice([-1, 1 << 40, [1]])
    return pickle.dumps(content, protocol=4)


HOSTILE: dict[str, Maker] = {
    "calls": _calls, "builds": _builds, "by hand": _by_hand, "memo": _memo, "deep": _deep, "huge": _huge,
    "shared": _shared, "cut off": _cut, "out of range": _out_of_range,
}  # fmt: skip
"""By sort: chance, and a file that must not come to be -> a pickle."""
