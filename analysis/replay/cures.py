"""The changes that `remedies` prices: one entry for each, and nowhere else a second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pandas as pd

from ..core import markers
from ..metrics.typical_step import TypicalStep
from . import changes
from .at_once import needed_at_once
from .links import Links, links_of
from .scenarios import host, transfers, usual
from .scenarios.scenario import Scenario

LEAST = 0.01
"""Of a step: what takes less is not worth playing the run again without it, nor is a smaller gain worth naming."""


@dataclass(frozen=True)
class Cure:
    """A change that is priced: the `verdict` on a run in which it gains most, what `costs` that much, `how` to begin.

    `make` is how it is played, and `option` how `predict` is asked for it; None for ranks, links and experts that
    differ from others, which are found in a run; ranks and links complete the option. A bound is more than anybody can
    do: what can be done comes before it from a gain of this part of its own (`gives_way_from`).
    It is worth a try where these parts of a step, causes of idle time, or, without a GPU, annotations that begin like
    that, or rows of `syncs` of that kind take enough. Changes by which ranks become like others (`of_ranks`) are always
    tried: where CPUs wait for each other, no device need show it.
    What a CPU does, by name, comes before what makes up for it (`is_named`).
    `how_under` has other advice for frameworks, by how their annotations begin, and `how_at_once` is that where
    collectives are needed at once (`needed_at_once`), `how_normal` where links do what those of others do.
    """

    name: str
    option: str
    make: Callable[[Links | None], Scenario] | None
    verdict: str
    costs: str
    how: str
    gives_way_from: float | None = None
    of_ranks: bool = False
    of_step: tuple[str, ...] = ()
    of_idle: tuple[str, ...] = ()
    annotated: str = ""
    of_kind: str = ""
    is_named: bool = False
    how_under: Mapping[str, str] = field(default_factory=dict)
    how_at_once: str = ""
    how_normal: str = ""

    def of(self, ranks: Collection[int], host: str | None = None) -> Cure:
        """The same for these ranks, or this host."""
        who = usual.named_ranks(sorted(ranks), host)
        costs = f"{who[0].upper()}{who[1:]} cost{'' if len(ranks) > 1 and host is None else 's'}"
        return replace(
            self,
            option=f"{self.option} {host or ','.join(map(str, sorted(ranks)))}",
            costs=costs if self.of_ranks else self.costs,
        )

    def under(self, names: pd.Series[str], *, at_once: bool, links_are_normal: bool) -> Cure:
        """The same with what to do under the framework that made annotations of these names."""
        how = next((how for mark, how in self.how_under.items() if names.str.startswith(mark).any()), self.how)
        how = self.how_normal if links_are_normal and self.how_normal else how
        return replace(self, how=self.how_at_once if at_once and self.how_at_once else how)


_NEARLY_ALL, _HALF = 0.9, 0.5
_A_QUARTER = 0.25  # links twice as fast are a comparison, not something to do
_DDP, _FSDP = "DistributedDataParallel.forward", "FSDP::"
"""How annotations of torch's frameworks begin."""


def _played(make: Callable[[], Scenario]) -> Callable[[Links | None], Scenario]:
    return lambda _: make()


def _twice_as_fast(links: Links | None) -> Scenario:
    return transfers.faster_links(2.0, {} if links is None else links_of(links))


