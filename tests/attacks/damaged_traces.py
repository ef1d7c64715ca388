"""Plain trace files with damage, read beside a JSON parser: `python tests/attacks/damaged_traces.py --tries 5000`.

Holes of zeros and of other bytes, pieces lost, repeated or exchanged, and single bits flipped. Pieces begin and end
anywhere, at blocks of the disk, or where JSON has a boundary: behind a comma, before a bracket, within a key, a number,
blanks or a letter of several bytes. A file that is not JSON any more is refused, or what is read of it is what the
sound file holds: anything else is wrong, and a failure of this attack, whether a warning says so or not. A file that is
still JSON is nobody's to see.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from attacking import ROOT, run_attack

from commtrace.analysis.errors import AnalysisError
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import Extent
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes

SHARED = ROOT.parent / "shared" / "traces"
MOST_BYTES = 3_000_000  # larger ones take a second each
_PIECES = (512, 4 << 10, 4 << 10, 64 << 10)
BOUNDARIES = tuple(
    re.compile(place)
    for place in (
        rb"(?=\s*[\]}])",  # before a bracket that closes
        rb"[\[{]()",  # behind one that opens, and behind one that closes
        rb"[\]}]()",
        rb",\s*()",  # behind a comma, and the blanks that follow it
        rb",()",
        rb":()",
        rb'(?=")',  # before a string, behind, and in it
        rb'"()(?=[,:\s\]}])',
        rb"(?<=[A-Za-z_])(?=[A-Za-z_])",
        rb'[a-z]()[a-z ]+":',  # in a key
        rb"[0-9]()[0-9]",
        rb"\s()\s",
        rb"\n()",
        rb"[\xc2-\xf4]()[\x80-\xbf]",  # in a letter
    )
)
"""Where a piece may begin or end: the end of the group, or else of the match."""


def hole(text: bytearray, chance: random.Random) -> None:
    """A block of zeros, or of another byte, as a file system leaves it."""
    begin, end = _piece(text, chance)
    text[begin:end] = bytes([chance.choice((0, 0, 0xFF, 0x20, chance.randrange(256)))]) * (end - begin)


def lost(text: bytearray, chance: random.Random) -> None:
    """A block is not there."""
    begin, end = _piece(text, chance)
    del text[begin:end]


def repeated(text: bytearray, chance: random.Random) -> None:
    """A block is there twice or more often, at once or in place of another one."""
    begin, end = _piece(text, chance)
    if chance.random() < 0.5:
        text[end:end] = text[begin:end] * chance.choice((1, 1, 1, 2, 9))
        return
    at, behind = _piece(text, chance)
    text[at : chance.choice((at, at + end - begin, behind))] = text[begin:end]


def exchanged(text: bytearray, chance: random.Random) -> None:
    """Two blocks stand in each other's place."""
    (begin, end), (other, behind) = sorted((_piece(text, chance), _piece(text, chance)))
    if end <= other:
        text[begin:behind] = text[other:behind] + text[end:other] + text[begin:end]


def flipped(text: bytearray, chance: random.Random) -> None:
    """Some bits are others."""
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)


DAMAGE: tuple[Callable[[bytearray, random.Random], None], ...] = (hole, lost, repeated, exchanged, flipped)


def _piece(text: bytearray, chance: random.Random) -> tuple[int, int]:
    """Where a piece begins and ends: at blocks of the disk, anywhere, or at boundaries of JSON."""
    size = chance.choice(_PIECES)
    begin = chance.randrange(max(1, len(text) - size))
    kind = chance.random()
    if kind < 0.2:
        begin = begin // size * size
    if kind < 0.4:
        return begin, min(begin + size, len(text))
    end = _boundary(text, begin + size, chance)
    return min(_boundary(text, begin, chance), end), end


def _boundary(text: bytearray, near: int, chance: random.Random) -> int:
    """A place of a kind drawn by chance: the next one, or what was asked for where there is none."""
    place = chance.choice(BOUNDARIES).search(text, near)
    return min(near, len(text)) if place is None else place.end(place.lastindex or 0)


def is_json(text: bytes | str) -> bool:
    """Does Python take it?"""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def outcome(path: Path, *, details: bool, sizes: ReadSizes) -> tuple[bytes | None, int]:
    """All that is read of a file, None if it is refused; and how many bytes it says it did not understand."""
    try:
        found = read_kineto(path, ReadOptions(details=details, sizes=sizes))
    except AnalysisError:
        return None, 0
    told = found.extent.not_understood_bytes
    # How large a file is does not matter, nor how much of it was repaired, as long as nothing else is different.
    header = msgspec.structs.replace(found.header, repaired_bytes=0)
    sound = msgspec.structs.replace(found, header=header, extent=Extent(0), repaired_bytes=0)
    return msgspec.msgpack.encode(sound), 1 if told is None else told


def attack(
    folder: Path, tries: int, seed: int, sources: list[bytes] | None = None, sizes: ReadSizes = USUAL_SIZES
) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`; without `sources`, of the real traces at hand."""
    texts = real_traces() if sources is None else sources
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    path = folder / "rank0.pt.trace.json"
    sound: dict[tuple[int, bool], bytes] = {}
    for number in range(tries):
        which, details, damage = chance.randrange(len(texts)), chance.random() < 0.3, chance.choice(DAMAGE)
        if (which, details) not in sound:
            path.write_bytes(texts[which])
            read, told = outcome(path, details=details, sizes=sizes)
            assert read is not None
            assert told == 0
            sound[which, details] = read
        text = bytearray(texts[which])
        damage(text, chance)
        path.write_bytes(text)
        found, told = outcome(path, details=details, sizes=sizes)
        if found is None:
            what = "refused"
        elif found == sound[which, details]:
            what = "unharmed"
        elif is_json(text):
            what = "still JSON"
        elif told and damage is flipped and is_json(text.decode(errors="replace")):
            what = "JSON but for a letter in a name, and said"  # other bits were flipped, which nothing contradicts
        else:
            what = "wrong, and said" if told else "silently wrong"
            wrong.append(f"try {number} of seed {seed}: {what}, {damage.__name__} in source {which}, details={details}")
        counts[what] += 1
    return counts, wrong


def real_traces() -> list[bytes]:
    """The real traces at hand: those beside the project, and its own."""
    files = [*sorted(SHARED.rglob("*.json.gz")), *sorted((ROOT / "traces").rglob("*.json.gz"))]
    texts = (gzip.decompress(file.read_bytes()) for file in files)
    return [text for text in texts if len(text) <= MOST_BYTES]


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
