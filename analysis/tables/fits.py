"""Latency and bandwidth of each collective, fitted over its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.declaring import TableEntry, Topic
from ..core.frames import np
from ..core.schema import Row, Schema
from ..core.tables.columns import COLLECTIVE, GROUP, PARTIAL_MEMBER, PG_RANKS
from .bandwidth import bus_factor_of

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_LEAST_SIZES = 3

FITS = Schema("fits", "process group and collective with at least three sizes", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "collective": COLLECTIVE,
    "sizes": ("int64", "distinct sizes"),
    "calls": ("int64", "collectives measured"),
    "latency_us": ("Float64", "latency of t = latency + size / bandwidth"),
    "latency_low_us": ("Float64", "the least it may be, at 95 %"),
    "latency_high_us": ("Float64", "the most it may be"),
    "algbw_gb_per_s": ("Float64", "bandwidth of t = latency + size / bandwidth"),
    "busbw_gb_per_s": ("Float64", "algbw x bus factor"),
    "error_frac": ("Float64", "root mean square of the relative error over the sizes"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


@TableEntry(
    FITS,
    Topic.communication,
    "Latency and bandwidth of each collective, fitted over sizes.",
    "latency.md#latency-and-bandwidth",
    command="table fits",
    after="traffic",
    shown=(
        "process_group",
        "collective",
        "sizes",
        "calls",
        "latency_us",
        "latency_low_us",
        "latency_high_us",
        "algbw_gb_per_s",
        "busbw_gb_per_s",
        "error_frac",
        "partial",
    ),
    none_found="no collective ran with three or more sizes, so nothing can be fitted",
    narrow=("collective", "process_group", "latency_us", "busbw_gb_per_s", "error_frac", "sizes", "calls"),
)
def fits(collectives: pd.DataFrame) -> pd.DataFrame:
    """One row per process group and collective: latency and bandwidth, fitted over its sizes.

    They have at least three sizes: t = latency + size / bandwidth. Least squares over the median transfer time of each
    size, of the relative error, so that small sizes count as much as large ones. Latency is never below 0; how sure it
    is, `fitted_latency` tells. Source of the model: Hockney 1994, "The communication challenge for MPP".
    """
    from ..metrics.latency import fitted_latency

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
        factor = bus_factor_of(together)
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
    return FITS.frame(rows)


def _line(sizes: NDArray[Any], times: NDArray[Any]) -> tuple[float, float]:
    """Fit a line to times by size: its intercept, at least 0, and its slope, with the smallest relative error."""
    design = np.column_stack([1 / times, sizes / times])
    (latency, per_byte), *_ = np.linalg.lstsq(design, np.ones(len(times)), rcond=None)
    if latency >= 0:
        return float(latency), float(per_byte)
    through_zero = sizes / times
    return 0.0, float(through_zero.sum() / (through_zero**2).sum())
