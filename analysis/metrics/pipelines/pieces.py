"""What a rank of a pipeline computes between its sends and receives, as its own trace shows it.

A piece is what was launched within one mark of a schedule: `PP:2F5` of torch's runtime, `Forward 5` of its GPipe.
Megatron and torch's 1F1B mark nothing. Then it is what was launched between two calls that send or receive, forward
and backward apart: backward work is launched inside of operators of autograd's engine, whatever thread runs it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.intervals import covered, spans, subtract
from ...core.kinds import COMM, COMPUTE
from ...core.markers import EVALUATE
from ...core.schema import Schema, grouped
from ...core.tables.columns import RANK

FORWARD, FULL_BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD = "F", "B", "I", "W"
"""What is done with a microbatch, as torch's schedules write it: a backward is whole, or of inputs and weights."""
SENT, RECEIVED = "send", "recv"

PIECES = Schema("pipeline_pieces", "piece, send or receive of a rank, in the order in which it launches them", {
    "rank": RANK,
    "step": ("int64", "its number"),
    "call_id": ("Int64", "the send or receive, of which this is all; NA of a piece"),
    "way": ("string", "F, B, I or W; NA where neither a mark nor autograd's operators say it"),
    "stage": ("Int64", "stage that it belongs to; NA where no mark says it"),
    "microbatch": ("Int64", "microbatch; NA where no mark says it"),
    "is_overlapped": ("boolean", "whether its mark is of a forward and a backward at once"),
    "start_ns": ("Int64", "when it began on the device"),
    "end_ns": ("Int64", "when it ended there"),
    "dur_ns": ("Int64", "end - start, without the time in which only sends and receives ran"),
})  # fmt: skip

_RUNTIME = re.compile(r"PP:(?:(?P<one>\d{1,6}[FBIW]\d{1,6})|\((?P<two>.+)\)OVERLAP_F_B)\Z")
_ACTION = re.compile(r"\s*(?P<stage>\d{1,6})(?P<way>[FBIW])(?P<microbatch>\d{1,6})\s*\Z")
_GPIPE = re.compile(r"(?P<way>F|B)(?:or|ack)ward (?P<microbatch>\d{1,6})\Z")
_LEAST_SHARE = 0.05
"""What takes less than this share of the longest of its kind in a step is no piece, but a copy beside a send, say."""


class Action(NamedTuple):
    """What a mark says of what is launched in it; None where it does not say it."""

    way: str | None
    stage: int | None
    microbatch: int | None


_UNKNOWN = Action(None, None, None)


class _Mark(NamedTuple):
    """A range on a CPU in which one action is launched, or a forward and a backward."""

    start_ns: int
    end_ns: int
    actions: tuple[Action, ...]


def pieces_of(
    activities: pd.DataFrame,
    launches: pd.DataFrame,
    annotations: pd.DataFrame,
    cpu_operators: pd.DataFrame,
    calls: pd.DataFrame,
) -> pd.DataFrame:
    """One row of `PIECES` per piece, send and receive, by rank; none of ranks that send and receive nothing."""
    keys = ["rank", "cycle"]
    sending = calls["rank"].isin(calls["rank"][calls["collective"].isin([SENT, RECEIVED])])
    asked = dict(grouped(calls[sending & calls["step"].notna()], keys))
    if not asked:
        return PIECES.empty()
    launched, marked = (dict(grouped(table, keys)) for table in (launches, annotations))
    engine = dict(grouped(cpu_operators[cpu_operators["name"].str.startswith(EVALUATE)], keys))
    found = [
        _of_rank(_launched(own, launched.get(key), asked[key]), engine.get(key), _marks(marked.get(key)))
        for key, own in grouped(activities, keys)
        if key in asked
    ]
    return PIECES.concat(found)


