"""Bandwidth as nccl-tests defines it, and beside a ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.nccl_tests import POINT_TO_POINT, bus_factor, item_bytes
from ..core.declaring import TableEntry, Topic, value
from ..core.schema import Row, Schema
from ..core.tables.columns import COLLECTIVE, DTYPE, GROUP, GROUP_ROLE, PARTIAL_MEMBER, PG_RANKS, SIZE

if TYPE_CHECKING:
    import pandas as pd

    from ..ceilings.files import Ceiling
    from ..ceilings.normal import Machine
    from ..run.run import Run

_KEYS = ["process_group", "pg_ranks", "collective", "size_bytes", "dtype"]

BANDWIDTH = Schema("bandwidth", "process group, collective, dtype and size", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "role": GROUP_ROLE,
    "collective": COLLECTIVE,
    "size_bytes": SIZE,
    "count_elems": ("Int64", "elements of that size"),
    "dtype": DTYPE,
    "calls": ("int64", "collectives measured"),
    "time_us_min": ("Float64", "transfer time, smallest"),
    "time_us_median": ("Float64", "transfer time, median"),
    "time_us_p95": ("Float64", "transfer time, 95th percentile"),
    "algbw_gb_per_s": ("Float64", "sum of sizes / sum of transfer times"),
    "busbw_gb_per_s": ("Float64", "algbw x bus factor of the collective and group size"),
    "busbw_low_gb_per_s": ("Float64", "with the upper bound of every transfer time"),
    "busbw_high_gb_per_s": ("Float64", "with the lower bound of every transfer time"),
    "busbw_from_dur_gb_per_s": ("Float64", "from whole durations, waiting included: what a single trace would suggest"),
    "normal_busbw_gb_per_s": (
        "Float64",
        "busbw that others measured in loops of nccl-tests: same GPU, ranks and collective, interpolated in size",
    ),
    "of_normal_frac": ("Float64", "busbw_gb_per_s / normal_busbw_gb_per_s; above 1 if this run was faster"),
    "normal_note": ("string", "on what that was measured, or why nothing can be compared"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip

BANDWIDTH_CEILING = Schema("bandwidth_ceiling", "row of bandwidth, compared with a ceiling", {
    **BANDWIDTH.columns,
    "ceiling_busbw_gb_per_s": ("Float64", "busbw of the ceiling: same collective and ranks, interpolated in size"),
    "of_ceiling_frac": ("Float64", "busbw_gb_per_s / ceiling_busbw_gb_per_s; above 1 if this run was faster"),
    "ceiling_note": ("string", "why one of the two is unknown"),
})  # fmt: skip


@value
def machine(run: Run) -> Machine:
    """What decides which measurements by others the run can be compared with."""
    from ..ceilings.normal import Machine

    return Machine(run.models, run.hosts, run.nccl_versions, run.sharing)


@TableEntry(
    BANDWIDTH,
    Topic.communication,
    "Bandwidth by collective and size, as nccl-tests defines it.",
    "bandwidth.md#the-bandwidth-table",
    command="bandwidth",
    after="participation",
    shown=(
        "process_group", "role", "collective", "size_bytes", "count_elems", "dtype", "calls", "time_us_min",
        "time_us_median", "time_us_p95", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_low_gb_per_s",
        "busbw_high_gb_per_s", "busbw_from_dur_gb_per_s", "normal_busbw_gb_per_s", "of_normal_frac", "normal_note",
        "partial",
    ),
    title="Bandwidth (nccl-tests conventions, 1 GB = 1e9 bytes)",
    none_measured="no call has a size; record shapes (record_shapes=True, no --light), or use torch >= 2.3",
    needs_calls=True,
    optional=("role", "normal_busbw_gb_per_s", "of_normal_frac"),
    narrow=(
        "collective", "size_bytes", "process_group", "role", "calls", "time_us_median", "busbw_gb_per_s",
        "normal_busbw_gb_per_s", "of_normal_frac", "busbw_low_gb_per_s", "busbw_high_gb_per_s", "dtype",
        "algbw_gb_per_s", "busbw_from_dur_gb_per_s",
    ),
)  # fmt: skip
def bandwidth(
    collectives: pd.DataFrame, members: pd.DataFrame, groups: pd.DataFrame, machine: Machine | None
) -> pd.DataFrame:
    """One row per process group, collective, dtype and size, beside what others reach on such GPUs.

    Sums are divided; ratios are never averaged. Collectives whose waiting is not known count only in `calls` and in the
    figure from whole durations. Where `machine` is None, nothing is known of the GPUs.
    """
    from ..ceilings.normal import Machine, with_normal
    from ..metrics.roles.table import with_roles

    sized = collectives[collectives["size_bytes"].fillna(0) > 0]
    mean_durations = members.groupby("collective_id")["dur_ns"].mean().rename("mean_dur_ns")
    sized = sized.merge(mean_durations, left_on="collective_id", right_index=True)
    rows: list[Row] = []
    for keys, together in sized.groupby(_KEYS, dropna=False, sort=True):
        row = dict(zip(_KEYS, keys, strict=True))
        rows.append(row | _figures(together))
    return with_roles(BANDWIDTH.frame(with_normal(BANDWIDTH.frame(rows), machine or Machine())), groups)


@TableEntry(
    BANDWIDTH_CEILING,
    Topic.communication,
    "Bandwidth beside what the links reach without training.",
    "ceilings.md#bandwidth-against-a-ceiling",
    command="bandwidth --ceiling FILE",
    after="bandwidth_times",
    shown=(
        "process_group", "collective", "size_bytes", "dtype", "calls", "time_us_median", "busbw_gb_per_s",
        "ceiling_busbw_gb_per_s", "of_ceiling_frac", "ceiling_note", "partial",
    ),
    title="Bandwidth against the ceiling",
    none_measured="no call has a size; record shapes (record_shapes=True, no --light), or use torch >= 2.3",
    needs_calls=True,
    narrow=(
        "collective", "size_bytes", "process_group", "busbw_gb_per_s", "ceiling_busbw_gb_per_s",
        "of_ceiling_frac", "calls", "ceiling_note", "dtype",
    ),
)  # fmt: skip
def bandwidth_ceiling(bandwidth: pd.DataFrame, ceiling: Ceiling | None) -> pd.DataFrame:
    """The bandwidth table compared with the ceiling; without one, every row says so."""
    from ..ceilings.headroom import compared_with

    return BANDWIDTH_CEILING.frame(compared_with(None if ceiling is None else ceiling.table, bandwidth))


def _figures(together: pd.DataFrame) -> dict[str, object]:
    size_bytes, dtype = int(together["size_bytes"].iloc[0]), together["dtype"].iloc[0]
    split = together[together["transfer_ns"].notna() & (together["transfer_ns"] > 0)]
    times_us = split["transfer_ns"].astype("float64") / 1000
    factor = bus_factor_of(together)
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


def bus_factor_of(together: pd.DataFrame) -> float | None:
    """The bus factor of rows of one collective over one group, None where either is not known."""
    collective, group_sizes = together["collective"].iloc[0], together["group_size"].dropna()
    if not isinstance(collective, str):
        return None
    if collective in POINT_TO_POINT:
        return bus_factor(collective, 2)
    return bus_factor(collective, int(group_sizes.iloc[0])) if len(group_sizes) else None
