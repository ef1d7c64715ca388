"""The same collective on every rank: which calls belong together, and by what right.

A ladder, best first: the id that NCCL gives all ranks of a collective; the sequence number within its process group;
the order within its process group, where every rank shows the same kinds, sizes and dtypes in the same order. Sends and
receives go by (source, destination, order). What does not fit stays alone and says why; nothing is shifted to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field

import pandas as pd

from .schema import MATCHES, Row, records

Group = tuple[Hashable, ...]


@dataclass
class _Matches:
    """The result being built."""

    rows: list[Row] = field(default_factory=list)
    collectives: int = 0

    def add(self, calls: Iterable[Row], matched_by: str, note: str | None = None) -> None:
        """One collective made of these calls."""
        for call in calls:
            self.rows.append({"call_id": call["call_id"], "collective_id": self.collectives, "matched_by": matched_by,
                              "note": note})  # fmt: skip
        self.collectives += 1

    def alone(self, calls: Iterable[Row], note: str) -> None:
        """Calls that could not be matched, each a collective of its own."""
        for call in calls:
            self.add([call], "none", note)


def matches(calls: pd.DataFrame) -> pd.DataFrame:
    """Which collective each call belongs to: one row per call, collectives numbered by first start."""
    result = _Matches()
    rest: dict[Group, list[Row]] = {}
    for call in records(calls):
        rest.setdefault(_group(call), []).append(call)
    for group in rest.values():
        group = _without_copies(group, result)
        for step in (_by_id("comms_id"), _by_id("seq"), _point_to_point, _by_order):
            group = step(group, result)
    table = MATCHES.frame(result.rows)
    starts = table.merge(calls[["call_id", "start_ns"]], on="call_id").groupby("collective_id")["start_ns"].min()
    number = {old: new for new, old in enumerate(starts.sort_values(kind="stable").index)}
    return table.assign(collective_id=table["collective_id"].map(number)).sort_values("call_id", ignore_index=True)


def _group(call: Row) -> Group:
    """Identity of a process group: its name alone is neither unique nor the same in every job."""
    return (call["process_group"], call["pg_ranks"])


def _is_point_to_point(call: Row) -> bool:
    return call["collective"] in ("send", "recv")


def _agree(calls: Iterable[Row]) -> bool:
    """Do kind, dtype and size not contradict each other? What a rank does not know contradicts nothing.

    Sizes of an all_to_all may differ: each rank knows its own part only.
    """
    listed = list(calls)
    uneven = any(call["collective"] == "all_to_all" for call in listed)
    keys = ("collective", "dtype", "group_size") + (() if uneven else ("size_bytes",))
    return all(len({call[key] for call in listed if call[key] is not None}) <= 1 for key in keys)


_TOO_MANY = "more ranks show it than its process group has; groups share the name, and their ranks are not known"


def _too_many(calls: Collection[Row]) -> bool:
    """Disjoint groups can share a name; only the list of ranks, or else their number, tells them apart."""
    return any(call["group_size"] is not None and len(calls) > call["group_size"] for call in calls)


def _by_id(key: str) -> Callable[[list[Row], _Matches], list[Row]]:
    """A step of the ladder: calls that carry `key` belong together if it is equal. Returns the calls without it."""

    def step(calls: list[Row], result: _Matches) -> list[Row]:
        found: dict[object, list[Row]] = {}
        others = []
        for call in calls:
            # The sequence number of sends and receives counts each rank's own, so it is not equal on both sides.
            if call[key] is None or (_is_point_to_point(call) and key == "seq"):
                others.append(call)
            else:
                found.setdefault(call[key], []).append(call)
        for value, together in found.items():
            ranks = [call["rank"] for call in together]
            if not _agree(together):
                result.alone(together, f"{key} {value} has other kinds or sizes on other ranks")
            elif len(set(ranks)) < len(ranks):
                result.alone(together, f"{key} {value} stands more than once on one rank")
            elif _too_many(together):
                result.alone(together, _TOO_MANY)
            else:
                _add_or_alone(together, key, result)
        return others

    return step


def _add_or_alone(together: list[Row], matched_by: str, result: _Matches) -> None:
    if len(together) > 1 or together[0]["group_size"] == 1:
        result.add(together, matched_by)
    else:
        result.alone(together, "no other rank shows it")


def _point_to_point(calls: list[Row], result: _Matches) -> list[Row]:
    """Sends and receives in order, per pair of source and destination. Returns the other calls."""
    pairs: dict[tuple[object, object], dict[str, list[Row]]] = {}
    others = []
    for call in _in_order(calls):
        if not _is_point_to_point(call):
            others.append(call)
        elif call["root"] is None:
            result.alone([call], "its peer is not known")
        else:
            ends = (call["rank"], call["root"]) if call["collective"] == "send" else (call["root"], call["rank"])
            pairs.setdefault(ends, {"send": [], "recv": []})[call["collective"]].append(call)
    for (source, target), sides in pairs.items():
        sends, receives = sides["send"], sides["recv"]
        if not sends or not receives:
            result.alone(sends + receives, f"no trace of the other side of {source} -> {target}")
        elif [s["size_bytes"] for s in sends] != [r["size_bytes"] for r in receives]:
            counts = f"{len(sends)} sends, {len(receives)} receives"
            result.alone(sends + receives, f"{source} -> {target}: {counts}, or sizes differ")
        else:
            for pair in zip(sends, receives, strict=True):
                result.add(pair, "order")
    return others


def _without_copies(calls: list[Row], result: _Matches) -> list[Row]:
    """Copies between GPUs have no counterpart in another process."""
    result.alone([c for c in calls if c["collective"] == "peer_copy"], "a copy from one GPU to another, one rank's own")
    return [c for c in calls if c["collective"] != "peer_copy"]


def _in_order(calls: list[Row]) -> list[Row]:
    """As the CPU issued them; on gloo two collectives of a group may start in another order."""
    known = all(call["issue_ns"] is not None for call in calls)
    return sorted(calls, key=lambda call: (call["issue_ns"] if known else call["start_ns"], call["start_ns"]))


def _by_order(calls: list[Row], result: _Matches) -> list[Row]:
    """The k-th calls of all ranks belong together, if all ranks show the same sequence. Returns nothing left."""
    # What was enqueued before the window differs from rank to rank, and carries no metadata.
    for before in (False, True):
        part = [call for call in calls if (call["issue_ns"] is None) == before]
        _same_sequence(part, result)
    return []


def _same_sequence(calls: list[Row], result: _Matches) -> None:
    by_rank: dict[int, list[Row]] = {}
    for call in calls:
        by_rank.setdefault(call["rank"], []).append(call)
    sequences = [_in_order(by_rank[rank]) for rank in sorted(by_rank)]
    if len(sequences) < 2:
        for sequence in sequences:
            for call in sequence:
                _add_or_alone([call], "order", result)
        return
    counts = {rank: len(own) for rank, own in sorted(by_rank.items())}
    if len(set(counts.values())) > 1:
        result.alone(calls, f"ranks show different numbers of calls: {_listed(counts)}")
        return
    together = list(zip(*sequences, strict=True))
    if any(_too_many(position) for position in together):
        result.alone(calls, _TOO_MANY)
        return
    if not all(_agree(position) for position in together):
        result.alone(calls, "ranks show other kinds or sizes at the same place in order")
        return
    for position in together:
        result.add(position, "order")


def _listed(counts: dict[int, int]) -> str:
    shown = [f"{count} on rank {rank}" for rank, count in list(counts.items())[:4]]
    return ", ".join(shown) + (", ..." if len(counts) > 4 else "")
