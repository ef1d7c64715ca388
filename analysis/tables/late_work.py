"""What late ranks did while they fell behind. `metrics/causes/late_work.py` compares them with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import TableEntry, Topic, value
from ..core.schema import Schema, records
from ..core.tables.columns import PARTIAL, STEP

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics.causes.cpu_work import Counted
    from ..metrics.causes.details import KernelTimes
    from ..metrics.causes.table import Explained
    from ..run.event_tables import EventTables
    from ..run.run import Run

LATE_WORK = Schema("late_work", "late rank, step, and thing that it did while it fell behind the others", {
    "rank": ("int64", "rank that was late, one of the four that caused most waiting"),
    "step": STEP,
    "kind": (
        "string",
        (
            "work: the innermost thing at any time; call, operator, range, module, function, region: with all in it; "
            "python: what its thread did outside of operators: it was blocked, computed, or collected garbage; thread: "
            "what it did in the whole step, without a GPU; kernel; total"
        ),
    ),
    "what": (
        "string",
        (
            "blocking call, operator, annotation, module, function of the user, kernel, region, `outside of any "
            "operator`; python: blocked, computing, collecting garbage, or waiting for a CPU; total: cpu or compute"
        ),
    ),
    "operator": ("string", "of work: the innermost operator in which a call was"),
    "range": ("string", "of work: the innermost annotation around it; NA if there is none"),
    "took_ns": (
        "int64",
        "how long it took while this rank fell behind: kernels ran, or the launching thread was in it, device idle",
    ),
    "others_ns": ("int64", "the same between the same calls, median of other ranks"),
    "extra_ns": ("int64", "took_ns - others_ns"),
    "partial": PARTIAL,
})  # fmt: skip

_MOST_COMPARED, _MOST_READ_AGAIN = 8, 3
"""A late rank is compared with so many; fewer where their files have to be read once more."""


@value
def counted_threads(run: Run) -> Mapping[tuple[int, int], Counted]:
    """What side files say of the thread that ran each step, by rank and step."""
    from ..metrics.causes.cpu_work import Counted

    known = run.step_times.dropna(subset=["wall_ns", "cpu_ns", "gc_ns"])
    return {
        (row["rank"], row["step"]): Counted(row["wall_ns"], row["cpu_ns"], row["ready_ns"], row["gc_ns"])
        for row in records(known)
    }


@TableEntry(
    LATE_WORK,
    Topic.waiting,
    "What late ranks were doing while they fell behind the others.",
    "late-work.md#what-a-late-rank-was-doing",
    command="table late-work",
    after="lateness",
    none_found="no rank was late for a reason that the traces show",
    narrow=("rank", "step", "kind", "what", "extra_ns", "took_ns", "others_ns", "range", "operator"),
)  # fmt: skip
def late_work(
    run: Run,
    explained_lateness: Explained,
    kernel_times: KernelTimes,
    detailed: Callable[[int], EventTables],
    counted_threads: Mapping[tuple[int, int], Counted],
) -> pd.DataFrame:
    """One row per late rank, step and activity while it fell behind, beside the median of other ranks."""
    from ..metrics.causes.late_work import Lookups, late_work_rows
    from ..metrics.regions.computed import computed_in_regions

    damaged = set(run.partial_ranks)
    whole = [one.without(damaged) for one in explained_lateness.behind if one.rank not in damaged]
    lookups = Lookups(
        kernel_times=kernel_times,
        members=explained_lateness.members,
        detailed=detailed,
        in_regions=lambda rank, times: computed_in_regions(detailed(rank), times),
        most_others=_MOST_COMPARED if run.details else _MOST_READ_AGAIN,
        counted=counted_threads,
        on_cpu=run.is_of_cpus,
    )
    return LATE_WORK.frame(late_work_rows(whole, lookups))
