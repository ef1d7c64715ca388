"""Pairs of sends from one CPU with receives on another, where steps do not tell which belong together."""

from __future__ import annotations

import numpy as np

from ..clocks.ends import COINCIDE_NS
from ..clocks.frame import Ints
from ..timelines.turns import turn
from .state import BY_ORDER, REPEATS, SAME_CLOCK_SLACK_NS, State, rows_by_key
from .times import lay_within

_GAPS = "calls are missing in between, and on CPUs their times do not tell where"


def by_turn(state: State, rows: Ints) -> None:
    """Pair the sends from one rank to another with its receives, both on CPUs."""
    ordered = rows[np.argsort(state.calls.order[rows], kind="stable")]
    sends, received = ordered[state.sent[ordered]], ordered[~state.sent[ordered]]
    laid: list[tuple[Ints, Ints, bool]] = []
    for own in rows_by_key(state.member, received).values():
        own = own[np.argsort(state.calls.order[own], kind="stable")]
        found = _turn(state, sends, own) if len(sends) else None
        if len(sends) and found is None:
            lay_within(state, rows)
            state.certain[rows], state.note[rows] = False, _GAPS
            return
        if found is not None:
            laid.append(found)
            sends = sends[~np.isin(sends, found[0])]
    state.collective[rows], state.rung[rows] = state.new(len(rows)), BY_ORDER
    for given, taken, certain in laid:
        state.collective[taken] = state.collective[given]
        both = np.concatenate([given, taken])
        state.certain[both], state.note[both] = certain, None if certain else REPEATS


def _turn(state: State, sends: Ints, received: Ints) -> tuple[Ints, Ints, bool] | None:
    """Sends and their receives, and whether that is certain; None if the two do not fit."""
    here, there = int(state.clock[sends[0]]), int(state.clock[received[0]])
    comparable = state.frame.component[here] == state.frame.component[there]
    slack = SAME_CLOCK_SLACK_NS if state.hosts[here] == state.hosts[there] else COINCIDE_NS
    given, taken = state.shown(sends), state.shown(received)
    found = turn(given, taken, state.compatible, slack if comparable else None)
    if found is None:
        return None
    low, high = max(0, -found.shift), min(len(received), len(sends) - found.shift)
    return given.row[low + found.shift : high + found.shift], taken.row[low:high], found.certain
