"""The all_to_alls of each rank, and how much it had computed by then, as its own trace shows it.

What lies between two moments is the difference of two of these sums, so that which exchanges belong together need not
be known where the events of a rank are.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.intervals import Times, covered, spans
from ...core.kinds import COMPUTE
from ...core.markers import EVALUATE
from ...core.schema import Schema, bare, flags_of_texts, grouped
from ...core.tables.columns import CYCLE, RANK, STEP

EXCHANGES = Schema("expert_exchanges", "all_to_all, or other call that may exchange counts for one, of a rank", {
    "call_id": ("int64", "the call"),
    "rank": RANK,
    "cycle": CYCLE,
    "step": STEP,
    "start_ns": ("int64", "when it began on the device"),
    "end_ns": ("int64", "when it ended there"),
    "computed_by_start_ns": ("int64", "how long its device had computed in the trace when it began"),
    "computed_by_end_ns": ("int64", "how long when it ended"),
    "attended_by_start": ("int64", "how many kernels of attention had begun when it began"),
    "attended_by_end": ("int64", "how many when it ended"),
    "is_backward": ("boolean", "whether autograd's engine issued it; NA where the trace shows no work of that"),
})  # fmt: skip

BARRIER = "barrier"
_COUNTS = ("all_gather", BARRIER)
"""What may exchange counts instead of an all_to_all: Megatron gathers them, DeepEP's notify is a barrier."""
_ATTENTION = re.compile(r"flash|fmha|attention|attn", re.IGNORECASE)
_FROM_ALL_TIMES = np.iinfo(np.int64).min


def exchanges_of(activities: pd.DataFrame, cpu_operators: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """One row of `EXCHANGES` per all_to_all of these ranks, and per call that may exchange counts, by rank and start.

    None of ranks without an all_to_all.
    """
    exchanging = calls["rank"].isin(calls["rank"][calls["collective"].isin(["all_to_all"])])
    asked = calls[exchanging & calls["collective"].isin(["all_to_all", *_COUNTS])]
    if not len(asked):
        return EXCHANGES.empty()
    of_devices = dict(grouped(activities[bare(activities["kind"]) == COMPUTE], ["rank", "cycle", "device"]))
    of_engines = dict(grouped(cpu_operators[cpu_operators["name"].str.startswith(EVALUATE)], ["rank", "cycle"]))
    keys = ["rank", "cycle", "device"]
    found = [
        _of_device(own.sort_values("start_ns", kind="stable"), of_devices.get(key), of_engines.get(key[:2]))
        for key, own in grouped(asked, keys)
    ]
    return EXCHANGES.concat(found)


def _of_device(calls: pd.DataFrame, computed: pd.DataFrame | None, engine: pd.DataFrame | None) -> pd.DataFrame:
    start = bare(calls["start_ns"])
    end = start + bare(calls["dur_ns"])
    by_start, by_end, attended_by_start, attended_by_end = np.zeros((4, len(calls)), dtype=np.int64)
    if computed is not None:
        begun = bare(computed["start_ns"])
        busy = spans(begun, begun + bare(computed["dur_ns"]))
        ever = np.full(len(start), _FROM_ALL_TIMES)
        by_start, by_end = covered(busy, ever, start), covered(busy, ever, end)
        attends = flags_of_texts(computed["name"], lambda name: _ATTENTION.search(name) is not None)
        attention = np.sort(begun[attends])
        attended_by_start, attended_by_end = (np.searchsorted(attention, times) for times in (start, end))
    return EXCHANGES.conform(
        pd.DataFrame(
            {
                "call_id": bare(calls["call_id"]),
                "rank": bare(calls["rank"]),
                "cycle": bare(calls["cycle"]),
                "step": calls["step"].array,
                "start_ns": start,
                "end_ns": end,
                "computed_by_start_ns": by_start,
                "computed_by_end_ns": by_end,
                "attended_by_start": attended_by_start,
                "attended_by_end": attended_by_end,
                "is_backward": _is_backward(
                    calls["issue_ns"].to_numpy(dtype=np.int64, na_value=_FROM_ALL_TIMES), engine
                ),
            }
        )
    )


def _is_backward(issued: Times, engine: pd.DataFrame | None) -> NDArray[np.bool_] | None:
    """Which calls were issued while an operator of autograd's engine ran, on whatever thread; None without any."""
    if engine is None:
        return None
    begun = bare(engine["start_ns"])
    running = spans(begun, begun + bare(engine["dur_ns"]))
    if not len(running.starts):
        return None
    place = np.searchsorted(running.starts, issued, side="right") - 1
    inside: NDArray[np.bool_] = (place >= 0) & (issued < running.ends[place])
    return inside
