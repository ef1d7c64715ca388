"""Link clocks that no collective links, by messages in both directions, as NTP does.

Whatever the protocol, no message is received before its sender has begun to send it. So messages in both directions
bound an offset on both sides, which is a proof. Messages in one direction leave it open on the other side. Collectives
with a root are messages, too: the root of a broadcast or scatter sends to all others, and these send to the root of a
reduce or gather. Definitions: docs/metrics/clocks.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...core.arrays import Flags, Floats, Ints
from .frame import LARGEST_DRIFT, ClockFrame

_FROM_ROOT, _TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")


class Sent(NamedTuple):
    """Messages: when the sender's call began and the receiver's ended, in ns, each by its own clock; (messages,).

    `source` and `target` are clocks.
    """

    source: Ints
    target: Ints
    sent_ns: Ints
    received_ns: Ints


@dataclass(frozen=True)
class Bounded:
    """Clocks after linking by messages, and how wrong each may be, in ns; all by clock.

    `linked` are the clocks that messages have linked, `one_side` those that messages bound on one side only.
    """

    frame: ClockFrame
    uncertainty_ns: Ints
    linked: Flags
    one_side: Flags


def messages_of(calls: pd.DataFrame, matches: pd.DataFrame, ranks: Ints) -> Sent:
    """The messages in sends and receives, and in collectives with a root, that are matched for certain.

    `calls` and `matches` are the tables of these names; `ranks`, ascending, has the rank of each clock.
    """
    kinds = ["send", "recv", *_FROM_ROOT, *_TO_ROOT]
    usable = calls.loc[calls["collective"].isin(kinds), ["call_id", "rank", "collective", "root", "start_ns", "dur_ns"]]
    table = usable.merge(matches.loc[matches["certain"].fillna(False), ["call_id", "collective_id"]], on="call_id")
    is_root = (table["rank"] == table["root"]).fillna(False)
    pair = table["collective"].isin(["send", "recv"])
    sends = (table["collective"] == "send") | (table["collective"].isin(_FROM_ROOT) & is_root)
    sends |= table["collective"].isin(_TO_ROOT) & ~is_root & table["root"].notna()
    rooted = table["root"].notna() | pair
    both = table[sends & rooted].merge(table[~sends & rooted], on="collective_id", suffixes=("", "_there"))
    both = both[both["rank"] != both["rank_there"]]
    return Sent(
        np.searchsorted(ranks, both["rank"]),
        np.searchsorted(ranks, both["rank_there"]),
        both["start_ns"].to_numpy(dtype=np.int64),
        (both["start_ns_there"] + both["dur_ns_there"]).to_numpy(dtype=np.int64),
    )


def bounded(frame: ClockFrame, uncertainty_ns: Ints, messages: Sent) -> Bounded:
    """Link the components of clocks that messages in both directions bound, those with the closest bounds first.

    `uncertainty_ns` is how wrong each clock of the frame may be, against the first one of its component.
    """
    linked = np.zeros(len(uncertainty_ns), dtype=bool)
    uncertainty = uncertainty_ns.copy()
    while True:
        links = _links(frame, uncertainty, messages)
        both = [link for link in links if np.isfinite(link.half_ns)]
        if not both:
            break
        link = min(both, key=lambda each: each.half_ns)
        first = frame.firsts
        is_moved = frame.component == link.component
        frame = replace(
            frame,
            offset_ns=frame.offset_ns + np.where(is_moved, link.level_ns, 0.0),
            component=np.where(is_moved, link.base, frame.component),
        )
        inside = np.where(first == np.arange(len(first)), 0, uncertainty)
        uncertainty = np.where(is_moved, inside + round(link.half_ns), uncertainty)
        linked |= is_moved
    one_side = np.isin(frame.component, [part for link in links for part in (link.component, link.base)])
    return Bounded(frame, uncertainty, linked, one_side)


class _Link(NamedTuple):
    """How far a component of clocks is ahead of another, and how wrong that may be, in ns: inf if one side is open."""

    component: int
    base: int
    level_ns: float
    half_ns: float


def _links(frame: ClockFrame, uncertainty_ns: Ints, messages: Sent) -> list[_Link]:
    """What messages say about each pair of components that exchange some; the later one is to be moved."""
    if not len(messages.source):
        return []
    place = frame.firsts
    ours, theirs = place[messages.source], place[messages.target]
    links = []
    for base, other in np.unique(np.sort(np.column_stack([ours, theirs]), axis=1), axis=0).tolist():
        if base == other:
            continue
        there = (ours == base) & (theirs == other)
        back = (ours == other) & (theirs == base)
        either = there | back
        sent, received = (
            frame.common(clock[either], times[either])
            for clock, times in ((messages.source, messages.sent_ns), (messages.target, messages.received_ns))
        )
        there = there[either]
        at = np.where(there, sent, received)  # on the clocks of the base
        apart: Floats = np.where(there, received - sent, sent - received).astype(np.float64)
        # An offset in the middle of the window: the clocks may drift from there on.
        drifted = LARGEST_DRIFT * np.abs(at - (int(at.min()) + int(at.max())) // 2)
        high = (apart + drifted)[there].min(initial=np.inf)
        low = (apart - drifted)[~there].max(initial=-np.inf)
        clocks = np.unique(np.concatenate([messages.source[either], messages.target[either]]))
        # Where bounds contradict each other, a clock has drifted or a match is wrong: it may be off by all of that.
        half = abs(high - low) / 2 if high >= low else low - high
        total = half + drifted.max() + 2 * float(uncertainty_ns[clocks].max())
        level = (low + high) / 2 if np.isfinite(total) else 0.0
        links.append(_Link(int(frame.component[other]), int(frame.component[base]), level, total))
    return links
