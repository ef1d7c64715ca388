"""What limits the run and each collective, in sentences. `metrics/verdicts/` has their rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, value
from ..core.schema import Schema
from ..core.tables.columns import DTYPE, GROUP, GROUP_ROLE, PARTIAL_MEMBER, PG_RANKS, SIZE
from .syncs import SYNCS_STEPS

if TYPE_CHECKING:
    import pandas as pd

    from ..ceilings.files import Ceiling
    from ..metrics.causes.cpu_work import Counted
    from ..metrics.compute.contention import Slowdown
    from ..metrics.compute.gpu_clocks import Clock
    from ..metrics.device.largest_gaps import IdlePlaces
    from ..metrics.device.longer import Longer
    from ..metrics.pipelines.stages import HeavyStage
    from ..metrics.pipelines.table import UsualBubble
    from ..metrics.prices import Prices
    from ..metrics.typical_step import TypicalStep
    from ..metrics.verdicts.culprits import Culprits
    from ..metrics.verdicts.slow_devices import Slow
    from ..run.run import Run
    from .ranks import Waiting

VERDICTS = Schema("verdicts", "process group, collective, dtype and size; the first row is the run", {
    "process_group": GROUP,
    "pg_ranks": PG_RANKS,
    "role": GROUP_ROLE,
    "collective": ("string", "as in bandwidth; `run` for the run as a whole"),
    "dtype": DTYPE,
    "size_bytes": SIZE,
    "calls": ("int64", "calls of all ranks"),
    "split_calls": ("int64", "calls that could be split into wait and transfer"),
    "split_frac": ("Float64", "part of the calls' time that could be split"),
    "exposed_ns": ("Int64", "exposed communication of the calls that could be split, all ranks together"),
    "exposed_wait_frac": ("Float64", "waiting / exposed_ns"),
    "hidden_frac": ("Float64", "part of the calls' time hidden behind compute"),
    "verdict": (
        "string",
        (
            "transfer-bound, skew-bound, inconclusive, latency-bound or hidden; for the run not these two, but also "
            "compute-bound, event-bound, mixed, link-bound, copy-bound, sync-bound, allocator-bound, input-bound, "
            "launch-bound, host-bound, idle or hang"
        ),
    ),
    "headline": ("string", "of the run: the largest loss, or who causes it, in one short sentence; else NA"),
    "headline_ranks": ("string", "ranks that the headline is about, ascending, separated by spaces; NA if none"),
    "why": ("string", "of the run: what is behind the headline, and what else takes time; NA if nothing"),
    "because": ("string", "the numbers it rests on; for the run in sentences, the largest loss first"),
    "not_known": ("string", "of the run: what could not be measured, why, and what to do; NA if nothing"),
    "partial": PARTIAL_MEMBER,
})  # fmt: skip


@value
def slower_devices(
    run: Run,
    shapes_ranks: Later[pd.DataFrame],
    mfu: Later[pd.DataFrame],
    gpu_clocks: Later[Mapping[tuple[int, str], Clock]],
    counted_steps: Collection[int],
    breakdown_steps: pd.DataFrame,
) -> dict[int, Slow]:
    """Ranks whose device is slower at the same work than others, or has more of it, where operators were read."""
    from ..metrics.over_steps import in_steps
    from ..metrics.verdicts.slow_devices import slow_devices

    if not (run.details and run.has_starts):
        return {}
    steps = len(counted_steps) or breakdown_steps["step"].nunique()
    return slow_devices(shapes_ranks(), mfu(), steps, gpu_clocks(), in_steps(breakdown_steps, counted_steps))


@value
def culprits_over(
    run: Run,
    collectives: pd.DataFrame,
    late_work: pd.DataFrame,
    slower_devices: Later[dict[int, Slow]],
    bubble_of_schedule: UsualBubble | None,
    heavier_stages: dict[int, HeavyStage],
) -> Callable[[Waiting, int | None], Culprits]:
    """Who is late and why, by who waited for whom, over so many steps."""
    from ..metrics.verdicts.culprits import Culprits

    of_groups = collectives.groupby(["process_group", "pg_ranks"], dropna=False).ngroup()
    of_collectives = of_groups.set_axis(collectives["collective_id"])

    def late(waiting: Waiting, over: int | None) -> Culprits:
        return Culprits(
            ranks=waiting.ranks,
            hosts=waiting.hosts,
            lateness=waiting.lateness,
            late_work=late_work if waiting.steps is None else late_work[late_work["step"].isin(waiting.steps)],
            slow=slower_devices,
            bubble=bubble_of_schedule,
            stages=heavier_stages,
            groups=of_collectives,
            steps=over,
            on_cpu=run.is_of_cpus,
            participation=waiting.participation,
        )

    return late


@value
def typical_culprits(
    recorded_breakdown: pd.DataFrame,
    typical_step: TypicalStep,
    typical_waiting: Waiting,
    culprits_over: Callable[[Waiting, int | None], Culprits],
) -> Culprits:
    """Who is late in a typical step, and why."""
    return culprits_over(typical_waiting, len(typical_step.steps) if len(recorded_breakdown) else 0)


@TableEntry(
    VERDICTS,
    Topic.overview,
    "What limits the run and each collective, one sentence each.",
    "verdicts.md#of-the-run",
    command="table verdicts",
    after="clocks",
    shown=(
        "process_group", "role", "collective", "dtype", "size_bytes", "calls", "exposed_ns", "exposed_wait_frac",
        "hidden_frac", "verdict", "because", "partial",
    ),
    optional=("role",),
    title="What limits it",
    narrow=(
        "collective", "size_bytes", "process_group", "role", "verdict", "exposed_ns", "because", "calls",
        "exposed_wait_frac", "hidden_frac", "dtype",
    ),
    below="because",
)  # fmt: skip
def verdicts(
    run: Run,
    steps: pd.DataFrame,
    breakdown_steps: pd.DataFrame,
    recorded_breakdown: pd.DataFrame,
    breakdown_of_typical_step: pd.DataFrame,
    typical_step: TypicalStep,
    collectives: pd.DataFrame,
    groups: pd.DataFrame,
    members: pd.DataFrame,
    fits: pd.DataFrame,
    clocks: pd.DataFrame,
    hangs: pd.DataFrame,
    typical_waiting: Waiting,
    waiting_in: Callable[[tuple[int, ...] | None], Waiting],
    culprits_over: Callable[[Waiting, int | None], Culprits],
    typical_culprits: Culprits,
    counted_threads: Mapping[tuple[int, int], Counted],
    causes_of_idle: dict[str, float] | None,
    idle_places: Later[IdlePlaces],
    idle_like_part: float,
    longer_steps: Later[Longer | None],
    syncs_steps: Later[pd.DataFrame],
    prices: Prices | None,
    ceiling: Ceiling | None,
    bandwidth: pd.DataFrame,
    bandwidth_ceiling: Later[pd.DataFrame],
    slowdowns: Later[dict[int, Slowdown]],
) -> pd.DataFrame:
    """What limits the run, then every process group, collective and size, in one sentence each."""
    from ..ceilings.headroom import with_share
    from ..metrics.causes.cpu_work import in_idle
    from ..metrics.device.largest_gaps import NO_PLACES
    from ..metrics.roles.table import with_roles
    from ..metrics.verdicts.devices import unequal_devices
    from ..metrics.verdicts.table import Measured, verdict_rows

    typical = typical_step if len(recorded_breakdown) else None
    places = NO_PLACES if typical is None else idle_places().times(idle_like_part)
    measured = Measured(
        collectives=collectives,
        groups=groups,
        participation=members,
        fits=fits,
        hangs=hangs,
        clocks=clocks,
        ranks=run.ranks,
        missing=run.missing_ranks,
        world_size=run.world_size,
        steps=steps,
        by_device=breakdown_steps,
        typical=typical,
        of_typical=None if typical is None else typical_waiting.participation,
        culprits=typical_culprits,
        culprits_in=lambda event: culprits_over(waiting_in(tuple(event)), None),
        idle=causes_of_idle,
        gaps=places.gaps,
        syncs_steps=syncs_steps() if run.details else SYNCS_STEPS.empty(),
        prices=prices,
        on_cpus=run.gloo_beside_gpu,
        idle_gpus=run.idle_gpus,
        unequal_devices=unequal_devices(breakdown_of_typical_step),
        ranges=None if run.runs_python else places.ranges,
        holders=places.holders,
        longer=longer_steps,
        threads=in_idle(breakdown_of_typical_step, counted_threads) if counted_threads else None,
        slowdowns=slowdowns,
    )
    others = "what others get at this size"
    found = with_roles(with_share(VERDICTS.frame(verdict_rows(measured)), bandwidth, "of_normal_frac", others), groups)
    return found if ceiling is None else with_share(found, bandwidth_ceiling(), "of_ceiling_frac", "the ceiling")
