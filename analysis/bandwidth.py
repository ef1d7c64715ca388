"""Bandwidth as nccl-tests defines it, per process group, collective, dtype and size."""

from __future__ import annotations

import pandas as pd

from .nccl_tests import bus_factor, item_bytes
from .schema import BANDWIDTH

_KEYS = ["process_group", "pg_ranks", "collective", "size_bytes", "dtype"]


def bandwidth(collectives: pd.DataFrame, participation: pd.DataFrame) -> pd.DataFrame:
    """One row per process group, collective, dtype and size that moved data.

    Sums are divided, never ratios averaged. Collectives whose waiting is not known count in `calls` and in the figure
    from whole durations only.
    """
    sized = collectives[collectives["size_bytes"].fillna(0) > 0]
    mean_durations = participation.groupby("collective_id")["dur_ns"].mean().rename("mean_dur_ns")
    sized = sized.merge(mean_durations, left_on="collective_id", right_index=True)
    rows = []
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
        "busbw_low_gb_per_s": busbw(float(split["last_arrival_to_last_end_ns"].sum()), len(split)),
        "busbw_high_gb_per_s": busbw(float(split["min_dur_ns"].sum()), len(split)),
        "busbw_from_dur_gb_per_s": busbw(float(together["mean_dur_ns"].sum()), len(together)),
    }


def _bus_factor(together: pd.DataFrame) -> float | None:
    """Of one collective over one group, None where either is not known."""
    collective, group_sizes = together["collective"].iloc[0], together["group_size"].dropna()
    if not isinstance(collective, str) or not len(group_sizes):
        return None
    return bus_factor(collective, int(group_sizes.iloc[0]))
