"""Find the NVTX ranges that are training steps.

Nothing in an export says so. Steps are ranges `ProfilerStep#N`; otherwise ranges whose name is one of the words below,
with a number or without, that follow each other on one thread which launches something. Of several such words the one
counts that covers most time, so that an iteration counts rather than the micro-batches in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from ...core import markers
from .ranges import Range

_WORD = re.compile(
    r"(?P<family>(?:(?:global|train|training|profiler|optimi[sz]ation)[ _:.-]?)?"
    r"(?:step|iteration|iter|mini[ _-]?batch|batch))"
    r"[ _:#=(\[-]*(?P<number>[0-9]{1,15})?[)\]]?",
    re.IGNORECASE,
)
_LEAST = 2
"""So many ranges of a word are steps; a single one may be anything."""


def step_marks(ranges: Sequence[Range], launching: Collection[int]) -> tuple[list[Range], list[str]]:
    """The steps as ranges `ProfilerStep#N`, by start, and a note on the choice if it is not obvious.

    `launching` are the threads that launched something; none if that is not known.
    """
    numbered = [
        marked for marked in ranges if re.fullmatch(re.escape(markers.PROFILER_STEP) + "[0-9]{1,18}", marked.name)
    ]
    if numbered:
        return numbered, []
    families: dict[tuple[str, int], list[tuple[Range, int | None]]] = {}
    for marked in ranges:
        word = _WORD.fullmatch(marked.name.strip())
        if word and (marked.thread in launching or not launching):
            number = None if word["number"] is None else int(word["number"])
            families.setdefault((word["family"].lower(), marked.thread), []).append((marked, number))
    usable = [marks for marks in families.values() if len(marks) >= _LEAST and _follow_each_other(marks)]
    if not usable:
        return [], []
    marks = max(usable, key=lambda numbered: sum(marked.end - marked.start for marked, _ in numbered))
    numbers = [number for _, number in marks]
    known = [number for number in numbers if number is not None]
    are_numbered = len(known) == len(numbers) and all(a < b for a, b in pairwise(known))
    named = [
        marked._replace(name=f"{markers.PROFILER_STEP}{known[place] if are_numbered else place}")
        for place, (marked, _) in enumerate(marks)
    ]
    return named, list(_note(marks[0][0].name, are_numbered))


def _follow_each_other(marks: Sequence[tuple[Range, int | None]]) -> bool:
    return all(a.end <= b.start for (a, _), (b, _) in pairwise(marks))


def _note(name: str, are_numbered: bool) -> Iterator[str]:
    how = "with their numbers" if are_numbered else "numbered in their order"
    yield f"NVTX ranges such as {name[:60]!r} are taken for training steps, {how}"
