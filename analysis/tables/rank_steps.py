"""Ranks by steps, for a heat map: waiting, lateness, and waiting that a rank caused."""

from __future__ import annotations

from ..core.declaring import TableEntry, Topic
from ..core.frames import pd
from ..core.schema import Schema
from ..core.tables.columns import DEVICE, NO_STEPS_MARKED, PARTIAL, RANK, STEP_NUMBER
from ..metrics.causes.blame import blamed

RANK_STEPS = Schema("rank_steps", "rank, device and step", {
    "rank": RANK,
    "device": DEVICE,
    "step": STEP_NUMBER,
    "window_ns": ("int64", "the step on this device, as in breakdown_steps"),
    "exposed_wait_ns": ("Int64", "waiting behind which this device did not compute, as in breakdown_steps"),
    "late_ns": ("Int64", "the largest lateness of this rank in the step, as in lateness; 0 if it was never late"),
    "caused_wait_ns": ("Int64", "waiting of other ranks in the step that this rank is to blame for, as in ranks"),
    "partial": PARTIAL,
})  # fmt: skip

_DEVICE, _RANK = ["rank", "device", "step"], ["rank", "step"]


@TableEntry(
    RANK_STEPS,
    Topic.waiting,
    "Waiting and lateness: one row per rank and step.",
    "ranks-and-hosts.md#by-step",
    command="table rank-steps",
    after="hosts",
    none_measured=f"{NO_STEPS_MARKED}, or use `ranks`",
    narrow=("rank", "device", "step", "window_ns", "exposed_wait_ns", "late_ns", "caused_wait_ns"),
)  # fmt: skip
def rank_steps(
    breakdown_steps: pd.DataFrame, calls: pd.DataFrame, members: pd.DataFrame, lateness: pd.DataFrame
) -> pd.DataFrame:
    """One row per rank, device and step: its length, exposed waiting, lateness, and waiting of others it caused.

    Lateness is per rank, NA where nothing could be compared. A rank with several devices has it on each of their rows.
    """
    steps = calls.set_index("call_id")["step"]
    of_collective = members[["collective_id", "rank", "call_id"]].drop_duplicates(["collective_id", "rank"])
    late = lateness.merge(of_collective, on=["collective_id", "rank"])
    largest = late.assign(step=late["call_id"].map(steps)).groupby(_RANK)["late_ns"].max()
    waits = blamed(members, lateness)
    others = waits[waits["blamed"].notna() & (waits["blamed"] != waits["rank"])]
    caused = others.assign(step=others["kernel"].map(steps), rank=others["blamed"]).groupby(_RANK)["wait_ns"].sum()
    compared = members[members["late_ns"].notna()]
    known = set(zip(compared["rank"], compared["call_id"].map(steps), strict=True))
    table = breakdown_steps.groupby(_DEVICE, as_index=False)[["window_ns", "exposed_wait_ns"]].sum(min_count=1)
    keys = pd.MultiIndex.from_frame(table[_RANK].astype("Int64"))
    seen = pd.Series([(rank, step) in known for rank, step in keys], dtype=bool)
    return RANK_STEPS.conform(
        table.assign(late_ns=_at(largest, keys).where(seen), caused_wait_ns=_at(caused, keys).where(seen))
    )


def _at(values: pd.Series[int], keys: pd.MultiIndex) -> pd.Series[int]:
    """The value of each rank and step, 0 if it has none."""
    of = dict(zip(values.index, values, strict=True))
    return pd.Series([of.get(key, 0) for key in keys], dtype="Int64")