def _launched(activities: pd.DataFrame, launches: pd.DataFrame | None, calls: pd.DataFrame) -> pd.DataFrame:
    """What a rank computed and its calls, which have a `call_id`, in the order in which they were launched.

    Operators of a CPU launch themselves, and their stream is a thread.
    """
    computed = activities[(activities["kind"] == COMPUTE) & activities["step"].notna()]
    issue, thread = computed["start_ns"].to_numpy(), computed["stream"].to_numpy()
    if launches is not None and len(launches):
        correlation = computed["correlation"].to_numpy(dtype=np.int64, na_value=-1)
        place = pd.Index(launches["correlation"]).get_indexer(correlation)
        issue, thread = (
            np.where(place >= 0, launches[name].to_numpy()[place], others)
            for name, others in (("start_ns", issue), ("thread", -1))
        )
    kernels = activities[activities["kind"] == COMM].drop_duplicates(["stream", "start_ns"])
    known = calls.merge(kernels[["stream", "start_ns", "correlation"]], on=["stream", "start_ns"], how="left")
    events = pd.concat(
        [
            computed.assign(issue_ns=issue, thread=thread),
            known.assign(issue_ns=known["issue_ns"].fillna(known["start_ns"]).astype("int64")),
        ],
        ignore_index=True,
    )
    return events.iloc[_launch_order(events)].reset_index(drop=True)


def _launch_order(events: pd.DataFrame) -> NDArray[np.int64]:
    """The order in which these were launched, by index.

    The driver counts launches by their correlation ids. A trace in which these contradict the times of launches does
    not say the order; then what ran does: a send comes behind what had ended when it began, a receive before what began
    when it had ended. (Not always so: a message may begin late, as its stream was busy.)
    """
    issue, start = events["issue_ns"].to_numpy(), events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    counted = events["correlation"].to_numpy(dtype=np.int64, na_value=-1)
    order: NDArray[np.int64] = np.lexsort((start, counted, issue))
    known = counted[order][counted[order] >= 0]
    if bool((np.diff(known) >= 0).all()):
        return order
    is_call = events["call_id"].notna().to_numpy()
    begun, ended = np.sort(start[~is_call]), np.sort(end[~is_call])
    receives = events["collective"].isin([RECEIVED]).to_numpy()
    # Twice the number of what comes before: what is computed lies on odd places.
    place = np.where(
        receives,
        2 * np.searchsorted(begun, end, side="left"),
        np.where(is_call, 2 * np.searchsorted(ended, start, side="right"), 2 * np.searchsorted(begun, start) + 1),
    )
    by_what_ran: NDArray[np.int64] = np.lexsort((start, place))
    return by_what_ran


def _inside(engine: pd.DataFrame | None, launched: pd.DataFrame) -> NDArray[np.bool_]:
    """Which were launched within operators of autograd's engine, of their own thread.

    A CPU's activities are the outermost operators, and those of the engine among them.
    """
    found = launched["name"].str.startswith(EVALUATE).to_numpy(dtype=bool)
    for thread, own in [] if engine is None else engine.groupby("thread"):
        begun = own["start_ns"].to_numpy()
        running = spans(begun, begun + own["dur_ns"].to_numpy())
        here = (launched["thread"] == thread).to_numpy(dtype=bool)
        issued = launched["issue_ns"].to_numpy()[here]
        place = np.searchsorted(running.starts, issued, side="right") - 1
        found[here] |= (place >= 0) & (issued < running.ends[place])
    return found


def _marks(annotations: pd.DataFrame | None) -> list[_Mark]:
    """The marks of a schedule, by their start; they do not overlap."""
    if annotations is None:
        return []
    rows = zip(*(annotations[key].tolist() for key in ("name", "start_ns", "dur_ns")), strict=True)
    return sorted(_Mark(start, start + dur, actions) for name, start, dur in rows if (actions := actions_of(name)))


def actions_of(name: str) -> tuple[Action, ...]:
    """What an annotation of a schedule says is computed in it; nothing of any other annotation."""
    if told := _GPIPE.match(name):
        return (Action(told["way"], None, int(told["microbatch"])),)
    if not (told := _RUNTIME.match(name)):
        return ()
    each = (_ACTION.match(one) for one in (told["one"] or told["two"]).split(";"))
    return tuple(Action(one["way"], int(one["stage"]), int(one["microbatch"])) for one in each if one)


