"""Bandwidth as nccl-tests defines it, per process group, collective, dtype and size; and fitted latency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.nccl_tests import POINT_TO_POINT, bus_factor, item_bytes
from ..core.schema import Row
from ..core.tables.communication import BANDWIDTH
from .latency import fitted_latency

_KEYS = ["process_group", "pg_ranks", "collective", "size_bytes", "dtype"]


def bandwidth(collectives: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per process group, collective, dtype and size that moved data.

    Sums are divided; ratios are never averaged. Collectives whose waiting is not known count only in `calls` and in the
    figure from whole durations.
    """
    sized = collectives[collectives["size_bytes"].fillna(0) > 0]
    mean_durations = participation.groupby("collective_id")["dur_ns"].mean().rename("mean_dur_ns")
    sized = sized.merge(mean_durations, left_on="collective_id", right_index=True)
    rows: list[Row] = []
    for keys, together in sized.groupby(_KEYS, dropna=False, sort=True):
        row = dict(zip(_KEYS, keys, strict=True))
        rows.append(row | _figures(together))
    return BANDWIDTH.frame(rows)


def _figures(together: pd.DataFrame) -> dict[str, object]:
    size_bytes, dtype = int(together["size_bytes"].iloc[0]), together["dtype"].iloc[0]
    split = together[together["transfer_ns"].notna() & (together["transfer_ns"] > 0)]
    times_us = split["transfer_ns"].astype("float64") / 1000
    factor = _bus_factor(together)
    measured = len(split) > 0

    def busbw(total_ns: float, count: int) -> float | None:
        return factor * count * size_bytes / total_ns if factor is not None and total_ns > 0 else None

    algbw = size_bytes * len(split) / float(split["transfer_ns"].sum()) if measured else None
    return {
        "count_elems": size_bytes // item_bytes(str(dtype)) if isinstance(dtype, str) else None,
        "calls": len(together),
        "time_us_min": times_us.min() if measured else None,
        "time_us_median": times_us.median() if measured else None,
        "time_us_p95": times_us.quantile(0.95) if measured else None,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * factor if algbw is not None and factor is not None else None,
        "busbw_low_gb_per_s": busbw(float(split["transfer_high_ns"].astype("float64").sum()), len(split)),
        "busbw_high_gb_per_s": busbw(float(split["transfer_low_ns"].sum()), len(split)),
        "busbw_from_dur_gb_per_s": busbw(float(together["mean_dur_ns"].sum()), len(together)),
    }


def _bus_factor(together: pd.DataFrame) -> float | None:
    """The bus factor of one collective over one group, None where either is not known."""
    collective, group_sizes = together["collective"].iloc[0], together["group_size"].dropna()
    if not isinstance(collective, str):
        return None
    if collective in POINT_TO_POINT:
        return bus_factor(collective, 2)
    return bus_factor(collective, int(group_sizes.iloc[0])) if len(group_sizes) else None


_LEAST_SIZES = 3


def fitted_rows(collectives: pd.DataFrame) -> list[Row]:
    """One row per process group and collective of at least three sizes: t = latency + size / bandwidth.

    Least squares over the median transfer time of each size, of the relative error, so that small sizes count as much
    as large ones. Latency is never below 0; how sure it is, `fitted_latency` tells. Source of the model: Hockney 1994,
    "The communication challenge for MPP".
    """
    usable = collectives[(collectives["transfer_ns"].fillna(0) > 0) & (collectives["size_bytes"].fillna(0) > 0)]
    rows: list[Row] = []
    for keys, together in usable.groupby(["process_group", "pg_ranks", "collective"], dropna=False, sort=True):
        times = together.groupby("size_bytes")["transfer_ns"].median().astype("float64")
        if len(times) < _LEAST_SIZES:
            continue
        sizes = times.index.to_numpy(dtype=np.float64)
        latency, per_byte = _line(sizes, times.to_numpy())
        if per_byte <= 0:  # larger sizes were not slower, so no bandwidth can be derived
            continue
        error = (latency + per_byte * sizes) / times.to_numpy() - 1
        low, high = fitted_latency(together["transfer_ns"].astype("float64").set_axis(together["size_bytes"])) or (
            None,
            None,
        )
        factor = _bus_factor(together)
        rows.append({
            "process_group": keys[0],
            "pg_ranks": keys[1],
            "collective": keys[2],
            "sizes": len(times),
            "calls": len(together),
            "latency_us": latency / 1000,
            "latency_low_us": None if low is None else max(low, 0.0) / 1000,
            "latency_high_us": None if high is None else max(high, 0.0) / 1000,
            "algbw_gb_per_s": 1 / per_byte,
            "busbw_gb_per_s": None if factor is None else factor / per_byte,
            "error_frac": float(np.sqrt(np.mean(error**2))),
        })  # fmt: skip
    return rows


def _line(sizes: NDArray[Any], times: NDArray[Any]) -> tuple[float, float]:
    """Fit a line to times by size: its intercept, at least 0, and its slope, with the smallest relative error."""
    design = np.column_stack([1 / times, sizes / times])
    (latency, per_byte), *_ = np.linalg.lstsq(design, np.ones(len(times)), rcond=None)
    if latency >= 0:
        return float(latency), float(per_byte)
    through_zero = sizes / times
    return 0.0, float(through_zero.sum() / (through_zero**2).sum())
