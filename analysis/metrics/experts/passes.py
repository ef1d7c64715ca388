"""Passes through experts: tokens go to the ranks of their experts, are computed there, and come back.

An all_to_all that takes tokens to experts is a dispatch, and the one that brings them back its combine: it sends to
each rank as many rows as came from there. What does so with attention in between is parallelism over sequences, and
what does so without sizes or counts may be anything. Definitions: docs/metrics/experts.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import gcd
from typing import Any

import pandas as pd

from ....common.wording import ranks_in_words
from ...core.schema import Row, Schema, records
from ...core.tables.columns import GROUP, PG_RANKS, RANK, STEP_OF_CALL
from .exchanges import BARRIER

PASSES = Schema("expert_passes", "pass of a rank through the experts of a layer, forward or backward", {
    "rank": RANK,
    "step": STEP_OF_CALL,
    "layer": ("int64", "number of the layer in the step, from 0"),
    "is_backward": ("boolean", "whether it is of the backward pass, or recomputed in it"),
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "dispatch_id": ("int64", "collective_id of the all_to_all to the experts"),
    "combine_id": ("int64", "collective_id of the all_to_all back"),
    "sent_tokens": ("Int64", "rows that this rank sends to experts; NA if not recorded"),
    "received_tokens": ("Int64", "rows that its experts get"),
    "received_elems": ("Int64", "elements of these"),
    "expert_ns": ("Int64", "how long its device computes between both; NA if that is of two batches in turns"),
    "wait_dispatch_ns": ("Int64", "waiting in the first, and in exchanges of counts before it; NA if not split"),
    "wait_combine_ns": ("Int64", "waiting in the second"),
    "missing": ("string", "ranks of the group that are not in it, by number; NA if none is"),
})  # fmt: skip

_NARROW = 8
"""An exchange whose rows are this much narrower than the widest of its group is of scales, weights or the like."""
_WHOLE_NUMBERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
"""Counts and indices. Bytes may be tokens of 8-bit floats."""
_DISPATCHES, _COMBINES = (re.compile(rf"(?<![a-z]){word}|{word.capitalize()}") for word in ("dispatch", "combine"))
_OF_EXPERTS, _OF_SEQUENCES = {"ep", "etp", "edp"}, {"cp", "sp"}
_NOTIFIES = re.compile(r"notify")
_NUMBER = re.compile(r"[0-9]+")
_CUT = "..."
"""torch writes the first 30 entries of a list."""


@dataclass(eq=False)
class _Call:
    """An exchange of one rank, with what is known of the collective that it belongs to."""

    row: Row
    sent: tuple[int, ...] | None
    got: tuple[int, ...] | None
    wait_ns: int | None
    way: str = ""
    is_wide: bool = True

    @property
    def is_counts(self) -> bool:
        return self.row["collective"] == BARRIER or self.row["dtype"] in _WHOLE_NUMBERS

    @property
    def is_other(self) -> bool:
        """Whether it is no exchange for experts: parameters that are gathered, barriers of others than DeepEP."""
        if self.row["collective"] == BARRIER:
            return _NOTIFIES.search(self.row["name"]) is None
        return self.row["collective"] != "all_to_all" and not self.is_counts

    @property
    def group(self) -> tuple[Any, ...]:
        """What its group is called, and its ranks; DeepEP's have neither."""
        return self.row["process_group"], self.row["pg_ranks"], self.way != ""

    @property
    def is_uneven(self) -> bool:
        return any(len(set(split)) > 1 for split in (self.sent, self.got) if split) or (
            self.row["in_elems"] != self.row["out_elems"]
        )

    def comes_back_in(self, other: _Call) -> bool:
        """Whether the other one takes back what this one brought."""
        if self.row["is_backward"] != other.row["is_backward"]:
            return False
        if None not in (self.sent, self.got, other.sent, other.got):
            return self.sent == other.got and self.got == other.sent
        here, there = ((each.row["in_elems"], each.row["out_elems"]) for each in (self, other))
        return None in (*here, *there) or here == there[::-1]


