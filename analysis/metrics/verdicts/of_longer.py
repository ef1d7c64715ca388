"""Why steps are longer than others, in words: what holds most of the part that is longer."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...core.kinds import COMPUTE, MEMORY
from ..device.longer import Longer
from ..functions import quoted
from .culprits import length, short

_MOST = 0.5  # of what a step takes longer: a name with less is not said
_WORK = {"compute_alone_ns": COMPUTE, "overlap_ns": COMPUTE, "exposed_memory_ns": MEMORY}
_IDLE = {
    "gc_ns": "Python collected garbage for {} of it",
    "data_ns": "their CPUs waited for a batch for {}",
    "compile_ns": "their CPUs compiled for {}",
}
"""Parts of idle time that say more than the operator or annotation they are in."""
_OUTSIDE = "their CPUs were in Python outside of operators for {}"


def longer_in_words(
    longer: Callable[[], Longer | None], part: str, more_ns: float, long: Collection[int], usual: Collection[int]
) -> str:
    """What holds most of the time by which a part of `long` steps is longer, as a clause; empty if nothing does.

    `; their CPUs waited for a batch for 134.4 ms`, or `, mostly in `Memcpy DtoH`, inside `save``. `part` is one of
    STEP_PARTS, on the mean `more_ns` longer than in `usual` steps.
    """
    known = longer() if part == "idle_ns" or part in _WORK else None
    if known is None:
        return ""
    if part == "idle_ns":
        return _of_idle(known, more_ns, long, usual)
    most, within = known.work(_WORK[part], long, usual)
    named = f" in `{short(most.name)}`" if most is not None and most.ns >= _MOST * more_ns else ""
    inside = f" inside `{within.within or within.name}`" if within is not None and within.ns >= _MOST * more_ns else ""
    return f", mostly{named}{',' if named and inside else ''}{inside}" if named or inside else ""


def _of_idle(longer: Longer, more_ns: float, long: Collection[int], usual: Collection[int]) -> str:
    functions = longer.functions(long)
    for part, said in _IDLE.items():
        if (ns := longer.idle_ns(part, long, usual)) >= _MOST * more_ns:
            within = f", in {quoted(functions[part].name)}" if part in functions else ""
            return f"; {said.format(length(ns / 1e6))}{within}"
    held = longer.idle_in(long, usual)
    if held is not None and held.ns >= _MOST * more_ns:
        within = f", inside `{held.within}`" if held.within is not None else ""
        return f"; for {length(held.ns / 1e6)} their CPUs were in `{held.name}`{within}"
    if (ns := longer.idle_ns("outside_ns", long, usual)) >= _MOST * more_ns:
        within = f", in {quoted(functions['outside_ns'].name)}" if "outside_ns" in functions else ""
        return f"; {_OUTSIDE.format(length(ns / 1e6))}{within}"
    return ""