CURES = {
    each.name: each
    for each in (
        Cure(
            "no_straggler",
            changes.WITHOUT_STRAGGLER.asked(),
            None,
            "skew-bound",
            "Late ranks cost",
            "see `ranks` and `lateness` for what takes longer there, `hosts` for a slow machine",
            of_ranks=True,
        ),
        Cure(
            "slow_links",
            changes.LINKS_AS_OTHERS.asked(),
            None,
            "link-bound",
            "Slow links cost",
            "see `bandwidth` for their groups; cables, switches, NICs and NCCL settings of these ranks' hosts",
        ),
        Cure(
            "balanced_experts",
            changes.BALANCED_EXPERTS.asked(),
            None,
            "skew-bound",
            "Uneven experts cost",
            "see `experts --by layer`: an auxiliary loss or a bias per expert where hot ranks change, other experts or "
            "copies of popular ones on hot ranks where they do not",
        ),
        Cure(
            "no_jitter",
            changes.NO_JITTER.asked(),
            _played(usual.no_jitter),
            "skew-bound",
            "Ranks that take turns in being late cost",
            "even out the work of the ranks; see `rank_steps` for where waiting is",
            gives_way_from=_HALF,
            of_ranks=True,
        ),
        Cure(
            "overlap",
            changes.OVERLAP.asked("perfect"),
            _played(usual.perfect_overlap),
            "transfer-bound",
            "Transfers cost",
            "start collectives earlier (prefetch, smaller buckets), or give them independent compute",
            gives_way_from=_HALF,
            of_step=("exposed_transfer_ns", "exposed_unsplit_ns"),
            how_under={
                _FSDP: (
                    "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP, or "
                    "forward_prefetch=True; see `predict --no-reshard --separate-gathers`"
                ),
                _DDP: "smaller buckets begin earlier: bucket_cap_mb of DistributedDataParallel; see `predict`",
            },
            how_at_once=(
                "what comes next needs each at once, so nothing can run beside it: fewer or fused collectives, "
                "one-shot or custom all_reduce for small sizes, CUDA graphs; or two halves of a batch in turns"
            ),
        ),
        Cure(
            "twice_links",
            changes.LINKS.asked("2"),
            _twice_as_fast,
            "transfer-bound",
            "Transfers cost",
            "see `bandwidth` for what they reach now: NCCL settings, topology, other links",
            gives_way_from=_A_QUARTER,
            of_step=("exposed_transfer_ns", "exposed_unsplit_ns"),
            how_normal=(
                "links are as fast as those of others (`of_normal_frac` of `bandwidth`), so there is nothing to mend: "
                "only other links are faster, or fewer bytes"
            ),
        ),
        Cure(
            "no_copies",
            changes.NO_COPIES.asked("all"),
            _played(host.no_copies),
            "copy-bound",
            "Copies and fills cost",
            "pinned memory and non_blocking copies on a stream of their own; see `kernels`",
            of_step=("exposed_memory_ns",),
        ),
        Cure(
            "no_data_wait",
            changes.NO_DATA_WAIT.asked(),
            _played(host.no_data_wait),
            "input-bound",
            "Waiting for batches costs",
            "more workers of the data loader, prefetch_factor, less work per sample",
            of_idle=("data_ns",),
            annotated=markers.LOADING,
            is_named=True,
        ),
        Cure(
            "no_syncs",
            changes.NO_SYNC.asked("all"),
            _played(host.no_blocking),
            "sync-bound",
            "Waiting for devices costs",
            "see `syncs`: no `.item()`, `.cpu()` or `print` of a tensor in a step, non_blocking copies",
            of_idle=("sync_ns", "drained_ns"),
        ),
        Cure(
            "no_allocations",
            changes.NO_ALLOCATION.asked(),
            _played(host.no_allocation),
            "allocator-bound",
            "Allocating and freeing memory costs",
            "see `syncs`: smaller batches, PYTORCH_ALLOC_CONF=expandable_segments:True, no empty_cache()",
            of_idle=("alloc_ns",),
            is_named=True,
        ),
        Cure(
            "no_gc",
            changes.NO_GC.asked(),
            _played(host.no_gc),
            "launch-bound",
            "Collecting garbage costs",
            "gc.freeze() before the first step; or gc.disable(), and gc.collect() on all ranks in the same steps",
            of_idle=("gc_ns",),
            annotated=markers.PYTHON_GC,
            is_named=True,
        ),
        Cure(
            "no_long_calls",
            changes.NO_LONG_CALLS.asked(),
            _played(host.no_long_calls),
            "launch-bound",
            "Unusually long calls and operators cost",
            "see `syncs`: warm up before capturing, as by schedule(wait=1, warmup=3); or CUDA_MODULE_LOADING=EAGER",
            of_kind="long",
            is_named=True,
        ),
        Cure(
            "no_compilation",
            changes.NO_COMPILATION.asked(),
            _played(host.no_compilation),
            "launch-bound",
            "Compiling costs",
            "see `syncs`: compile in steps before the traced ones, keep a cache of it, fewer shapes that change",
            of_kind="compile",
            is_named=True,
        ),
        Cure(
            "no_pauses",
            changes.NO_PAUSES.asked(),
            _played(host.no_pauses),
            "host-bound",
            "Pauses of CPUs for 1 ms or more cost",
            "see `gaps` and `regions` for what they are in: less of it in a step, or in another thread or process",
            gives_way_from=_HALF,
            of_idle=("operator_ns", "outside_ns"),
        ),
        Cure(
            "launch_ahead",
            changes.CUDA_GRAPHS.asked(),
            _played(host.no_launch_overhead),
            "launch-bound",
            "Late launches cost",
            "CUDA graphs, torch.compile, larger batches: fewer and longer kernels",
            gives_way_from=_HALF,
            of_idle=("launching_ns", "operator_ns", "outside_ns"),
            how_under={
                _DDP: (
                    "CUDA graphs, torch.compile, larger batches; broadcast_buffers=False of DistributedDataParallel "
                    "where buffers need not be the same"
                )
            },
        ),
    )
}


