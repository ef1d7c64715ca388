"""Plain trace files with damage, read beside a JSON parser: `python tests/attacks/damaged_traces.py --tries 5000`.

Holes of zeros and of other bytes, pieces lost, repeated or exchanged, and single bits flipped. A file that is not JSON
any more is refused, or what is read of it is what the sound file holds: anything else is silently wrong. A file that is
still JSON is nobody's to see.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from attacking import ROOT, run_attack

from analysis.errors import AnalysisError
from analysis.formats.kineto.reader import read_kineto
from analysis.recording.options import ReadOptions
from analysis.recording.recording import Extent

SHARED = ROOT.parent / "shared" / "traces"
MOST_BYTES = 3_000_000  # larger ones take a second each
_PIECES = (512, 4 << 10, 4 << 10, 64 << 10)


def hole(text: bytearray, chance: random.Random) -> None:
    """A block of zeros, or of another byte, as a file system leaves it."""
    size = chance.choice(_PIECES)
    at = _block(text, size, chance)
    text[at : at + size] = bytes([chance.choice((0, 0, 0xFF, 0x20, chance.randrange(256)))]) * len(text[at : at + size])


def lost(text: bytearray, chance: random.Random) -> None:
    """A block is not there."""
    size = chance.choice(_PIECES)
    at = _block(text, size, chance)
    del text[at : at + size]


def repeated(text: bytearray, chance: random.Random) -> None:
    """A block is there twice, at once or in place of another one."""
    size = chance.choice(_PIECES)
    at, other = _block(text, size, chance), _block(text, size, chance)
    text[other : other + chance.choice((0, size))] = text[at : at + size]


def exchanged(text: bytearray, chance: random.Random) -> None:
    """Two blocks stand in each other's place."""
    size = chance.choice(_PIECES)
    at, other = sorted((_block(text, size, chance), _block(text, size, chance)))
    if other - at >= size:
        text[at : at + size], text[other : other + size] = text[other : other + size], text[at : at + size]


def flipped(text: bytearray, chance: random.Random) -> None:
    """Some bits are others."""
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)


DAMAGE: tuple[Callable[[bytearray, random.Random], None], ...] = (hole, lost, repeated, exchanged, flipped)


def _block(text: bytearray, size: int, chance: random.Random) -> int:
    """Where a block begins: of the disk, or anywhere."""
    at = chance.randrange(max(1, len(text) - size))
    return at // size * size if chance.random() < 0.5 else at


def is_json(text: bytes) -> bool:
    """Does Python take it?"""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def outcome(path: Path, *, details: bool) -> tuple[bytes | None, int]:
    """All that is read of a file, None if it is refused; and how many bytes it says it did not understand."""
    try:
        found = read_kineto(path, ReadOptions(details=details))
    except AnalysisError:
        return None, 0
    told = found.extent.not_understood_bytes
    sound = Extent(0)  # how large a file is does not matter
    return msgspec.msgpack.encode(msgspec.structs.replace(found, extent=sound)), 1 if told is None else told


def attack(folder: Path, tries: int, seed: int, sources: list[bytes] | None = None) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; without `sources`, of the real traces at hand."""
    texts = real_traces() if sources is None else sources
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    path = folder / "rank0.pt.trace.json"
    sound: dict[tuple[int, bool], bytes] = {}
    for number in range(tries):
        which, details, damage = chance.randrange(len(texts)), chance.random() < 0.3, chance.choice(DAMAGE)
        if (which, details) not in sound:
            path.write_bytes(texts[which])
            read, told = outcome(path, details=details)
            assert read is not None
            assert told == 0
            sound[which, details] = read
        text = bytearray(texts[which])
        damage(text, chance)
        path.write_bytes(text)
        found, told = outcome(path, details=details)
        if found is None:
            what = "refused"
        elif found == sound[which, details]:
            what = "unharmed"
        elif told:
            what = "not understood in part, and said"
        elif is_json(text):
            what = "still JSON"
        else:
            what = "silently wrong"
            wrong.append(f"try {number} of seed {seed}: {damage.__name__} in source {which}, details={details}")
        counts[what] += 1
    return counts, wrong


def real_traces() -> list[bytes]:
    """The real traces at hand: those beside the project, and its own."""
    files = [*sorted(SHARED.rglob("*.json.gz")), *sorted((ROOT / "traces").rglob("*.json.gz"))]
    texts = (gzip.decompress(file.read_bytes()) for file in files)
    return [text for text in texts if len(text) <= MOST_BYTES]


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
