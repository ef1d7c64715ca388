"""The table `late_work`: what a late rank did while it fell behind, beside what others did in that part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import pandas as pd

from ...core.intervals import Spans, total
from ...core.schema import Row
from .cpu_work import (
    BLOCKED,
    COMPUTING,
    IN_PYTHON,
    NO_CPU,
    OF_THREAD,
    Counted,
    CpuWork,
    Detailed,
    Did,
    InPython,
    within,
)
from .details import Between, KernelTimes
from .sequences import without_work

TOTAL, BY_KERNEL, BY_REGION = "total", "kernel", "region"
ALL_CPU, ALL_COMPUTE = "cpu", "compute"
_MOST_RANKS, _WORTH_ASKING = 4, 0.05
"""How many late ranks are looked at, and the part of the waiting that each must have caused: files are read again."""
_LEAST_FRAC, _LEAST_NS = 0.01, 1_000
_MOST_UNSURE = 0.25
"""Part of the time by which a late rank is longer in Python, up to which it may be open whether it was blocked."""
_REGIONS_OF = 3
"""Other ranks whose regions are looked up: one rank takes 1 % of the time of a summary."""


class Behind(NamedTuple):
    """A part of a rank's program in which it fell behind: between two calls of a group, or since the step began.

    `others` are the members it is compared with, `weight_ns` the waiting of others that followed.
    """

    rank: int
    step: int | None
    before: int | None
    until: int
    others: tuple[int, ...]
    weight_ns: int

    def without(self, ranks: Collection[int]) -> Behind:
        """The same part, compared with none of these ranks."""
        return self._replace(others=tuple(rank for rank in self.others if rank not in ranks))


class Lookups(NamedTuple):
    """Where to look up what ranks did.

    `kernel_times` says how long kernels ran, `members` are calls with `readiness`, and `detailed` reads one rank with
    details of its CPU; `on_cpu` says that the run has no GPU. `in_regions` is how long regions of a rank computed
    between some times, as `computed_in_regions`. Each late rank is compared with `most_others` at most. `counted` is
    what side files say of steps, by rank and step.
    """

    kernel_times: KernelTimes
    members: pd.DataFrame
    detailed: Callable[[int], Detailed]
    in_regions: Callable[[int, Sequence[Between]], Mapping[Between, Mapping[str, int]]]
    most_others: int
    counted: Mapping[tuple[int, int], Counted] = {}
    on_cpu: bool = False


def late_work_rows(behind: Iterable[Behind], lookups: Lookups) -> list[Row]:
    """Rows of `late_work`: one per late rank, step and thing that its CPU or device did; the largest difference first.

    Only the ranks that caused most waiting are looked at.
    """
    worst = _worst(behind)
    if not worst:
        return []
    work = _Work(lookups)
    rows = [row for rank, parts in worst.items() for row in work.rows(rank, parts)]
    rows.sort(key=lambda row: -row["extra_ns"])
    return rows


def _worst(behind: Iterable[Behind]) -> dict[int, list[Behind]]:
    """The parts in which the worst ranks fell behind, by rank; of one group each, the one with most waiting.

    Parts of several groups overlap, so the same lateness would count twice.
    """
    weights: dict[int, dict[tuple[int, ...], int]] = defaultdict(lambda: defaultdict(int))
    known = list(behind)
    for one in known:
        weights[one.rank][one.others] += one.weight_ns
    by_rank = {rank: sum(by_others.values()) for rank, by_others in weights.items()}
    least = _WORTH_ASKING * sum(by_rank.values())
    worst = [rank for rank in sorted(by_rank, key=lambda rank: -by_rank[rank]) if by_rank[rank] >= least]
    group = {rank: max(weights[rank], key=lambda others: weights[rank][others]) for rank in worst[:_MOST_RANKS]}
    return {rank: [b for b in known if b.rank == rank and b.others == others] for rank, others in group.items()}


class _Work:
    """What ranks did, each looked up once."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        first = lookups.members.drop_duplicates(["collective_id", "rank"])
        keys = list(zip(first["collective_id"].tolist(), first["rank"].tolist(), strict=True))
        self._ready = dict(zip(keys, first["ready_own_ns"].tolist(), strict=True))
        began = first["began_own_ns"] if "began_own_ns" in first else pd.Series(pd.NA, first.index, dtype="Int64")
        self._began = {key: int(ns) for key, ns in zip(keys, began.tolist(), strict=True) if not pd.isna(ns)}
        self._work: dict[int, tuple[CpuWork, Spans | None]] = {}

    def rows(self, rank: int, behind: list[Behind]) -> list[Row]:
        """The rows of a late rank in all steps, from the parts in which it fell behind."""
        others = behind[0].others[: self._lookups.most_others]
        steps: dict[int | None, list[Behind]] = defaultdict(list)
        for one in behind:
            steps[self._step(one)].append(one)
        times = {(step, one): self._times(parts, one) for step, parts in steps.items() for one in (rank, *others)}
        computed = self._computed(times)
        took: dict[int | None, dict[int, dict[Did, int]]] = {}  # by step and rank, the late one first
        for step in steps:
            known = [one for one in (rank, *others) if times[step, one]]
            if rank in known and len(known) > 1:
                took[step] = {one: self._took(one, times[step, one]) | computed[step, one] for one in known}
                self._add_python(took[step], step)
        if _extra_ns(took, ALL_COMPUTE) > max(_extra_ns(took, ALL_CPU), 0):
            self._add_regions(took, times)
            self._add_threads(took)
        return [row for step, ranks in took.items() for row in _rows(rank, step, *ranks.values())]

    def _step(self, behind: Behind) -> int | None:
        """The step of a part, which may reach over two: the one in which the rank's device was idle longer than others.

        What makes a rank late at the end of a step shows in the first call of the next one.
        """
        mine, *theirs = (
            self._idle_by_step(behind, rank) for rank in (behind.rank, *behind.others[: self._lookups.most_others])
        )
        extra = {step: idle - median(other.get(step, 0) for other in theirs) for step, idle in mine.items()}
        step = max(extra, key=lambda step: extra[step], default=None)
        return behind.step if step is None or extra[step] <= 0 else step

    def _idle_by_step(self, behind: Behind, rank: int) -> dict[int, int]:
        work, gaps = self._cpu(rank)
        times = self._times([behind], rank)
        return work.by_step(within(gaps, times)) if gaps is not None else {}

    def _cpu(self, rank: int) -> tuple[CpuWork, Spans | None]:
        """What the CPU of a rank did, and when its device had no work because of it; None if not known."""
        if rank not in self._work:
            tables = self._lookups.detailed(rank)
            self._work[rank] = CpuWork(tables), without_work(tables, self._lookups.members, rank)
        return self._work[rank]

    def _times(self, behind: list[Behind], rank: int) -> list[Between]:
        wanted = set()
        for one in behind:
            end, begin = self._ready.get((one.until, rank)), self._began.get((one.until, rank))
            if one.before is not None:
                begin = self._ready.get((one.before, rank))
            if begin is not None and end is not None and begin < end:
                wanted.add((int(begin), int(end)))
        return sorted(wanted)

    def _add_regions(
        self,
        took: Mapping[int | None, Mapping[int, dict[Did, int]]],
        times: Mapping[tuple[int | None, int], list[Between]],
    ) -> None:
        """Add to `took`, by step and rank, how long regions computed; `times` are the parts of each."""
        steps_of: dict[int, list[int | None]] = defaultdict(list)
        for step, ranks in took.items():
            for rank in list(ranks)[: 1 + _REGIONS_OF]:
                steps_of[rank].append(step)
        for rank, steps in steps_of.items():
            ran = self._lookups.in_regions(rank, sorted({between for step in steps for between in times[step, rank]}))
            for step in steps:
                did: dict[Did, int] = defaultdict(int)
                for between in times[step, rank]:
                    for region, took_ns in ran.get(between, {}).items():
                        did[BY_REGION, region, None, None] += took_ns
                took[step][rank].update(did)

    def _add_threads(self, took: Mapping[int | None, Mapping[int, dict[Did, int]]]) -> None:
        """Add to `took` what the threads of ranks without a GPU did in whole steps, if side files say it of all.

        An operator that takes longer need not compute longer.
        """
        known = {
            (step, rank): self._lookups.counted.get((rank, step)) if step is not None else None
            for step, ranks in took.items()
            for rank in ranks
        }
        if not self._lookups.on_cpu or None in known.values():
            return
        for (step, rank), counted in known.items():
            if counted is not None:
                did = {COMPUTING: counted.cpu_ns, BLOCKED: counted.blocked_ns, NO_CPU: counted.ready_ns or 0}
                took[step][rank] |= {(OF_THREAD, what, None, None): ns for what, ns in did.items()}

    def _took(self, rank: int, times: list[Between]) -> dict[Did, int]:
        """How long the CPU of a rank did what while its device had no work, in ns."""
        work, gaps = self._cpu(rank)
        if gaps is None:
            return {}
        idle = within(gaps, times)
        whole: dict[Did, int] = {(TOTAL, ALL_CPU, None, None): total(idle)}
        return whole | (work.during(idle) if work.is_known else {})

    def _add_python(self, took: dict[int, dict[Did, int]], step: int | None) -> None:
        """Add to what ranks did, the late one first, how they spent the time outside of any operator in the whole step.

        Nothing is added where the counters of these ranks leave it open.
        """
        known = {rank: self._lookups.counted.get((rank, step)) for rank in took if step is not None}
        counted = {rank: of_rank for rank, of_rank in known.items() if of_rank is not None}
        if step is None or len(counted) < len(took):
            return
        late, *others = counted
        # Whoever is late waits for the others, and for its device, no longer than they do.
        waits_ns = int(median(counted[rank].blocked_ns for rank in others))
        found: dict[int, InPython] = {}
        for rank in took:
            work, gaps = self._cpu(rank)
            of_rank = counted[rank]
            elsewhere_ns = waits_ns if rank == late else of_rank.blocked_ns
            one = None if gaps is None else work.in_python(gaps, step, of_rank, elsewhere_ns)
            if one is None:
                return
            found[rank] = one
        longer_ns = found[late].whole_ns - median(found[rank].whole_ns for rank in others)
        if found[late].unsure_ns + median(found[rank].unsure_ns for rank in others) <= _MOST_UNSURE * longer_ns:
            for rank, one in found.items():
                took[rank] |= {(IN_PYTHON, what, None, None): round(ns) for what, ns in one.took_ns.items()}

    def _computed(
        self, times: Mapping[tuple[int | None, int], list[Between]]
    ) -> dict[tuple[int | None, int], dict[Did, int]]:
        """How long each kernel ran, in ns, by step and rank; `times` are the parts of each."""
        wanted: dict[int, set[Between]] = defaultdict(set)
        for (_, rank), periods in times.items():
            wanted[rank] |= set(periods)
        ran = self._lookups.kernel_times({rank: sorted(periods) for rank, periods in wanted.items() if periods})
        spent: dict[tuple[int | None, int], dict[Did, int]] = {}
        for (step, rank), periods in times.items():
            took: dict[Did, int] = defaultdict(int)
            for between in periods:
                for name, took_ns in ran.get(rank, {}).get(between, {}).items():
                    took[BY_KERNEL, name, None, None] += took_ns
                    took[TOTAL, ALL_COMPUTE, None, None] += took_ns
            spent[step, rank] = dict(took)
        return spent


