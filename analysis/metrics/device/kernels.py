"""Device time by kernel, operator and annotation, with wait, transfer and hidden time of communication.

A kernel's duration is device time whether it computes, moves data or only waits for other ranks. For communication the
tables say which of the two, and how much of it was hidden by computing. Definitions: docs/metrics/kernels.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...core.intervals import covered, spans
from ...core.kinds import COMM, COMPUTE, MEMORY, NEXT
from ...core.schema import bare, grouped
from ...core.tables.device_time import (
    ANNOTATION_TIMES,
    ANNOTATION_TIMES_DEVICES,
    KERNELS,
    KERNELS_DEVICES,
    OPERATORS,
    OPERATORS_DEVICES,
)

_DEVICE = ["rank", "device"]
_CALL = ["rank", "cycle", "device", "stream", "start_ns"]
_PARTS = ("split_calls", "wait_ns", "transfer_ns", "hidden_ns")
_WEIGHTED = ("blocks_per_sm", "occupancy_frac")


def device_time(activities: pd.DataFrame, calls: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """The activities that compute or communicate, in order, with `wait_ns`, `transfer_ns` and `hidden_ns`.

    The arguments are the tables of these names.
    """
    kinds = bare(activities["kind"])
    busy: pd.DataFrame = activities[(kinds != MEMORY) & (kinds != NEXT)]
    split = calls[["call_id", *_CALL]].merge(participation[["call_id", "wait_ns", "transfer_ns"]], on="call_id")
    # Several activities of a stream may start at the same time if a trace has only whole microseconds.
    comm = busy.loc[bare(busy["kind"]) == COMM, _CALL]
    numbered = comm.assign(nth=comm.groupby(_CALL).cumcount(), place=comm.index)
    splits = numbered.merge(split.assign(nth=split.groupby(_CALL).cumcount()), on=[*_CALL, "nth"], how="left")
    splits = splits.set_index("place").reindex(busy.index)
    return busy.assign(
        wait_ns=splits["wait_ns"].astype("Int64"),
        transfer_ns=splits["transfer_ns"].astype("Int64"),
        hidden_ns=_hidden(busy),
    )


def _hidden(busy: pd.DataFrame) -> pd.Series[int]:
    """Time during which the device computed behind each communication activity, in ns; NA for other activities."""
    result = pd.Series(pd.NA, index=busy.index, dtype="Int64")
    for _, of_device in grouped(busy, _DEVICE):
        starts, kinds = of_device["start_ns"].to_numpy(), bare(of_device["kind"])
        ends = starts + of_device["dur_ns"].to_numpy()
        comm, compute = kinds == COMM, kinds == COMPUTE
        computing = spans(starts[compute], ends[compute])
        result[of_device.index[comm]] = covered(computing, starts[comm], ends[comm])
    return result


def kernel_sums(time: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and kernel, with what the tables below are made of. `time` comes from `device_time`.

    Sums of some ranks can be put together with those of others.
    """
    return _sums(time, ["name", "kind"])


def kernels(sums: pd.DataFrame) -> pd.DataFrame:
    """One row per kernel over all ranks and devices, longest first. `sums` come from `kernel_sums`."""
    return KERNELS.conform(_shares(sums, [], ["name", "kind"]))


