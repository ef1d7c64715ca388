"""Predict other bucket sizes of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ....common.nccl_tests import dtype_name, item_bytes
from ...core.arrays import Ints
from ...core.markers import GRADIENT, PROFILER_STEP
from ...core.schema import grouped
from ...core.steps import NO_STEP, steps_at
from ...errors import NothingMeasured
from ...metrics.clocks.table import aligned
from ..edges import Edges
from ..engine import Playing
from ..links import Linked
from ..programs import NONE
from .scenario import Change, Scenario

MIB = 1 << 20
_FIRST_NEW = 1 << 40
"""Numbers of new collectives begin here."""
_MOST_BUCKETS = 1 << 20
_GLOO_THREADS = 2
_WHOLE = ("row", "lane", "name", "start", "end", "step", "collective", "needs", "launch")
_TIMES = ("delay", "duration", "transfer")


@dataclass(frozen=True)
class Gradients:
    """Times at which gradients became ready on one rank, in ns on the common clock; all of shape (n,)."""

    step: Ints
    ready_ns: Ints
    size_bytes: Ints

    def of_step(self, step: int) -> Gradients:
        """The gradients of one step, in order."""
        rows = np.flatnonzero(self.step == step)
        rows = rows[np.argsort(self.ready_ns[rows], kind="stable")]
        return Gradients(self.step[rows], self.ready_ns[rows], self.size_bytes[rows])


def gradients_of(annotations: pd.DataFrame, clocks: pd.DataFrame) -> dict[int, Gradients]:
    """Gradients of each rank that were recorded with shapes, within steps."""
    gradients = {}
    for (rank,), of_rank in grouped(annotations, ["rank"]):
        ready = of_rank[(of_rank["name"] == GRADIENT) & of_rank["in_dims"].notna()]
        steps = of_rank[of_rank["name"].str.startswith(PROFILER_STEP).fillna(False)]
        times = (ready["start_ns"] + ready["dur_ns"]).to_numpy()
        marks = zip(steps["name"], steps["start_ns"], steps["dur_ns"], strict=True)
        sizes = [_size_bytes(dims, types) for dims, types in zip(ready["in_dims"], ready["in_types"], strict=True)]
        on_clock = aligned(ready["start_ns"] + ready["dur_ns"], ready["rank"], clocks).to_numpy()
        every = Gradients(steps_at(times, marks), on_clock, np.array(sizes, dtype=np.int64))
        known = every.step != NO_STEP
        gradients[int(rank)] = Gradients(every.step[known], every.ready_ns[known], every.size_bytes[known])
    return gradients


def _size_bytes(dims: Sequence[Sequence[int]], types: Sequence[str] | None) -> int:
    dtype = dtype_name(types[0]) if types else None
    return prod(dims[0]) * item_bytes(dtype) if dims and dtype else 0


class _Bucket(NamedTuple):
    """A range of gradients, and their size in bytes."""

    first: int
    stop: int
    size_bytes: int


class _Step(NamedTuple):
    """One step of a rank: its gradients, and its all_reduces with the buckets that they hold."""

    gradients: Gradients
    nodes: list[int]
    buckets: list[_Bucket]


def rebucketed(cap_mib: float, gradients: Mapping[int, Gradients], links: Mapping[int, Linked]) -> Scenario:
    """Change DDP's `bucket_cap_mb`, for the first bucket too. `gradients` are those of each rank.

    A bucket is full when it holds so many bytes or more; gradients keep their order. Source: torch's
    compute_bucket_assignment_by_size (reducer.cpp). Where all_reduces had one size only, it is not known how much of
    their time is latency: all of it, or nothing.
    """
    ways = tuple(_rebucketing(round(cap_mib * MIB), gradients, links, latency) for latency in (0.0, 1.0))
    assumes = "gradients become ready as they did; all_reduces take a latency, and the rest for their bytes"
    return Scenario(f"buckets of {cap_mib:g} MiB", assumes, ways)


def _rebucketing(
    cap_bytes: int, gradients: Mapping[int, Gradients], links: Mapping[int, Linked], latency_frac: float
) -> Change:
    def change(members: Sequence[Playing]) -> list[Playing]:
        steps = [_steps(member, gradients.get(member.program.rank), links) for member in members]
        takes = _model(members, steps, latency_frac)
        shared = set.intersection(*(set(steps_of_member) for steps_of_member in steps)) if steps else set()
        if not shared:
            raise NothingMeasured(
                "no step shows the gradients that its all_reduces are of, as those of DistributedDataParallel do: it "
                "takes a run under DDP, captured with record_shapes=True and read with its operators"
            )
        changed = [_Changed(member) for member in members]
        for step in sorted(shared):
            plans = [steps_of_member[step] for steps_of_member in steps]
            buckets = [_filled(plan.gradients, cap_bytes) for plan in plans]
            _exchange(changed, plans, buckets, takes)
        return [each.made() for each in changed]

    return change


def _steps(member: Playing, gradients: Gradients | None, links: Mapping[int, Linked]) -> dict[int, _Step]:
    """Steps whose all_reduces, in order, cover all gradients of the step."""
    program = member.program
    plans: dict[int, _Step] = {}
    if gradients is None:
        return plans
    comm = np.flatnonzero(program.collective != NONE)
    for step in np.unique(gradients.step).tolist():
        of_step = gradients.of_step(step)
        after = comm[(program.step[comm] == step) & (program.end[comm] > of_step.ready_ns[0])]
        nodes = after[np.argsort(program.start[after], kind="stable")].tolist()
        sums = np.append(0, np.cumsum(of_step.size_bytes)).tolist()
        place = {size: number for number, size in enumerate(sums)}
        reduced: list[int] = []
        buckets: list[_Bucket] = []
        upto = 0
        for node in nodes:
            linked = links.get(int(program.collective[node]))
            if linked is None or linked.collective != "all_reduce" or linked.size_bytes is None:
                continue
            if upto + linked.size_bytes not in place:
                break
            buckets.append(_Bucket(place[upto], place[upto + linked.size_bytes], linked.size_bytes))
            reduced.append(node)
            upto += linked.size_bytes
            if upto == sums[-1]:
                plans[step] = _Step(of_step, reduced, buckets)
                break
    return plans


def _filled(gradients: Gradients, cap_bytes: int) -> list[_Bucket]:
    """The buckets into which DDP would put these gradients."""
    buckets, first, held = [], 0, 0
    for number, size in enumerate(gradients.size_bytes.tolist()):
        held += size
        if held >= cap_bytes or number == len(gradients.size_bytes) - 1:
            buckets.append(_Bucket(first, number + 1, held))
            first, held = number + 1, 0
    return buckets


class _Model(NamedTuple):
    """Time of an all_reduce of S bytes: latency + S x per_byte, in ns."""

    latency: float
    per_byte: float

    def __call__(self, size_bytes: int) -> int:
        return round(self.latency + size_bytes * self.per_byte)


def _model(members: Sequence[Playing], steps: Sequence[dict[int, _Step]], latency_frac: float) -> _Model:
    """Fit the model to all_reduces of gradients; if all have one size, `latency_frac` of their time is latency."""
    samples = [
        (bucket.size_bytes, int(member.transfer[node]))
        for member, steps_of_member in zip(members, steps, strict=True)
        for step in steps_of_member.values()
        for node, bucket in zip(step.nodes, step.buckets, strict=True)
    ]
    medians = pd.DataFrame(samples, columns=["size", "took"]).groupby("size")["took"].median()
    if not len(medians):
        return _Model(0.0, 0.0)
    sizes, took = medians.index.to_numpy(np.float64), medians.to_numpy(np.float64)
    if len(sizes) == 1:
        return _Model(took[0] * latency_frac, took[0] * (1 - latency_frac) / sizes[0])
    per_byte, latency = np.polyfit(sizes, took, 1)
    if latency < 0 or per_byte < 0:
        return _Model(0.0, float(took.sum() / sizes.sum()))
    return _Model(float(latency), float(per_byte))


class _Input(NamedTuple):
    """What a new collective waits for: a runtime call, a node, and the time at which both are ready."""

    launch: int
    source: int
    ready_ns: int


class _Added(NamedTuple):
    """A new collective: lane, number, begin and end, its input, and the node it is modelled on."""

    lane: int
    collective: int
    start: int
    end: int
    like: int
    transfer: int
    given: _Input


def _exchange(
    changed: Sequence[_Changed], plans: Sequence[_Step], buckets: Sequence[list[_Bucket]], takes: _Model
) -> None:
    """Replace the all_reduces of one step on every rank. On each lane they run one after the other."""
    step = int(plans[0].gradients.step[0])
    lanes = [each.lanes(plan.nodes) for each, plan in zip(changed, plans, strict=True)]
    free = [dict.fromkeys(mine, -(1 << 62)) for mine in lanes]
    added: list[list[_Added]] = [[] for _ in changed]
    for number in range(min(map(len, buckets))):
        given = [
            each.given(plan, int(plan.gradients.ready_ns[mine[number].stop - 1]))
            for each, plan, mine in zip(changed, plans, buckets, strict=True)
        ]
        lane = [mine[number % len(mine)] for mine in lanes]
        start = [max(each.ready_ns, mine[on]) for each, mine, on in zip(given, free, lane, strict=True)]
        transfer = takes(buckets[0][number].size_bytes)
        end = max(start) + transfer
        collective = _FIRST_NEW + step * _MOST_BUCKETS + number
        for which, plan in enumerate(plans):
            free[which][lane[which]] = end
            new = _Added(lane[which], collective, start[which], end, plan.nodes[0], transfer, given[which])
            added[which].append(new)
    for each, plan, mine, new_ones in zip(changed, plans, buckets, added, strict=True):
        each.take(plan, mine, new_ones)


class _Changed:
    """A rank's program while nodes are removed, added and cut."""

    def __init__(self, member: Playing) -> None:
        program = member.program
        self._member = member
        self._on_cpu = program.issued_by is not None
        number = np.arange(len(program))
        self._nodes = pd.DataFrame({
            **{name: getattr(program, name) for name in ("device", "is_comm", "is_unsplit", "overlaps", *_WHOLE)},
            **{name: getattr(member, name) for name in _TIMES},
            "first_of": number, "last_of": number, "added": NONE,
        })  # fmt: skip
        self._gone: set[int] = set()
        self._instead: dict[int, list[int]] = {}
        self._source: list[int] = []
        self._rows: list[dict[str, Any]] = []

    def lanes(self, nodes: Sequence[int]) -> list[int]:
        """The lanes of these nodes; gloo has two threads per group."""
        lanes = sorted(set(self._member.program.lane[nodes].tolist()))
        more = int(self._member.program.lane.max()) + 1
        return [*lanes, *range(more, more + _GLOO_THREADS - len(lanes))] if self._on_cpu else lanes

    def given(self, plan: _Step, time: int) -> _Input:
        """The input of a collective whose last gradient is ready at this time."""
        if self._on_cpu:
            return _Input(NONE, self._cut_at(time), time)
        program = self._member.program
        launch = int(np.searchsorted(program.call_start, time, side="right")) - 1
        source = self._input(plan.nodes, launch)
        return _Input(launch, source, max(time, int(program.end[source]) if source != NONE else time))

    def take(self, plan: _Step, buckets: Sequence[_Bucket], added: Sequence[_Added]) -> None:
        """Replace the all_reduces of a step; what waited for one waits for all that hold its gradients."""
        first = len(self._rows)
        for new in added:
            like = self._node(new.like)
            self._source.append(new.given.source)
            self._rows.append(like | {
                "lane": new.lane, "start": new.start, "end": new.end, "collective": new.collective, "needs": NONE,
                "launch": new.given.launch, "duration": new.transfer, "transfer": new.transfer,
                "first_of": NONE, "last_of": NONE, "added": len(self._rows),
            })  # fmt: skip
        for node, old in zip(plan.nodes, plan.buckets, strict=True):
            self._gone.add(node)
            self._instead[node] = [
                first + number
                for number, bucket in enumerate(buckets[: len(added)])
                if bucket.first < old.stop and old.first < bucket.stop
            ]

    def _node(self, label: int) -> dict[str, Any]:
        return {str(name): value for name, value in self._nodes.loc[label].items()}

    def _input(self, nodes: Sequence[int], launch: int) -> int:
        """The last work given to the GPU before this call, on the lane of the collectives' input."""
        program = self._member.program
        sources = [source for node in nodes for source in self._member.edges.joins.get(node, ())]
        lane = int(program.lane[sources[0]]) if sources else int(np.bincount(program.lane[~program.is_comm]).argmax())
        before = np.flatnonzero((program.lane == lane) & (program.launch != NONE) & (program.launch <= launch))
        return int(before[-1]) if len(before) else NONE

    def _cut_at(self, time: int) -> int:
        """Label of the CPU activity that ends at this time, which is cut there if needed."""
        nodes = self._nodes
        at = nodes.index[(nodes["lane"] == 0) & (nodes["start"] < time)]
        label = int(nodes.loc[at, "start"].idxmax()) if len(at) else NONE
        if label == NONE or (rest := self._node(label))["end"] <= time:
            return label
        whole = rest["end"] - rest["start"]
        part = round(rest["duration"] * (time - rest["start"]) / whole)
        new = int(nodes.index.max()) + 1
        nodes.loc[new] = rest | {"start": time, "delay": 0, "duration": rest["duration"] - part, "first_of": NONE}
        nodes.loc[label, ["end", "duration", "last_of"]] = [time, part, NONE]
        return label

    def made(self) -> Playing:
        """The changed rank."""
        kept = self._nodes.drop(index=sorted(self._gone))
        kept["label"] = kept.index
        both = pd.concat([kept, pd.DataFrame(self._rows).assign(label=NONE)]) if self._rows else kept
        both = both.sort_values(["lane", "start", "end"], kind="stable").reset_index(drop=True)
        at = {name: _places(both[name]) for name in ("first_of", "last_of", "added", "label")}
        whole: dict[str, Any] = {name: both[name].to_numpy(dtype=np.int64) for name in (*_WHOLE, *_TIMES)}
        of_member = {name: whole.pop(name) for name in _TIMES}
        program = replace(
            self._member.program,
            device=both["device"].to_numpy(),
            is_comm=both["is_comm"].to_numpy(dtype=bool),
            is_unsplit=both["is_unsplit"].to_numpy(dtype=bool),
            overlaps=both["overlaps"].to_numpy(dtype=bool),
            issued_by=np.full(len(both), NONE) if self._on_cpu else None,
            **whole,
        )
        return replace(self._member, program=program, edges=self._edges(at), **of_member)

    def _edges(self, at: Mapping[str, Mapping[int, int]]) -> Edges:
        def places(sources: Sequence[int]) -> list[int]:
            new = [at["added"][each] for source in sources for each in self._instead.get(source, ())]
            return sorted({*new, *(at["last_of"][source] for source in sources if source in at["last_of"])})

        old = self._member.edges
        joins = {
            at["first_of"][node]: places(sources_of_node)
            for node, sources_of_node in old.joins.items()
            if node in at["first_of"]
        }
        blocks = {call: places(sources) for call, sources in old.blocks.items()}
        for number, source in enumerate(self._source):
            if source != NONE:
                joins[at["added"][number]] = [at["label"][source]]
        return Edges({n: s for n, s in joins.items() if s}, {c: s for c, s in blocks.items() if s})


def _places(column: pd.Series[int]) -> dict[int, int]:
    known = np.flatnonzero(column.to_numpy() != NONE)
    return dict(zip(column.to_numpy()[known].tolist(), known.tolist(), strict=True))