def _extra_ns(took: Mapping[int | None, Mapping[int, Mapping[Did, int]]], of: str) -> float:
    """How much more of all CPU or compute time the first rank has than the median of the others, over all steps."""
    whole: Did = (TOTAL, of, None, None)
    by_step = [[did.get(whole, 0) for did in ranks.values()] for ranks in took.values()]
    return sum(mine - median(theirs) for mine, *theirs in by_step)


def _rows(rank: int, step: int | None, mine: dict[Did, int], *theirs: dict[Did, int]) -> list[Row]:
    rows: list[Row] = []
    for key in sorted({*mine, *(key for other in theirs for key in other)}, key=str):
        kind, what, operator, region = key
        beside = theirs[:_REGIONS_OF] if kind == BY_REGION else theirs
        took, usual = mine.get(key, 0), int(median(other.get(key, 0) for other in beside))
        rows.append({
            "rank": rank, "step": step, "kind": kind, "what": what, "operator": operator, "range": region,
            "took_ns": took, "others_ns": usual, "extra_ns": took - usual,
        })  # fmt: skip
    least = max((abs(row["extra_ns"]) for row in rows if row["kind"] == TOTAL), default=0) * _LEAST_FRAC
    return [row for row in rows if row["kind"] in (TOTAL, OF_THREAD) or abs(row["extra_ns"]) >= max(least, _LEAST_NS)]
