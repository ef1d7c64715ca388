"""Rows of the tables of memory: what each device held at its peak, and where; and what grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.arrays import Ints
from ...core.schema import Row, grouped
from ...core.steps import NO_STEP, Mark
from ..device.idle import HostTables
from ..regions.nesting import NOT_LAUNCHED
from .categories import BLOCK_CATEGORIES, OLDER, UNKNOWN_USE, categories_of
from .curve import curve_of_step
from .growth import AllocatedAt, Growth, growing_blocks, growth_in_all, growth_of_places, place_codes
from .held import BEFORE, NOT_RECORDED, DeviceMemory, memory_of
from .places import PHASE_NAMES, CpuProgram, Places
from .recomputing import Recomputed, recomputed_regions
from .rounds import IN_PARTS, IN_STEPS, LEAST_ROUNDS, Rounds, growth_rounds, passes, step_events

CATEGORY_COLUMNS = {category: f"{category.replace(' ', '_')}_bytes" for category in BLOCK_CATEGORIES}
"""The column of each category: `optimizer_state_bytes`."""

TOO_FEW_STEPS = f"steps are too few to tell whether anything adds up, which takes {LEAST_ROUNDS}"
SINCE_CAPTURE = "of the CPU, torch counts only what is allocated after the capture began"
NO_STEPS = "no steps are marked, so it is not known whether anything adds up; call profiler.step() in the loop"

PlaceNames = tuple[str | None, str | None, str | None, str | None]
"""Region, phase, operator and line of code, as tables show them."""


@dataclass(frozen=True)
class ExplainedMemory:
    """The memory of a device with what is known of its blocks; `marks` are those of the steps."""

    memory: DeviceMemory
    places: Places
    marks: Sequence[Mark]

    @cached_property
    def _codes(self) -> tuple[Ints, list[AllocatedAt]]:
        return place_codes(self.memory, self.places)

    @cached_property
    def rounds(self) -> Rounds:
        """The steps, or what stands for them, by which growth is told."""
        return growth_rounds(self.memory, self.places, self.marks)

    @cached_property
    def growth(self) -> dict[int, Growth]:
        """What grows, by the number of its place."""
        codes, distinct = self._codes
        return growth_of_places(self.memory, codes, len(distinct), self.rounds)

    @cached_property
    def category(self) -> NDArray[Any]:
        """What each block is for. What a growing place leaves behind is for nothing that is known."""
        category = categories_of(self.memory, self.places, passes(self.memory, self.places, self.marks))
        if self.growth:
            category[growing_blocks(self.memory, self._codes[0], self.growth)] = UNKNOWN_USE
        return category

    def by_category(self, event: int) -> dict[str, int | None] | None:
        """Bytes allocated once this event has happened, by category; they add up. None where blocks are not known.

        Of what is older than the trace, None where totals were not recorded.
        """
        memory = self.memory
        older = memory.older_bytes(event)
        if not memory.knows_blocks:
            return None
        held = memory.blocks.held_at(event)
        codes = pd.Categorical(self.category[held], BLOCK_CATEGORIES).codes
        sums = np.bincount(codes, memory.blocks.size_bytes[held], len(BLOCK_CATEGORIES)).astype(np.int64).tolist()
        found = dict(zip(BLOCK_CATEGORIES, sums, strict=True))
        return {**found, OLDER: None if older is None else found[OLDER] + older}

    def by_place(self, event: int) -> dict[tuple[str, PlaceNames], tuple[int, int]]:
        """Bytes and number of the known blocks held once this event has happened, by category and place."""
        codes, distinct = self._codes
        held = np.flatnonzero(self.memory.blocks.held_at(event) & (codes >= 0))
        sums = pd.DataFrame({
            "category": self.category[held], "code": codes[held], "size": self.memory.blocks.size_bytes[held]
        }).groupby(["category", "code"])["size"].agg(["sum", "count"])  # fmt: skip
        return {
            (category, self.names(distinct[code])): (int(size), int(count))
            for (category, code), size, count in zip(sums.index, sums["sum"], sums["count"], strict=True)
        }

    def growing(self) -> dict[PlaceNames, Growth]:
        """What grows, by the names of its place."""
        _, distinct = self._codes
        return {self.names(distinct[code]): growth for code, growth in self.growth.items()}

    def names(self, place: AllocatedAt) -> PlaceNames:
        """The names of a place."""
        region = self.places.paths.text(place.region) if place.region > NOT_LAUNCHED else None
        return region, PHASE_NAMES[place.phase], place.operator, place.line

    def where(self, event: int) -> Row:
        """Step, region, phase, operator and line of an event; BEFORE the first one, none is known."""
        if event == BEFORE:
            return dict.fromkeys(("step", "region", "phase", "operator", "line"))
        places = self.places
        at = AllocatedAt(
            int(places.region[event]), int(places.phase[event]), places.operator[event], places.line[event]
        )
        step = int(places.step[event])
        names = dict(zip(("region", "phase", "operator", "line"), self.names(at), strict=True))
        return {"step": None if step == NO_STEP else step, **names}


def explained_memory(
    memory_events: pd.DataFrame, activities: pd.DataFrame, operator_calls: pd.DataFrame, host_tables: HostTables
) -> Iterator[ExplainedMemory]:
    """Yield the memory of each device of each rank and cycle; the arguments are tables of these names."""
    ran, autograd = (dict(grouped(table, ["rank", "cycle"])) for table in (activities, operator_calls))
    programs: dict[tuple[int, int], CpuProgram] = {}
    for memory in memory_of(memory_events):
        key = memory.rank, memory.cycle
        if key not in programs:
            programs[key] = CpuProgram(
                host_tables.host(*key), ran.get(key, activities[:0]), autograd.get(key, operator_calls[:0])
            )
        program = programs[key]
        yield ExplainedMemory(memory, program.places(memory), program.step_marks)


class MemoryRows(NamedTuple):
    """Rows of the tables `memory`, `memory_steps` and `allocations`; and `curves`, of the step with each device's peak.

    A curve has the rank, the device, the step, and `points`, rows as `curve_of_step` has them. `recomputed` has what
    checkpointing would save on each rank and device.
    """

    devices: list[Row]
    steps: list[Row]
    places: list[Row]
    curves: list[Row]
    recomputed: list[tuple[Row, Recomputed]]


def rows_of_memory(explained: Iterable[ExplainedMemory], calls: pd.DataFrame) -> MemoryRows:
    """The rows of all tables of memory; `calls` are the collective calls of these ranks.

    Of a device with several cycles, the one with the highest peak counts; what grows must grow in each.
    """
    of_device: dict[tuple[int, str], list[ExplainedMemory]] = {}
    for one in explained:
        of_device.setdefault((one.memory.rank, one.memory.device), []).append(one)
    rows = MemoryRows([], [], [], [], [])
    for (rank, device), cycles in of_device.items():
        key = {"rank": rank, "device": device}
        most = max(cycles, key=lambda one: one.memory.allocated_at(one.memory.peak))
        growing, per = _growing_in_all(cycles)
        rows.devices.append(key | _peak_row(most, cycles, growing, per, calls))
        if (step := rows.devices[-1]["step"]) is not None:
            rows.curves.append(
                key | {"step": step, "points": curve_of_step(most.memory, most.category, most.marks, step)}
            )
        rows.places.extend(key | row for row in _allocation_rows(most, growing, per))
        rows.recomputed.extend((key, each) for each in recomputed_regions(most.memory, most.category, most.places))
        rows.steps.extend(key | row for one in cycles for row in _step_rows(one))
    return rows


def _peak_row(
    most: ExplainedMemory,
    cycles: Sequence[ExplainedMemory],
    growing: Mapping[PlaceNames, Growth],
    per: str | None,
    calls: pd.DataFrame,
) -> Row:
    memory = most.memory
    peak = memory.peak
    allocated, reserved, time_ns = memory.allocated_at(peak), memory.reserved_at(peak), memory.time_at(peak)
    has_cache = memory.counts_all and reserved is not None and reserved >= allocated
    most_reserved = [one.memory.peak_reserved_bytes for one in cycles]
    known_reserved = [value for value in most_reserved if value is not None]
    grows_bytes = _grows(cycles, growing, per)
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": max(known_reserved, default=None),
        "cached_bytes": (reserved or 0) - allocated if has_cache else None,
        "peak_ns": time_ns,
        **most.where(peak),
        **_in_flight(calls, memory, time_ns),
        **_categories(most, peak),
        "grows_bytes": grows_bytes,
        "grows_per": None if grows_bytes is None else per,
        "note": "; ".join(_notes(most, knows_growth=grows_bytes is not None)) or None,
    }


def _grows(cycles: Sequence[ExplainedMemory], growing: Mapping[PlaceNames, Growth], per: str | None) -> int | None:
    """What grows in a round, of all places together; of all that is allocated where places are not known.

    0 if nothing does, None where it cannot be told: too few steps are marked, or none at all and nothing grows in
    equal parts of the time, which a leak does only if each has a step in it.
    """
    told = [one for one in cycles if one.rounds.tell_growth and one.rounds.per == per]
    if not told:
        return None
    if all(one.memory.knows_blocks for one in told):
        grows = sum(growth.per_round_bytes for growth in growing.values())
    else:
        grown = [growth_in_all(one.memory, one.rounds) for one in told]
        grows = min(0 if growth is None else growth.per_round_bytes for growth in grown)
    return grows if grows or per != IN_PARTS else None


def _categories(one: ExplainedMemory, event: int) -> Row:
    sums = one.by_category(event)
    if sums is None:
        return dict.fromkeys(CATEGORY_COLUMNS.values())
    if one.memory.counts_since_capture and not sums[OLDER]:
        sums = {**sums, OLDER: None}
    return {column: sums[category] for category, column in CATEGORY_COLUMNS.items()}


def _notes(one: ExplainedMemory, *, knows_growth: bool) -> Iterator[str]:
    memory = one.memory
    if memory.counts_since_capture:
        yield SINCE_CAPTURE
    elif not memory.counts_all:
        yield "totals were not recorded: bytes are those above what was allocated when the trace began"
    if memory.peak == BEFORE:
        yield "most was allocated when the trace began: it may have been more before"
    if not memory.knows_blocks:
        yield "addresses were not recorded (torch 1.9 and older), so it is not known what is held at the peak"
    if not knows_growth:
        yield TOO_FEW_STEPS if one.rounds.per == IN_STEPS else NO_STEPS


def _in_flight(calls: pd.DataFrame, memory: DeviceMemory, time_ns: int | None) -> Row:
    """The largest collective that had been issued by then and had not ended."""
    nothing: Row = {"collective": None, "collective_bytes": None}
    own = calls[(calls["rank"] == memory.rank) & (calls["cycle"] == memory.cycle)]
    if not len(own) or time_ns is None:
        return nothing
    start = own["start_ns"].to_numpy(dtype=np.int64)
    issued = own["issue_ns"].to_numpy(dtype=np.int64, na_value=NOT_RECORDED)
    begun = np.minimum(np.where(issued == NOT_RECORDED, start, issued), start)
    running = own[(begun <= time_ns) & (time_ns < start + own["dur_ns"].to_numpy(dtype=np.int64))]
    if not len(running):
        return nothing
    sizes = running["size_bytes"].to_numpy(dtype=np.int64, na_value=-1)
    largest = running.iloc[int(np.argmax(sizes))]
    name, size = largest["collective"], largest["size_bytes"]
    return {
        "collective": None if pd.isna(name) else str(name), "collective_bytes": None if pd.isna(size) else int(size)
    }  # fmt: skip


def _step_rows(one: ExplainedMemory) -> Iterator[Row]:
    """Yield the peak of each step: what it began with counts, too, which is known of a step without events as well."""
    memory = one.memory
    for step, (before, last) in step_events(memory, one.marks).items():
        peak = memory.peak_within(before, last)
        reserved = int(memory.reserved_bytes[max(before, 0) : last + 1].max(initial=NOT_RECORDED))
        where = one.where(peak)
        yield {
            "step": step,
            "peak_allocated_bytes": memory.allocated_at(peak),
            "peak_reserved_bytes": None if reserved == NOT_RECORDED else reserved,
            "end_allocated_bytes": memory.allocated_at(last),
            **{name: where[name] for name in ("region", "phase", "operator")},
            **_categories(one, peak),
        }


def _growing_in_all(cycles: Sequence[ExplainedMemory]) -> tuple[Mapping[PlaceNames, Growth], str | None]:
    """What grows in each cycle that has enough rounds to tell, and what those are; None if there are none."""
    per = next((one.rounds.per for one in cycles if one.rounds.tell_growth), None)
    told = [one.growing() for one in cycles if one.rounds.tell_growth and one.rounds.per == per]
    if not told:
        return {}, None
    growing = {
        place: Growth(
            min(each[place].per_round_bytes for each in told),
            sum(each[place].grew for each in told),
            sum(each[place].rounds for each in told),
        )
        for place in told[0]
        if all(place in each for each in told)
    }
    return growing, per


def _allocation_rows(one: ExplainedMemory, growing: Mapping[PlaceNames, Growth], per: str | None) -> list[Row]:
    """What is held at the peak, the largest first, and what grows, whether or not it is held then."""
    peak = one.memory.peak
    sums = one.by_category(peak)
    if sums is None:
        return []
    held = one.by_place(peak)
    held = {(UNKNOWN_USE, place): (0, 0) for place in growing} | held
    blocks = one.memory.blocks
    older = blocks.held_at(peak) & (one.category == OLDER)
    are_all_known = int(blocks.size_bytes[older].sum()) == sums[OLDER]  # else only those that are released later are
    count_of_older = int(older.sum()) if are_all_known else None
    rows: list[Row] = []
    for (category, place), (size, count) in held.items():
        growth = growing.get(place) if category == UNKNOWN_USE else None
        names = dict(zip(("region", "phase", "operator", "line"), place, strict=True))
        rows.append({
            "category": category,
            **names,
            "size_bytes": size,
            "blocks": count,
            "grows_bytes": None if growth is None else growth.per_round_bytes,
            "grows_per": None if growth is None else per,
            "steps": None if growth is None else growth.grew,
            "of_steps": None if growth is None else growth.rounds,
        })  # fmt: skip
    if sums[OLDER]:
        rows.append({
            "category": OLDER, "region": None, "phase": None, "operator": None, "line": None,
            "size_bytes": sums[OLDER], "blocks": count_of_older, "grows_bytes": None, "grows_per": None, "steps": None,
            "of_steps": None,
        })  # fmt: skip
    whole = max(one.memory.allocated_at(peak), 1) if one.memory.counts_all else None
    rows.sort(key=lambda row: (-row["size_bytes"], -(row["grows_bytes"] or 0)))
    return [row | {"share_frac": whole and row["size_bytes"] / whole} for row in rows]