@dataclass(eq=False)
class _Pass:
    """A dispatch and its combine, and what else was exchanged for them."""

    dispatch: _Call
    combine: _Call
    before: list[_Call] = field(default_factory=list)
    after: list[_Call] = field(default_factory=list)
    layer: int = -1
    is_backward: bool = False
    in_turns: bool = False

    @property
    def has_counts(self) -> bool:
        """Whether ranks of its group told each other before how many rows will come."""
        own = (call for call in self.before if call.is_counts and call.row["collective"] == "all_to_all")
        return any(call.group == self.dispatch.group for call in own)

    @property
    def expert_ns(self) -> int:
        until = min(call.row["computed_by_start_ns"] for call in (self.combine, *self.after))
        since = max(call.row["computed_by_end_ns"] for call in (self.dispatch, *self.before))
        return max(int(until - since), 0)

    @property
    def attends(self) -> bool:
        return bool(self.combine.row["attended_by_start"] > self.dispatch.row["attended_by_end"])


def passes_of(
    exchanges: pd.DataFrame,
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    collectives: pd.DataFrame,
    members: pd.DataFrame,
    groups: pd.DataFrame,
) -> pd.DataFrame:
    """One row of `PASSES` per pass of a rank through experts, by rank and time.

    `exchanges` are from `exchanges_of`, the others are the tables of a run.
    """
    complete = set(collectives["collective_id"][collectives["complete"].fillna(False)].tolist())
    of_ranks = _calls_of_ranks(exchanges, calls, matches, members)
    _tell_widths([call for own in of_ranks.values() for call in own])
    found = {key: _paired(own) for key, own in of_ranks.items()}
    believed = _of_experts([each for own in found.values() for each in own], _described(groups))
    found = {key: [each for each in own if each.dispatch.group in believed] for key, own in found.items()}
    for own in found.values():
        _number_layers(own)
    _agree_on_layers(found)
    missing = _missing(found, calls, matches, complete)
    return PASSES.frame(
        _row(each, missing) for key in sorted(found, key=_in_order) for each in found[key] if each.layer >= 0
    )


def _in_order(key: tuple[int, int, int | None]) -> tuple[int, int, int]:
    rank, cycle, step = key
    return rank, cycle, -1 if step is None else step


def _calls_of_ranks(
    exchanges: pd.DataFrame, calls: pd.DataFrame, matches: pd.DataFrame, members: pd.DataFrame
) -> dict[tuple[int, int, int | None], list[_Call]]:
    """The exchanges of each rank, cycle and step, in order; only of steps, if any is marked."""
    columns = ["call_id", "name", "collective", "process_group", "pg_ranks", "dtype", "in_elems"]
    known = exchanges.merge(calls[[*columns, "out_elems", "in_split", "out_split"]], on="call_id")
    known = known.merge(matches[["call_id", "collective_id"]], on="call_id")
    known = known.merge(members[["call_id", "wait_ns"]].drop_duplicates("call_id"), on="call_id", how="left")
    known = known.sort_values(["rank", "cycle", "start_ns"], kind="stable")
    if known["step"].notna().any():
        known = known[known["step"].notna()]
    found: dict[tuple[int, int, int | None], list[_Call]] = defaultdict(list)
    for row in records(known):
        way = "to" if _DISPATCHES.search(row["name"]) else "back" if _COMBINES.search(row["name"]) else ""
        call = _Call(row, _split(row["in_split"]), _split(row["out_split"]), row["wait_ns"], way)
        if not call.is_other:
            found[row["rank"], row["cycle"], row["step"]].append(call)
    return found


def _split(text: str | None) -> tuple[int, ...] | None:
    """The rows to or from each rank; None if they are not recorded, or not all of them."""
    if not text or _CUT in text:
        return None
    return tuple(map(int, _NUMBER.findall(text))) or None


def _tell_widths(calls: Iterable[_Call]) -> None:
    """Find out which exchanges are narrow: by elements per row, where rows are recorded, else by elements."""
    of_group: dict[tuple[Any, ...], list[_Call]] = defaultdict(list)
    for call in calls:
        if not call.is_counts:
            of_group[call.group].append(call)
    for own in of_group.values():
        width: dict[int, int] = {}
        for call in own:
            for split, elems in ((call.sent, call.row["in_elems"]), (call.got, call.row["out_elems"])):
                if split and sum(split) and elems:
                    width[call.row["collective_id"]] = elems // sum(split)
        elems_of: dict[int, int] = defaultdict(int)
        for call in own:
            number = call.row["collective_id"]
            elems_of[number] = max(elems_of[number], call.row["in_elems"] or 0, call.row["out_elems"] or 0)
        known = width if len(width) == len(elems_of) else elems_of
        widest = max(known.values())
        for call in own:
            call.is_wide = _NARROW * known[call.row["collective_id"]] >= widest


