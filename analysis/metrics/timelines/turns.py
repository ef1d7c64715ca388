"""Pair sends and receives between CPUs: which receive takes which send.

On a GPU both run until the data has moved, so their ends nearly coincide. On a CPU the end is when the program waited
for the operation, which may be much later, so ends close to each other prove nothing. The evidence is instead:

- both sides go through their messages in the same order, and kinds, sizes and dtypes agree;
- nothing is received before it is sent, where the clocks are known;
- messages are sent and received in the same training step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..clocks.ends import COINCIDE_NS
from ..clocks.frame import Flags, Ints
from .entries import Entries, same_kind


class Turn(NamedTuple):
    """Receive i takes send i + `shift`; whether this is certain."""

    shift: int
    certain: bool


class _Candidate(NamedTuple):
    shift: int
    pairs: int
    unexplained: int
    apart_ns: float


def turn(sends: Entries, receives: Entries, compatible: Flags, slack_ns: int | None) -> Turn | None:
    """Align receives with sends, both in the order of issue; None unless they form one unbroken run.

    Times are compared only with a `slack_ns`: by how much the clocks of the two may be wrong.
    """
    shifts = range(1 - len(receives), len(sends))
    candidates = [c for s in shifts if (c := _candidate(s, sends, receives, compatible, slack_ns)) is not None]
    if not candidates:
        return None
    if (sends.step >= 0).any() and (receives.step >= 0).any():
        candidates.sort(key=lambda c: (c.unexplained, -c.pairs, c.apart_ns))
        rivalled = len(candidates) > 1 and candidates[1].unexplained == candidates[0].unexplained
    else:
        # Without steps only blocking calls help: they end when the data has moved, on both sides.
        candidates.sort(key=lambda c: (c.apart_ns > COINCIDE_NS, -c.pairs, c.apart_ns))
        rivalled = len(candidates) > 1 and (
            candidates[0].apart_ns > COINCIDE_NS or candidates[1].apart_ns <= COINCIDE_NS
        )
    return Turn(candidates[0].shift, certain=not rivalled)


def _candidate(
    shift: int, sends: Entries, receives: Entries, compatible: Flags, slack_ns: int | None
) -> _Candidate | None:
    low, high = max(0, -shift), min(len(receives), len(sends) - shift)
    taken, given = slice(low, high), slice(low + shift, high + shift)
    ours, theirs = receives.take(taken), sends.take(given)
    if not same_kind(ours, theirs, compatible).all():
        return None
    if slack_ns is not None and (theirs.last_start > ours.end + slack_ns).any():
        return None
    apart = np.median(np.abs(ours.end - theirs.end)) if slack_ns is not None else np.inf
    known = (ours.step >= 0) & (theirs.step >= 0)
    differ = int((known & (ours.step != theirs.step)).sum())
    alone = _shown(sends.step, receives.step, given) + _shown(receives.step, sends.step, taken)
    return _Candidate(shift, high - low, differ + alone, float(apart))


def _shown(positions: Ints, others: Ints, paired: slice) -> int:
    """Number of calls that stay unmatched although the other side shows their step."""
    left = np.delete(positions, paired)
    return int(np.isin(left[left >= 0], others).sum())
