"""Pair the sends of one CPU with the receives of another one, by the order in which they were issued.

On a GPU both run until the data has moved, so their ends nearly coincide. On a CPU the end is when the program waited
for the operation, which may be much later, so ends close to each other prove nothing. The evidence is instead:

- both sides issue their messages in the same order, and sizes and dtypes agree;
- nothing is received before it is sent, where the clocks can be compared;
- a message is sent and received in the same training step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.arrays import Flags, Ints
from ..clocks.ends import COINCIDE_NS
from .entries import Entries, same_kind


class Alignment(NamedTuple):
    """Receive i belongs to send i + `shift`; `certain` if no other shift fits as well."""

    shift: int
    certain: bool


class _Candidate(NamedTuple):
    """A shift, how many messages it pairs, and what speaks against it.

    `contradictions` counts pairs of different steps, and messages without a partner in a step that both sides show.
    `apart_ns` is the median distance of the ends of a pair, inf where clocks cannot be compared.
    """

    shift: int
    pairs: int
    contradictions: int
    apart_ns: float


def aligned_messages(sends: Entries, receives: Entries, compatible: Flags, slack_ns: int | None) -> Alignment | None:
    """Align receives with sends, both in the order of issue; None if no shift pairs them without a contradiction.

    `slack_ns` is how wrong the two clocks may be, None where they cannot be compared: then times say nothing.
    """
    shifts = range(1 - len(receives), len(sends))
    candidates = [c for s in shifts if (c := _candidate(s, sends, receives, compatible, slack_ns)) is not None]
    if not candidates:
        return None
    if (sends.step >= 0).any() and (receives.step >= 0).any():
        candidates.sort(key=lambda c: (c.contradictions, -c.pairs, c.apart_ns))
        is_ambiguous = len(candidates) > 1 and candidates[1].contradictions == candidates[0].contradictions
    else:
        # Without steps only blocking calls help: they end when the data has moved, on both sides.
        candidates.sort(key=lambda c: (c.apart_ns > COINCIDE_NS, -c.pairs, c.apart_ns))
        is_ambiguous = len(candidates) > 1 and (
            candidates[0].apart_ns > COINCIDE_NS or candidates[1].apart_ns <= COINCIDE_NS
        )
    return Alignment(candidates[0].shift, certain=not is_ambiguous)


def _candidate(
    shift: int, sends: Entries, receives: Entries, compatible: Flags, slack_ns: int | None
) -> _Candidate | None:
    low, high = max(0, -shift), min(len(receives), len(sends) - shift)
    received, sent = slice(low, high), slice(low + shift, high + shift)
    ours, theirs = receives.take(received), sends.take(sent)
    if not same_kind(ours, theirs, compatible).all():
        return None
    if slack_ns is not None and (theirs.last_start > ours.end + slack_ns).any():
        return None
    apart = np.median(np.abs(ours.end - theirs.end)) if slack_ns is not None else np.inf
    known = (ours.step >= 0) & (theirs.step >= 0)
    differ = int((known & (ours.step != theirs.step)).sum())
    alone = _unpaired(sends.step, receives.step, sent) + _unpaired(receives.step, sends.step, received)
    return _Candidate(shift, high - low, differ + alone, float(apart))


def _unpaired(steps: Ints, steps_of_others: Ints, paired: slice) -> int:
    """Number of calls that are not `paired` although the other side shows their step; by the step of each call."""
    left = np.delete(steps, paired)
    return int(np.isin(left[left >= 0], steps_of_others).sum())