def worth_pricing(
    typical: TypicalStep,
    idle: pd.DataFrame,
    annotations: pd.DataFrame,
    syncs_steps: pd.DataFrame,
    calls: pd.DataFrame,
    *,
    on_cpus: bool,
    links_are_normal: bool,
) -> list[Cure]:
    """The changes that concern enough of a typical step to be played.

    `idle` is the table `idle`, or `idle_steps` of the same steps: without a GPU, `on_cpus`, it has no causes, and
    `annotations` tell instead. They also tell the framework. `syncs_steps` and `calls` are the tables. Where
    `links_are_normal`, nothing is said of mending them.
    """
    least = LEAST * typical.parts["window_ns"]
    # A single rank may be idle, and all others wait for it.
    most = idle.groupby(["rank", "device"]).mean(numeric_only=True).max()
    names, times = annotations["name"].fillna(""), annotations["dur_ns"] / max(len(typical.steps), 1)
    counted = syncs_steps[syncs_steps["step"].isin(list(typical.steps))] if typical.steps else syncs_steps
    lost = (counted.groupby(["kind", "rank"])["lost_ns"].sum() / max(len(typical.steps), 1)).groupby("kind").max()

    def annotated_ns(begins: str) -> float:
        return float(times.where(names.str.startswith(begins), 0.0).groupby(annotations["rank"]).sum().max())

    def is_worth(change: Cure) -> bool:
        return (
            change.of_ranks
            or (bool(change.of_step) and sum(typical.parts[part] for part in change.of_step) >= least)
            or (bool(change.of_idle) and sum(most[list(change.of_idle)].fillna(0)) >= least)
            or (on_cpus and bool(change.annotated) and annotated_ns(change.annotated) >= least)
            or (bool(change.of_kind) and change.of_kind in lost and lost[change.of_kind] >= least)
        )

    kinds = pd.Series(names.unique(), dtype="string")
    exposed_ns = sum(typical.parts[f"exposed_{part}_ns"] for part in ("transfer", "wait", "unsplit"))
    at_once = needed_at_once(calls, typical.parts["overlap_ns"], exposed_ns)
    under = partial(Cure.under, names=kinds, at_once=at_once, links_are_normal=links_are_normal)
    return [under(change) for change in CURES.values() if is_worth(change)]
