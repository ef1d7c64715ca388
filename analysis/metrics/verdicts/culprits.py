"""The ranks that others wait for, and why they are late, or that none stands out; `words` says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd

from ..causes.blame import as_late, shares_of_waiting, standing_out
from ..pipelines.stages import HeavyStage
from ..pipelines.table import UsualBubble
from ..prices import Excess, LateRanks, PricedLinks, Prices, Since, UnevenExperts
from .doing import (
    Doing,
    RegionOf,
    instead_of_computing,
    longer_on_cpu,
    on_cpu,
    on_device,
    only_step,
    region_on_device,
)
from .slow_devices import MoreWork, Slow, stage_or_device

MOST_NAMED = 3
_MOST_OF_IT = 0.5  # of what a rank computes longer must come from its slow device, or from more work
_NEARLY_ALL = 0.9  # of the waiting for a rank: what else makes it late, perhaps in other steps, need not be said
_ON_DEVICE = ("compute", "memory")


class Reason(NamedTuple):
    """Why a rank is late: `because`, as in the table `lateness`, and by how much, in ms.

    That is `per_step`, the mean of so many `steps`, per occasion, or all in one `step`, `alone` if hardly anything else
    makes it late; or `since` a step. `doing` is what its CPU did, `instead` what its thread did whose operators take
    longer without computing longer (`instead_of_computing`); `kernel` and `region` are where its device took longer,
    and `slow` is why. `on_cpu` says that the run has no GPU.
    """

    rank: int
    because: str
    more_ms: float
    per_step: bool = False
    steps: int = 1
    step: int | None = None
    alone: bool = False
    since: Since | None = None
    doing: Doing | None = None
    instead: str | None = None
    kernel: str | None = None
    region: RegionOf | None = None
    slow: Slow | None = None
    on_cpu: bool = False


class Blamed(NamedTuple):
    """Ranks that stand out by how much others wait for them, or all of a `host`: `frac` of the waiting.

    Ranks `as_late` would be waited for without a single one, and `frac` is also of waiting for them. `reason` is why
    the first of them is late, the latest of a host; None if not known. `places` are those of ranks in the job, where
    they are known.
    """

    ranks: tuple[int, ...]
    host: str | None
    frac: float
    shares: Mapping[int, float]
    as_late: tuple[int, ...]
    reason: Reason | None
    places: Mapping[int, str]


class Waited(NamedTuple):
    """For whom others wait: `blamed`, None if nobody stands out.

    `explained_frac` of the waiting is for some rank, `most_frac` for the one that causes most of it. `bubble` is that
    of a pipeline, where it is most of the waiting.
    """

    blamed: Blamed | None
    explained_frac: float
    most_frac: float
    bubble: UsualBubble | None = None


class Culprits(NamedTuple):
    """Late ranks and why they are late: tables `ranks`, `hosts`, `lateness` and `late_work`, over `steps` steps.

    `slow` gives ranks whose device is slower than others at the same work, or has more of it. `steps` is 0 where none
    are marked. It is None if the steps are one event, such as a long step: then lateness is given in all, not per step.
    `groups` is the process group of each collective, `participation` the table, `on_cpu` says that the run has no GPU,
    and `bubble` is that of its pipeline, if it has one, with the heavy `stages` of ranks.
    """

    ranks: pd.DataFrame
    hosts: pd.DataFrame
    lateness: pd.DataFrame
    late_work: pd.DataFrame
    slow: Callable[[], Mapping[int, Slow]]
    groups: pd.Series[int]
    steps: int | None
    on_cpu: bool
    participation: pd.DataFrame
    bubble: UsualBubble | None
    stages: Mapping[int, HeavyStage]

    def waited(self) -> Waited:
        """For whom the others wait, and why."""
        shares = self._shares()
        most = float(shares.max()) if len(shares) else 0.0
        return Waited(self._blamed(shares), float(shares.sum()), most, self.bubble)

    def _blamed(self, shares: pd.Series[float]) -> Blamed | None:
        host = self._late_host(shares)
        if host is not None:
            name, ranks, frac = host
            own = shares.reindex(ranks).fillna(0)
            reason = self.reason(int(own.idxmax()))
            return Blamed(
                tuple(ranks), name, frac, dict(zip(ranks, own.tolist(), strict=True)), (), reason, self.places
            )
        named = [int(rank) for rank in standing_out(shares)]
        if not named:
            return None
        alike = tuple(sorted(as_late(self.participation, named))) if len(named) == 1 else ()
        own = shares.reindex([*named, *alike]).fillna(0.0)
        return Blamed(
            tuple(named),
            None,
            float(own.sum()),
            {rank: float(own[rank]) for rank in named},
            alike,
            self.reason(named[0]),
            self.places,
        )

    def _shares(self) -> pd.Series[float]:
        return shares_of_waiting(self.ranks, "rank")

    def _late_host(self, shares: pd.Series[float]) -> tuple[str, list[int], float] | None:
        """A host with several late ranks, unless a single rank explains it: its name, ranks and share."""
        by_host = shares_of_waiting(self.hosts, "host")
        ranks_of = dict(zip(self.hosts["host"], self.hosts["ranks"].str.split(), strict=True))
        for host in standing_out(by_host) if len(by_host) > 1 else []:
            ranks = [int(r) for r in ranks_of[host]]
            shares_of_host = shares.reindex(ranks).fillna(0)
            if len(ranks) > 1 and not standing_out(shares_of_host / max(shares_of_host.sum(), 1e-12)):
                return host, ranks, float(by_host[host])
        return None

    @property
    def places(self) -> dict[int, str]:
        """The place of each rank in the job, such as `tp 1, pp 0, dp 1`, where it is known."""
        placed = self.ranks.dropna(subset=["place"])
        return dict(zip(placed["rank"].tolist(), placed["place"].tolist(), strict=True))

    def standing_out(self) -> set[int]:
        """The ranks that the others wait for most."""
        return set(standing_out(self._shares()))

    def reason(self, rank: int, excess: Excess | None = None) -> Reason | None:
        """Why the rank is late; None if that is not known.

        Its `excess` may say since when, and how much its CPU works longer, if its lateness shows less: in a pipeline,
        the other stages come as late.
        """
        late = self._late(rank)
        if late is None:
            return None
        if excess is not None and late.because == "cpu" and late.per_step:
            of_cpu_ms = excess.cpu_ns / 1e6
            late = late._replace(more_ms=late.more_ms if late.more_ms >= _MOST_OF_IT * of_cpu_ms else of_cpu_ms)
        since = None if excess is None else excess.since if late.because in _ON_DEVICE else excess.cpu_since
        if since is not None and late.per_step:
            late = late._replace(more_ms=late.more_ms * late.steps / since.steps, since=since, steps=since.steps)
        if late.because == "compute":
            of_step = late.more_ms if late.per_step else None
            return self.on_device(late._replace(kernel=on_device(self.late_work, rank)), of_step)
        if late.because not in ("cpu", "data"):
            return late
        late = late._replace(doing=on_cpu(self.late_work, rank))
        if self.on_cpu and late.because == "cpu":
            # How late that made it says less: it may do other things longer, too, or others may be late.
            longer_ms = longer_on_cpu(self.late_work, rank) / late.steps
            return late._replace(more_ms=longer_ms if longer_ms > 0 else late.more_ms)
        return late

    def of_cpu(self, rank: int, excess: Excess) -> Reason:
        """The reason of a rank whose CPU works longer by so much, but that nobody seems to wait for."""
        doing = on_cpu(self.late_work, rank)
        return Reason(rank, "cpu", excess.cpu_ns / 1e6, per_step=bool(self.steps), doing=doing, on_cpu=self.on_cpu)

    def of_stage(self, rank: int, excess: Excess) -> Reason | None:
        """The reason of a rank one of whose stages takes longer than the others; None if that is not why it is late."""
        heavy = self.stages.get(rank)
        if heavy is None or not self.steps or heavy.ms_per_step < _MOST_OF_IT * excess.whole_ns / 1e6:
            return None
        if stage_or_device(heavy, self.slow().get(rank)) is not heavy:
            return None
        return Reason(rank, "compute", heavy.ms_per_step, per_step=True, on_cpu=self.on_cpu, slow=heavy)

    def on_device(self, late: Reason, of_step_ms: float | None) -> Reason:
        """The reason with where the device takes longer, and its fault if that is why it does in a step."""
        slow = self.slow().get(late.rank) if of_step_ms is not None else None
        is_why = slow is not None and of_step_ms is not None and slow.ms_per_step >= _MOST_OF_IT * of_step_ms
        return late._replace(
            region=region_on_device(self.late_work, late.rank),
            instead=instead_of_computing(self.late_work, late.rank),
            slow=slow if is_why else None,
        )

    def _late(self, rank: int) -> Reason | None:
        """What makes a rank late, and by how much, without what it does."""
        rows = self.lateness[(self.lateness["rank"] == rank) & (self.lateness["origin_rank"] == rank)]
        rows = rows[rows["because"].notna()].astype(
            {"caused_wait_ns": "Float64", "new_ns": "Float64"}
        )  # sums may be long
        if not len(rows):
            return None
        by_reason = rows.groupby("because")["caused_wait_ns"].sum()
        before = rows[rows["because"] == "start"]["new_ns"].max()
        traced = by_reason.drop("start", errors="ignore")
        because = str((traced if traced.sum() > by_reason.sum() / 2 else by_reason).idxmax())
        rows = rows[rows["because"] == because]
        new = rows.groupby(rows["collective_id"].map(self.groups))["new_ns"]
        late = Reason(rank, because, float(new.sum().max()) / 1e6, on_cpu=self.on_cpu)
        if because == "start":  # there is one first step
            return late._replace(more_ms=float(new.max().max()) / 1e6)
        if self.steps is None:
            return late
        once = only_step(self.late_work, rank, because, self.steps)
        if once is not None:
            return late._replace(step=once, alone=bool(by_reason.max() >= _NEARLY_ALL * by_reason.sum()))
        whole, steps = float(new.sum().max()), self.steps
        if steps > 1 and pd.notna(before) and before >= _MOST_OF_IT * whole / steps:
            steps -= 1  # what made it late in the first one was before the trace
        more_ms = whole / 1e6 / steps if steps else float(new.median().max()) / 1e6
        return late._replace(more_ms=more_ms, per_step=bool(self.steps), steps=steps or 1)


class Fault(NamedTuple):
    """Ranks or links that differ from others of their kind: what a step would gain if they did not, in ms.

    Of `late` ranks, `reasons` says why the first are, and `places` where they are in the job. The gain `may_be_less`
    where ranks without a trace may be as late, and as much as `most_ms` where others wait for so much longer;
    `unexplained_ms` is how long that is. Where ranks have more work than others, somebody has to do it: `evened_ms` is
    what a step gains, at most, with equal shares. Or they are `uneven` experts.
    """

    remedy: str
    verdict: str
    ms: float
    may_be_less: bool
    late: LateRanks | None = None
    links: PricedLinks | None = None
    reasons: Mapping[int, Reason] = {}
    places: Mapping[int, str] = {}
    most_ms: float | None = None
    unexplained_ms: float | None = None
    evened_ms: float | None = None
    uneven: UnevenExperts | None = None

    @property
    def ranks(self) -> frozenset[int]:
        """The late ranks, or those whose experts are always the busiest; empty for links."""
        if self.uneven is not None:
            return frozenset(self.uneven.ranks)
        return frozenset() if self.late is None else frozenset(self.late.ranks)


def faults_of(prices: Prices, culprits: Culprits) -> list[Fault]:
    """The faults of a run, the costliest first. `culprits` describe what a rank does."""
    faults = []
    if prices.late is not None:
        faults.append(_late_fault(prices.late, prices, culprits))
    if prices.slow is not None:
        gain = prices.gains["slow_links"]
        faults.append(Fault("slow_links", "link-bound", gain.ns / 1e6, gain.low_ns <= 0, links=prices.slow))
    if prices.uneven is not None:
        gain = prices.gains["balanced_experts"]
        faults.append(Fault("balanced_experts", "skew-bound", gain.ns / 1e6, gain.low_ns <= 0, uneven=prices.uneven))
    return sorted(faults, key=lambda fault: -fault.ms)


def _late_fault(late: LateRanks, prices: Prices, culprits: Culprits) -> Fault:
    reasons = {
        rank: late_reason(rank, late.excess[rank], culprits, on_cpu=rank in late.on_cpu)
        for rank in late.ranks[:MOST_NAMED]
    }
    gain = prices.gains["no_straggler"]
    unexplained_ms = None if prices.unexplained_ns is None else prices.unexplained_ns / 1e6
    ms, most_ms, may_be_less = gain.ns / 1e6, unexplained_ms, gain.low_ns <= 0
    if may_be_less and most_ms is not None:
        ms, most_ms = most_ms, None
    has_more = any(isinstance(reason.slow, MoreWork) for reason in reasons.values())
    evened = prices.gains.get("no_jitter") if has_more else None
    heavy = [reason.slow.even_ms for reason in reasons.values() if isinstance(reason.slow, HeavyStage)]
    evened_ms = max(heavy) if heavy else None if evened is None else evened.ns / 1e6
    return Fault(
        "no_straggler",
        "skew-bound",
        ms,
        may_be_less,
        late=late,
        reasons=reasons,
        places=culprits.places,
        most_ms=most_ms,
        unexplained_ms=unexplained_ms,
        evened_ms=evened_ms,
    )


def late_reason(rank: int, excess: Excess, culprits: Culprits, *, on_cpu: bool) -> Reason:
    """What makes this rank late, by what it does longer than others."""
    heavy = culprits.of_stage(rank, excess)
    if heavy is not None:
        return heavy
    if on_cpu:
        found = culprits.reason(rank, excess)
        if found is None or (
            # In a pipeline other ranks are as late, and what is left in its lateness is chance.
            found.because in _ON_DEVICE and found.per_step and found.more_ms < _MOST_OF_IT * excess.cpu_ns / 1e6
        ):
            return culprits.of_cpu(rank, excess)
        return found
    # How late it came says less: where several are late, each is so only where it comes last.
    is_copying, steps = excess.copies_ns > excess.compute_ns, culprits.steps
    late = Reason(
        rank,
        "memory" if is_copying else "compute",
        max(excess.compute_ns, excess.copies_ns) / 1e6,
        per_step=bool(steps),
        on_cpu=culprits.on_cpu,
        kernel=None if is_copying else excess.kernel,
    )
    of_step_ms = late.more_ms if steps else None
    if excess.step is not None and steps:
        late = late._replace(more_ms=late.more_ms * steps, per_step=False, step=excess.step, alone=excess.steps > 1)
        of_step_ms = None
    elif excess.since is not None and steps:
        late = late._replace(more_ms=late.more_ms * steps / excess.since.steps, since=excess.since)
    return late if is_copying else culprits.on_device(late, of_step_ms)
