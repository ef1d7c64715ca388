"""The last rung: pair sends from one CPU with receives on another, where steps do not say which belong together.

On a CPU a send may end long before it is received, so neither coinciding ends nor overlaps identify a pair. The order
does: both sides issue their messages in the same order (`timelines/message_order`).
"""

from __future__ import annotations

import numpy as np

from ...core.arrays import Ints
from ..clocks.ends import COINCIDE_NS
from ..timelines.message_order import aligned_messages
from .state import BY_ORDER, REPEATS, SAME_CLOCK_SLACK_NS, Decision, State, rows_by_key
from .times import placed_within

_GAPS = "calls are missing in between, and on CPUs their times do not tell where"


def by_message_order(state: State, rows: Ints) -> Decision:
    """Pair the sends of one rank with the receives of another, both on CPUs.

    `rows` are their calls, in ascending order and undecided. If sends and receives do not align, as messages are
    missing in between, times give the best guess, and nothing is certain.
    """
    ordered = rows[np.argsort(state.calls.order[rows], kind="stable")]
    sends, received = ordered[state.sent[ordered]], ordered[~state.sent[ordered]]
    pairs: list[tuple[Ints, Ints, bool]] = []
    for of_receiver in rows_by_key(state.member, received).values():
        of_receiver = of_receiver[np.argsort(state.calls.order[of_receiver], kind="stable")]
        pair = _aligned(state, sends, of_receiver) if len(sends) else None
        if len(sends) and pair is None:
            return placed_within(state, rows)[0]._replace(certain=False, note=_GAPS)
        if pair is not None:
            pairs.append(pair)
            sends = sends[~np.isin(sends, pair[0])]
    number, certain, note = np.arange(len(rows)), state.certain[rows], state.note[rows]
    for send, receive, sure in pairs:
        send, receive = np.searchsorted(rows, send), np.searchsorted(rows, receive)
        number[receive] = number[send]
        for side in (send, receive):
            certain[side], note[side] = sure, None if sure else REPEATS
    return state.together(rows, number, BY_ORDER)._replace(certain=certain, note=note)


def _aligned(state: State, sends: Ints, received: Ints) -> tuple[Ints, Ints, bool] | None:
    """Rows of sends, rows of their receives, and whether the pairing is certain; None if the two do not align."""
    here, there = int(state.clock[sends[0]]), int(state.clock[received[0]])
    component = state.clocks.frame.component
    comparable = component[here] == component[there]
    slack = SAME_CLOCK_SLACK_NS if state.clocks.hosts[here] == state.clocks.hosts[there] else COINCIDE_NS
    send, receive = state.shown(sends), state.shown(received)
    aligned = aligned_messages(send, receive, state.compatible, slack if comparable else None)
    if aligned is None:
        return None
    low, high = max(0, -aligned.shift), min(len(received), len(sends) - aligned.shift)
    return send.row[low + aligned.shift : high + aligned.shift], receive.row[low:high], aligned.certain
