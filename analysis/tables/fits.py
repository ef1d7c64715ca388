"""Latency and bandwidth of each collective, fitted over its sizes. `metrics/bandwidth.py` fits them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic
from ..core.schema import Schema
from ..core.tables.columns import COLLECTIVE, GROUP, PARTIAL_MEMBER, PG_RANKS

if TYPE_CHECKING:
    import pandas as pd

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
    """One row per process group and collective: latency and bandwidth, fitted over its sizes."""
    from ..metrics.bandwidth import fitted_rows

    return FITS.frame(fitted_rows(collectives))
