"""The last rung: pair sends from one CPU with receives on another, where steps do not say which belong together.

On a CPU a send may end long before it is received, so neither ends nor overlaps identify a pair. The order does: both
sides go through their messages in the same order.
"""

from __future__ import annotations

import numpy as np

from ..clocks.ends import COINCIDE_NS
from ..clocks.frame import Ints
from ..timelines.turns import turn
from .state import BY_ORDER, REPEATS, SAME_CLOCK_SLACK_NS, Decision, State, rows_by_key
from .times import laid_within

_GAPS = "calls are missing in between, and on CPUs their times do not tell where"


def by_turn(state: State, rows: Ints) -> Decision:
    """Pair the sends from one rank to another with its receives, both on CPUs; `rows` are undecided, and ascending."""
    ordered = rows[np.argsort(state.calls.order[rows], kind="stable")]
    sends, received = ordered[state.sent[ordered]], ordered[~state.sent[ordered]]
    pairs: list[tuple[Ints, Ints, bool]] = []
    for own in rows_by_key(state.member, received).values():
        own = own[np.argsort(state.calls.order[own], kind="stable")]
        pair = _turn(state, sends, own) if len(sends) else None
        if len(sends) and pair is None:
            return laid_within(state, rows)[0]._replace(certain=False, note=_GAPS)
        if pair is not None:
            pairs.append(pair)
            sends = sends[~np.isin(sends, pair[0])]
    number, certain, note = np.arange(len(rows)), state.certain[rows], state.note[rows]
    for given, taken, sure in pairs:
        given, taken = np.searchsorted(rows, given), np.searchsorted(rows, taken)
        number[taken] = number[given]
        for side in (given, taken):
            certain[side], note[side] = sure, None if sure else REPEATS
    return state.together(rows, number, BY_ORDER)._replace(certain=certain, note=note)


def _turn(state: State, sends: Ints, received: Ints) -> tuple[Ints, Ints, bool] | None:
    """Sends and their receives, and whether that is certain; None if the two do not fit."""
    here, there = int(state.clock[sends[0]]), int(state.clock[received[0]])
    component = state.clocks.frame.component
    comparable = component[here] == component[there]
    slack = SAME_CLOCK_SLACK_NS if state.clocks.hosts[here] == state.clocks.hosts[there] else COINCIDE_NS
    given, taken = state.shown(sends), state.shown(received)
    aligned = turn(given, taken, state.compatible, slack if comparable else None)
    if aligned is None:
        return None
    low, high = max(0, -aligned.shift), min(len(received), len(sends) - aligned.shift)
    return given.row[low + aligned.shift : high + aligned.shift], taken.row[low:high], aligned.certain