def _paired(calls: Sequence[_Call]) -> list[_Pass]:
    """The passes of one rank in one step, by their beginning."""
    open_to: dict[tuple[Any, ...], list[_Call]] = defaultdict(list)
    found: list[_Pass] = []
    counted = set[tuple[Any, ...]]()
    for call in calls:
        if call.is_counts:
            counted |= {call.group} if call.row["collective"] == "all_to_all" else set()
            continue
        if not call.is_wide:
            continue
        waiting = open_to[call.group]
        # Counts are exchanged for what goes to experts, never for what comes back.
        goes = call.way == "to" or (call.group in counted and call.way == "")
        first = None if goes else next((each for each in waiting if each.comes_back_in(call)), None)
        if first is not None:
            waiting.remove(first)
            found.append(_Pass(first, call))
        elif call.way != "back":
            # What never comes back is no dispatch. Of another pass than this one, nothing comes back any more.
            waiting[:] = [each for each in waiting if each.row["is_backward"] == call.row["is_backward"]]
            waiting.append(call)
        counted.discard(call.group)
    found.sort(key=lambda each: each.dispatch.row["start_ns"])
    for one, other in pairwise(found):
        if other.dispatch.row["start_ns"] < one.combine.row["start_ns"]:
            one.in_turns = other.in_turns = True
    _give_beside(calls, found)
    return found


def _give_beside(calls: Sequence[_Call], found: Sequence[_Pass]) -> None:
    """Let each exchange of counts or of narrow rows belong to a dispatch or combine.

    Counts announce what is exchanged next. Scales and weights belong to the wide exchange before or after them,
    whichever has less compute in between.
    """
    ends = {id(each.dispatch): each.before for each in found} | {id(each.combine): each.after for each in found}
    wide = [place for place, call in enumerate(calls) if call.is_wide and not call.is_counts]
    for place, call in enumerate(calls):
        if call.is_wide and not call.is_counts:
            continue
        last = next((calls[each] for each in reversed(wide) if each < place), None)
        coming = next((calls[each] for each in wide if each > place), None)
        nearest = coming
        if not call.is_counts and last is not None:
            since = call.row["computed_by_start_ns"] - last.row["computed_by_end_ns"]
            if coming is None or since < coming.row["computed_by_start_ns"] - call.row["computed_by_end_ns"]:
                nearest = last
        if nearest is not None and id(nearest) in ends:
            ends[id(nearest)].append(call)


def _described(groups: pd.DataFrame) -> dict[tuple[str | None, str | None], set[str]]:
    """The parallel dimensions that the program says a group is of, by its name and ranks."""
    told = groups[groups["role_from"].isin(["description"]) & groups["role"].notna()]
    return {(row["process_group"], row["pg_ranks"]): set(row["role"].split("-")) for row in records(told)}


def _of_experts(
    found: Sequence[_Pass], described: Mapping[tuple[str | None, str | None], set[str]]
) -> set[tuple[Any, ...]]:
    """The groups whose all_to_alls are taken to be of experts.

    Names of kernels tell it, uneven parts, counts exchanged before, or what the group is called; and attention between
    dispatch and combine tells that they are not.
    """
    of_group: dict[tuple[Any, ...], list[_Pass]] = defaultdict(list)
    for each in found:
        of_group[each.dispatch.group].append(each)
    believed = set()
    for group, own in of_group.items():
        dimensions = described.get(group[:2], set())
        if dimensions & _OF_SEQUENCES and not dimensions & _OF_EXPERTS:
            continue
        tells = any(each.dispatch.way or each.has_counts or each.dispatch.is_uneven for each in own)
        if (tells or dimensions & _OF_EXPERTS) and 2 * sum(each.attends and not each.in_turns for each in own) <= len(
            own
        ):
            believed.add(group)
    return believed


