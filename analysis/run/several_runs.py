"""Tell runs apart whose files were found together: replicas of a serving engine, or engines for prefill and decode.

Each counts its ranks from 0. What tells them apart is a folder, their number of ranks, or a part of the files' names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.escaping import encodable, for_shell
from ..errors import RunFiles


class Claim(NamedTuple):
    """A file, the process that wrote it, and the rank and number of ranks that it claims."""

    path: Path
    process: Hashable
    rank: int
    world_size: int | None


def several_runs(claims: Sequence[Claim]) -> tuple[RunFiles, ...]:
    """The runs that these files are of, as few as can be; none if nothing tells them apart for sure.

    Each has a rank 0, and all ranks that others with as many ranks have, each from one process.
    """
    splits = [split for split in _splits(claims) if len(split) > 1 and _are_runs(list(split.values()), claims)]
    if not splits:
        return ()
    fewest = min(splits, key=len)
    every = [claim.path for claim in claims]
    paths = {name: tuple(claim.path for claim in own) for name, own in sorted(fewest.items())}
    return tuple(RunFiles(name, own, shell_words(own, every)) for name, own in paths.items())


def _splits(claims: Sequence[Claim]) -> Iterator[dict[str, list[Claim]]]:
    """Yield ways to split the files, each by name of the part: first those with names that say most."""
    folders = {claim.path.parent: encodable(claim.path.parent.name) for claim in claims}
    are_unlike = len(set(folders.values())) == len(folders)
    yield _split(claims, [folders[c.path.parent] if are_unlike else encodable(str(c.path.parent)) for c in claims])
    words = [re.split("[^A-Za-z0-9]+", encodable(claim.path.name)) for claim in claims]
    places = range(min(map(len, words), default=0))
    varying = [place for place in places if len({own[place] for own in words}) > 1]
    for chosen in (*([place] for place in varying), *(varying[:count] for count in range(2, len(varying) + 1))):
        # A number alone says little: `DP-1` instead of `1`.
        first = chosen[0] - (chosen[0] > 0 and all(own[chosen[0]].isdecimal() for own in words))
        yield _split(claims, ["-".join(own[place] for place in sorted({first, *chosen})) for own in words])
    yield _split(claims, ["" if c.world_size is None else f"{c.world_size} ranks" for c in claims])


def _split(claims: Sequence[Claim], names: Sequence[str]) -> dict[str, list[Claim]]:
    parts: dict[str, list[Claim]] = {}
    for claim, name in zip(claims, names, strict=True):
        parts.setdefault(name, []).append(claim)
    return parts


def _are_runs(parts: list[list[Claim]], claims: Sequence[Claim]) -> bool:
    """Whether each part is a run with a rank 0, as complete as others of its size, and no process is in two of them."""
    ranks_of: dict[int | None, set[int]] = {}
    for claim in claims:
        ranks_of.setdefault(claim.world_size, set()).add(claim.rank)
    for own in parts:
        sizes = {claim.world_size for claim in own}
        ranks = [rank for rank, _ in {(claim.rank, claim.process) for claim in own}]
        if len(sizes) > 1 or 0 not in ranks or len(set(ranks)) < len(ranks):
            return False
        if set(ranks) != ranks_of[own[0].world_size]:
            return False
    return sum(len({claim.process for claim in own}) for own in parts) == len({claim.process for claim in claims})


def shell_words(own: Sequence[Path], every: Sequence[Path]) -> str:
    """What a shell takes for these files and no others: their folder, their common beginning, or all of them."""
    folders = {path.parent for path in own}
    if len(folders) > 1:
        return " ".join(for_shell(str(path)) for path in own)
    folder, (around,) = for_shell(str(own[0].parent)), folders
    beside = [path.name for path in every if path.parent == around]
    names = [path.name for path in own]
    if len(beside) == len(own):
        return folder
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    begin = "".join(letters[0] for letters in alike)
    if len(names) > 1 and sum(name.startswith(begin) for name in beside) == len(names):
        return f"{folder}/{for_shell(begin)}*"
    listed = ",".join(map(for_shell, names))
    return f"{folder}/{listed}" if len(names) == 1 else f"{folder}/{{{listed}}}"