def kernels_devices(sums: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device and kernel, the longest of a device first."""
    rows = _shares(sums, _DEVICE, ["name", "kind"])
    return KERNELS_DEVICES.conform(rows.drop(columns="ranks"))


def operators(time: pd.DataFrame, operator: pd.Series[str]) -> pd.DataFrame:
    """One row per operator over all ranks and devices. `operator` names that of each row of `time`."""
    return OPERATORS.conform(_by_launch(time, "operator", operator, []))


def operators_devices(time: pd.DataFrame, operator: pd.Series[str]) -> pd.DataFrame:
    """One row per rank, device and operator."""
    rows = _by_launch(time, "operator", operator, _DEVICE)
    return OPERATORS_DEVICES.conform(rows.drop(columns="ranks"))


def by_annotation(time: pd.DataFrame, annotation: pd.Series[str]) -> pd.DataFrame:
    """One row per annotation over all ranks and devices. `annotation` names that of each row of `time`."""
    return ANNOTATION_TIMES.conform(_by_launch(time, "annotation", annotation, []))


def by_annotation_devices(time: pd.DataFrame, annotation: pd.Series[str]) -> pd.DataFrame:
    """One row per rank, device and annotation."""
    rows = _by_launch(time, "annotation", annotation, _DEVICE)
    return ANNOTATION_TIMES_DEVICES.conform(rows.drop(columns="ranks"))


def _by_launch(time: pd.DataFrame, by: str, around: pd.Series[str], over: Sequence[str]) -> pd.DataFrame:
    """Device time by what was `around` each launch, which becomes the column `by`."""
    keys = [*over, by]
    of = time.assign(**{by: around.reindex(time.index)})
    by_keys = of.groupby(keys, dropna=False, sort=False)
    kinds = by_keys["kind"].nunique()
    known = pd.DataFrame({
        "kind": by_keys["kind"].first().where(kinds == 1),
        "kernels": by_keys["name"].nunique(),
    }).reset_index()  # fmt: skip
    return _shares(_sums(of, [by]), over, [by]).merge(known, on=keys)


def _sums(time: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Sums by rank, device and name."""
    weights = {}
    for column in _WEIGHTED:
        weights[f"{column}_of_ns"] = time["dur_ns"].where(time[column].notna()).astype("Float64")
        weights[column] = time[column] * weights[f"{column}_of_ns"]
    by_name = time.assign(
        calls=1,
        split_calls=time["wait_ns"].notna().astype("Int64").where(time["kind"] == COMM),
        total_ns=time["dur_ns"],
        **weights,
    ).groupby([*_DEVICE, *names], dropna=False, sort=False)  # fmt: skip
    return (
        by_name[["calls", "total_ns"]]
        .sum()
        .join(by_name[[*_PARTS, *weights]].sum(min_count=1))
        .assign(
            comm_calls=by_name["split_calls"].count(),
            hidden_calls=by_name["hidden_ns"].count(),
            min_ns=by_name["dur_ns"].min(),
            max_ns=by_name["dur_ns"].max(),
        )
        .reset_index()
    )


def _shares(sums: pd.DataFrame, over: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Sums by name, and their share of all activities on the same `over`."""
    by_name = sums.groupby([*over, *names], dropna=False, sort=False)
    result = by_name[["calls", "total_ns", "comm_calls", "hidden_calls"]].sum()
    weights = [name for column in _WEIGHTED for name in (column, f"{column}_of_ns")]
    result = result.join(by_name[[*_PARTS, *weights]].sum(min_count=1))
    result = result.assign(
        # What is hidden of some calls only would be taken for all of it.
        hidden_ns=result["hidden_ns"].where(result["hidden_calls"] == result["comm_calls"]),
        ranks=by_name["rank"].nunique(),
        mean_us=result["total_ns"] / result["calls"] / 1e3,
        min_us=by_name["min_ns"].min() / 1e3,
        max_us=by_name["max_ns"].max() / 1e3,
        # Means weighted by duration, over the activities that have them.
        **{column: _ratio(result[column], result[f"{column}_of_ns"]) for column in _WEIGHTED},
    )
    whole = result.groupby(list(over))["total_ns"].transform("sum") if over else result["total_ns"].sum()
    for part in ("", "wait_", "transfer_", "hidden_"):
        result[f"{part}share_frac"] = _ratio(result[f"{part or 'total_'}ns"], whole)
    order = [*over, "total_ns"]
    result = result.drop(columns=["comm_calls", "hidden_calls", *(f"{column}_of_ns" for column in _WEIGHTED)])
    rows = result.reset_index().sort_values(
        [*order, *names], ascending=[*[True] * len(over), False, *[True] * len(names)]
    )
    return rows.reset_index(drop=True)


def _ratio(part: pd.Series[Any], whole: Any) -> pd.Series[float]:
    """Quotients as Float64; NA if the whole is 0 or either is NA."""
    known = pd.Series(whole, index=part.index).astype("Float64")
    return part.astype("Float64") / known.mask((known == 0).fillna(False), np.nan).astype("Float64")