def _number_layers(passes: Sequence[_Pass]) -> None:
    """Number the layers of the passes of one rank in one step: forward in order, backward the other way round.

    Batches that follow each other in a step begin again with the first layer. A layer that is computed again in the
    backward pass has two passes there. A backward pass of the same sizes as one single layer is of that.
    """
    _tell_backward(passes)
    runs = [(back, list(own)) for back, own in groupby(passes, key=lambda each: each.is_backward)]
    lengths = [len(own) for back, own in runs if not back]
    # Without marks of steps, the first and the last may be cut off.
    whole = lengths[1:-1] or lengths
    layers = min(whole, default=0)
    if not layers:  # the forward pass was not traced
        return
    if any(length % layers for length in whole):
        layers = gcd(*whole)
    backward = sum(len(own) for back, own in runs if back)
    times = max(backward // sum(lengths), 1)
    layers_of: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for number, (back, own) in enumerate(runs):
        begin = -len(own) % layers if number == 0 and len(runs) > 1 else 0
        for place, each in enumerate(own):
            if not back:
                each.layer = (begin + place) % layers
                layers_of[each.dispatch.sent, each.dispatch.got].add(each.layer)
    for back, own in runs:
        for place, each in enumerate(own) if back else ():
            like = layers_of.get((each.dispatch.sent, each.dispatch.got), set())
            is_known = each.dispatch.sent is not None and len(like) == 1
            each.layer = next(iter(like)) if is_known else layers - 1 - place // times % layers


def _tell_backward(passes: Sequence[_Pass]) -> None:
    """Tell which passes are of the backward pass: by what issued them, else by counts, which only forward needs.

    Without both, sizes tell it if the second half has those of the first, the other way round.
    """
    known = [each.dispatch.row["is_backward"] for each in passes]
    if None not in known:
        for each, back in zip(passes, known, strict=True):
            each.is_backward = bool(back)
        return
    counted = [each.has_counts for each in passes]
    if any(counted) and not all(counted):
        for each, has_counts in zip(passes, counted, strict=True):
            each.is_backward = not has_counts
        return
    sizes = [(each.dispatch.sent, each.dispatch.got) for each in passes]
    half = len(sizes) // 2
    differ = len(set(sizes)) > 1 or (half == 1 and passes[0].dispatch.is_uneven)
    if half and len(sizes) % 2 == 0 and None not in sizes[0] and differ and sizes == sizes[::-1]:
        for each in passes[half:]:
            each.is_backward = True


def _agree_on_layers(found: Mapping[tuple[int, int, int | None], Sequence[_Pass]]) -> None:
    """Let ranks that take part in one exchange say the same of it: what the one says that shows most of its step."""
    said: dict[int, tuple[int, bool]] = {}
    for own in sorted(found.values(), key=len, reverse=True):
        for each in own:
            number = each.dispatch.row["collective_id"]
            each.layer, each.is_backward = said.setdefault(number, (each.layer, each.is_backward))


def _missing(
    found: Mapping[Any, Sequence[_Pass]], calls: pd.DataFrame, matches: pd.DataFrame, complete: Collection[int]
) -> dict[int, str]:
    """By dispatch, the ranks of its group of which no such pass is known, in words; of those that lack any.

    A rank may have no trace, or its recording may begin after it launched the dispatch.
    """
    there: dict[int, set[int]] = defaultdict(set)
    listed: dict[int, str | None] = {}
    for each in (each for own in found.values() for each in own):
        there[each.dispatch.row["collective_id"]].add(each.dispatch.row["rank"])
        listed[each.dispatch.row["collective_id"]] = each.dispatch.row["pg_ranks"]
    of_calls = matches[matches["collective_id"].isin(list(there))].merge(calls[["call_id", "rank"]], on="call_id")
    called = of_calls.groupby("collective_id")["rank"].agg(set).to_dict()
    lacking = {}
    for number, ranks in there.items():
        every = {int(rank) for rank in (listed[number] or "").split()} or called[number]
        if every - ranks:
            lacking[number] = ranks_in_words(every - ranks)
        elif number not in complete:
            lacking[number] = "other ranks"
    return lacking


def _row(each: _Pass, missing: Mapping[int, str]) -> Row:
    dispatch = each.dispatch.row
    number = dispatch["collective_id"]
    return {
        "rank": dispatch["rank"],
        "step": dispatch["step"],
        "layer": each.layer,
        "is_backward": each.is_backward,
        "process_group": dispatch["process_group"],
        "pg_ranks": dispatch["pg_ranks"],
        "dispatch_id": number,
        "combine_id": each.combine.row["collective_id"],
        "sent_tokens": None if each.dispatch.sent is None else sum(each.dispatch.sent),
        "received_tokens": None if each.dispatch.got is None else sum(each.dispatch.got),
        "received_elems": dispatch["out_elems"],
        "expert_ns": None if each.in_turns else each.expert_ns,
        "wait_dispatch_ns": sum_if_known(call.wait_ns for call in (each.dispatch, *each.before)),
        "wait_combine_ns": sum_if_known(call.wait_ns for call in (each.combine, *each.after)),
        "missing": missing.get(number),
    }


def sum_if_known(values: Iterable[Any]) -> Any:
    """The sum; None if any of the values is, or if there are none."""
    known = list(values)
    return None if None in known or not known else sum(known)