def _of_rank(launched: pd.DataFrame, engine: pd.DataFrame | None, marks: list[_Mark]) -> pd.DataFrame:
    """The pieces and messages of a rank, in the order in which they were launched."""
    is_message = launched["collective"].isin([SENT, RECEIVED]).to_numpy()
    is_computed = launched["call_id"].isna().to_numpy()
    ran, messages = launched[is_computed], launched[is_message]
    is_backward = _inside(engine, ran)
    tells_ways = bool(is_backward.any())
    if marks:
        begins, ends = (np.array([mark[bound] for mark in marks]) for bound in (0, 1))
        issued = ran["issue_ns"].to_numpy()
        within = np.searchsorted(begins, issued, side="right") - 1
        within = np.where((within >= 0) & (issued < ends[within]), within, -1)
        # Forward and backward of one mark are told apart by what launched them.
        is_backward = is_backward & np.array([len(mark.actions) > 1 for mark in marks])[within]
    else:
        cuts = is_message if tells_ways else is_message | _begins_after_all_messages(launched)
        within = np.cumsum(cuts, dtype=np.int64)[is_computed]
    step = ran["step"].to_numpy(dtype=np.int64)
    changes = np.flatnonzero(np.diff(step) | np.diff(within) | np.diff(is_backward.astype(np.int64))) + 1
    first = np.concatenate(([0], changes)) if len(ran) else changes
    begun, ended = ran["start_ns"].to_numpy(), (ran["start_ns"] + ran["dur_ns"]).to_numpy()
    start, end = np.minimum.reduceat(begun, first), np.maximum.reduceat(ended, first)
    computing, moving = spans(begun, ended), messages["start_ns"].to_numpy()
    waiting = subtract(spans(moving, moving + messages["dur_ns"].to_numpy()), computing)
    if marks:
        around = [marks[mark] if mark >= 0 else None for mark in within[first].tolist()]
        actions = [_told(mark, backward) for mark, backward in zip(around, is_backward[first].tolist(), strict=True)]
        overlapped = [mark is not None and len(mark.actions) > 1 for mark in around]
        are_pieces = within[first] >= 0
    else:
        ways = np.where(is_backward[first], FULL_BACKWARD, FORWARD).tolist() if tells_ways else [None] * len(first)
        actions = [_UNKNOWN._replace(way=way) for way in ways]
        overlapped = [False] * len(first)
        busy = pd.Series(covered(computing, start, end))
        most = busy.groupby([step[first], is_backward[first]]).transform("max")
        are_pieces = (busy >= _LEAST_SHARE * most).to_numpy()
    pieces = pd.DataFrame({
        "step": step[first],
        **{name: [getattr(action, name) for action in actions] for name in Action._fields},
        "is_overlapped": overlapped,
        "start_ns": start,
        "end_ns": end,
        "dur_ns": end - start - covered(waiting, start, end),
    }, index=ran.index[first])  # fmt: skip
    both = pd.concat([pieces[are_pieces], messages[["step", "call_id"]]]).sort_index()
    return PIECES.conform(both.assign(rank=launched["rank"].iloc[0]))


def _begins_after_all_messages(launched: pd.DataFrame) -> NDArray[np.bool_]:
    """Calls of groups that, in their step, begin to be used when all is sent and received: optimizers follow them."""
    calls = launched[launched["call_id"].notna()]
    is_message = calls["collective"].isin([SENT, RECEIVED])
    last = calls["start_ns"].where(is_message).groupby(calls["step"]).transform("max")
    begun = calls["start_ns"].groupby([calls["step"], calls["process_group"]], dropna=False).transform("min")
    found = np.zeros(len(launched), dtype=bool)
    found[calls.index[(~is_message & (begun > last)).to_numpy()]] = True
    return found


def _told(mark: _Mark | None, is_backward: bool) -> Action:
    """What is launched within a mark; of a forward and a backward at once, the one that it belongs to."""
    if mark is None:
        return _UNKNOWN
    of_way = (one for one in mark.actions if (one.way != FORWARD) == is_backward)
    return next(of_way, mark.actions[0]) if len(mark.actions) > 1 else mark.actions[0]
