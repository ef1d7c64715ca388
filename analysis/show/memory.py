"""Memory of a run on one screen: peaks of all ranks, what fills the largest, where that was allocated, what grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from ...common.wording import bytes_text, counted, ranges_of
from ..core.escaping import printable
from ..core.schema import Row, records
from ..errors import NothingMeasured, UnknownTable
from ..metrics.memory.categories import OLDER
from ..metrics.memory.rounds import IN_CYCLES, IN_PARTS, IN_STEPS, LEAST_ROUNDS
from ..metrics.memory.table import CATEGORY_COLUMNS, NO_STEPS, TOO_FEW_STEPS
from ..metrics.regions.nesting import without_numbers
from ..metrics.verdicts.words import length
from ..render.fitting import shortened, shortened_path
from ..render.people import styled, wrapped
from ..render.screen import PAPER, WORST, Screen
from ..results.analysis import Analysis

if TYPE_CHECKING:
    import pandas as pd


class MemoryTables(Protocol):
    """What has the tables of memory: a run, or snapshots of the allocator."""

    def table(self, name: str, /) -> pd.DataFrame:
        """The table of this name."""


_WIDEST, _NARROWEST = 100, 60
_BAR = 24
_MOST_PLACES, _LEAST_REGION = 8, 12
_PER = {IN_STEPS: "per step", IN_CYCLES: "per forward and backward pass", IN_PARTS: "in an eighth of the recorded time"}
_ROUND_NAMES = {IN_STEPS: "step", IN_CYCLES: "cycle", IN_PARTS: "part"}
"""What growth is told by, by the words of `grows_per`."""
_SHOWN_FROM = 0.0005
"""Of the peak: parts that would be shown as 0.0% say nothing."""
_WORTH_IT, _MOST_CHECKPOINTED = 0.05, 3
"""Of the peak: what checkpointing must save to be named, and how many classes of regions are."""
_STANDS_OUT, _LEAST_BYTES = 0.05, 1 << 20
"""A rank is named that holds so much more than the median of the ranks, as a part of that and in bytes."""


@dataclass(frozen=True)
class MemoryLimit:
    """The device whose memory is nearest to being full: its row of `memory`, and what fills most of it at the peak."""

    row: Row
    held_bytes: int
    category: str | None
    category_bytes: int

    @property
    def said(self) -> str:
        """`peak 78.1 of 79.6 GiB on rank 3: activations 61%`."""
        row = self.row
        device = f", device {row['device']}" if row["device"] != "0" else ""
        most = (
            f": {self.category} {self.category_bytes / max(row['peak_allocated_bytes'], 1):.0%}"
            if self.category
            else ""
        )
        return f"peak {_of(self.held_bytes, row['device_bytes'])} on rank {row['rank']}{device}{most}"


def limit_of(analysis: Analysis) -> MemoryLimit | None:
    """The device that memory limits, of several the fullest; None if there is none."""
    full = analysis.nearly_full
    if not full:
        return None
    rank, device = max(full, key=lambda key: full[key])
    [row] = [row for row in records(analysis.table("memory")) if (row["rank"], row["device"]) == (rank, device)]
    held = max(row["peak_reserved_bytes"] or 0, row["peak_allocated_bytes"])
    parts = categories_at_peak(row)
    category, size = max(parts, key=lambda part: part[1]) if parts else (None, 0)
    return MemoryLimit(row, held, category, size)


def categories_at_peak(row: Row) -> list[tuple[str, int]]:
    """What a row of `memory` is made of at its peak, the largest first; empty where that is not known."""
    parts = [(category, row[column]) for category, column in CATEGORY_COLUMNS.items() if row[column]]
    return sorted(parts, key=lambda part: -part[1])


def memory_screen(analysis: MemoryTables, screen: Screen = PAPER) -> str:
    """The screen, in lines of at most 100 columns."""
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    return "".join(f"{line.rstrip()}\n" for line in _lines(analysis, screen, width))


def _lines(analysis: MemoryTables, screen: Screen, width: int) -> Iterator[str]:
    every = records(analysis.table("memory"))
    rows = main_rows(every)
    largest = max(rows, key=lambda row: row["peak_allocated_bytes"])
    yield from (styled(line, "bold", screen) for line in wrapped(headline_of_memory(rows, largest), width))
    for row in _failed(analysis):
        yield from wrapped(_ran_out(row), width)
    for title, found in (
        ("Peak of each rank", list(_peaks(rows, screen, width))),
        ("Used on devices outside of torch", list(_outside(rows))),
        (f"What fills {_who(largest, rows)} at its peak", list(_categories(largest, screen, width))),
        ("Where that was allocated", list(_places(analysis, largest, screen, width))),
        ("What checkpointing would save", list(_recomputing(analysis, largest, width))),
        ("What each step leaves behind", list(_growing(analysis, every, width))),
    ):
        if found:
            yield ""
            yield styled(title, "bold", screen)
            yield from found
    notes = [(note, row["rank"]) for row in rows for note in (row["note"] or "").split("; ") if note]
    notes = [each for each in notes if each[0] not in (TOO_FEW_STEPS, NO_STEPS)]  # which stand above
    if notes:
        yield ""
    for note in dict(notes):
        ranks = {rank for said, rank in notes if said == note}
        who = "" if ranks == {row["rank"] for row in rows} else f"rank {ranges_of(sorted(ranks))}: "
        yield from wrapped(f"Note: {who}{note}.", width)


def main_rows(rows: list[Row]) -> list[Row]:
    """Those of GPUs; of the CPU where there are none."""
    return [row for row in rows if row["device"] != "cpu"] or rows


def headline_of_memory(rows: Sequence[Row], largest: Row) -> str:
    """`Rank 7 holds 71.2 GiB at its peak, 8.8 GiB more than the median of 8 ranks.`"""
    peak = largest["peak_allocated_bytes"]
    if not _has_totals(largest):  # what was allocated before is not known
        return f"{_name(largest, rows)} holds {bytes_text(max(peak, 0))} more at its peak than when its trace began."
    full = f"{_of(peak, largest['device_bytes'])}"
    usual = median(row["peak_allocated_bytes"] for row in rows)
    over = peak - usual
    if len(rows) > 1 and over >= max(_STANDS_OUT * usual, _LEAST_BYTES):
        others = f"the other {_other_of_two(rows)}" if len(rows) == 2 else f"the median of {len(rows)} devices"
        over = peak - min(row["peak_allocated_bytes"] for row in rows) if len(rows) == 2 else over
        return f"{_name(largest, rows)} holds {full} at its peak, {bytes_text(int(over))} more than {others}."
    least = min(row["peak_allocated_bytes"] for row in rows)
    spread = f"; all {len(rows)} devices hold {bytes_text(least)} or more" if len(rows) > 1 else ""
    return f"{_name(largest, rows)} holds {full} at its peak{spread}."


def _of(size: int, whole: int | None) -> str:
    """`78.1 GiB of 79.6 GiB`, or without the whole where that is not known."""
    return bytes_text(size) if not whole else f"{bytes_text(size)} of {bytes_text(whole)}"


def _other_of_two(rows: Sequence[Row]) -> str:
    return "rank" if rows[0]["rank"] != rows[1]["rank"] else "device"


def _has_totals(row: Row) -> bool:
    """Whether the sizes of a row are all that is allocated, and not what came on top of it in the trace."""
    return row["peak_reserved_bytes"] is not None


def _failed(analysis: MemoryTables) -> list[Row]:
    """Rows of `fragments` of devices that ran out of memory; none of traces, which do not show it."""
    return [row for row in _rows_if_any(analysis, "fragments") if row["failed_request_bytes"] is not None]


def _rows_if_any(analysis: MemoryTables, name: str) -> list[Row]:
    """The rows of a table that only runs, or only snapshots have."""
    try:
        return records(analysis.table(name))
    except (UnknownTable, NothingMeasured):
        return []


def _ran_out(row: Row) -> str:
    """`Rank 0 ran out of memory: it asked for 900 MiB; its largest free piece had 20 MiB, its device 5 MiB.`"""
    request, piece = bytes_text(row["failed_request_bytes"]), bytes_text(row["largest_free_bytes"])
    free = "" if row["device_free_bytes"] is None else f", its device {bytes_text(row['device_free_bytes'])} more"
    return f"Rank {row['rank']} ran out of memory: it asked for {request}; its largest free piece has {piece}{free}."


def _outside(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how much of devices is used outside of torch, and who holds more of it than the others."""
    known = [row for row in rows if row["outside_bytes"] is not None]
    if not known:
        return
    most = max(known, key=lambda row: row["outside_bytes"])
    others = [row["outside_bytes"] for row in known if row is not most]
    over = int(most["outside_bytes"] - median(others)) if others else 0
    if over >= max(_STANDS_OUT * most["outside_bytes"], _LEAST_BYTES):
        yield f"  {_who(most, rows)} holds {bytes_text(over)} more outside of torch than the others (median)"
    least = min(row["outside_bytes"] for row in known)
    spread = f"{bytes_text(least)} to " if least < most["outside_bytes"] else ""
    yield f"  {spread}{bytes_text(most['outside_bytes'])}: NCCL, contexts, other processes"


def _who(row: Row, rows: Sequence[Row]) -> str:
    several = len({other["device"] for other in rows if other["rank"] == row["rank"]}) > 1
    return f"rank {row['rank']}{', device ' + row['device'] if several else ''}"


def _name(row: Row, rows: Sequence[Row]) -> str:
    who = _who(row, rows)
    return f"{who[:1].upper()}{who[1:]}"


def _peaks(rows: Sequence[Row], screen: Screen, width: int) -> Iterator[str]:
    """Yield a line for each device; of many ranks those that hold most, with the least and the median of all."""
    shown = sorted(rows, key=lambda row: -row["peak_allocated_bytes"])
    if not screen.everything:
        shown = shown[:WORST]
    for row in sorted(shown, key=lambda row: (row["rank"], row["device"])):
        above = "" if _has_totals(row) else " above what there was when the trace began"
        sizes = f"{bytes_text(max(row['peak_allocated_bytes'], 0)):>9} allocated{above}"
        if row["peak_reserved_bytes"]:
            sizes += f", {bytes_text(row['peak_reserved_bytes'])} reserved"
        cached = row["cached_bytes"]
        if cached:
            sizes += f", {cached / (cached + row['peak_allocated_bytes']):.0%} cache and fragments"
        yield shortened(f"  {_who(row, rows):<9}{sizes}", width)
        when = ", ".join(filter(None, _when(row)))
        if when:
            yield from (f"             {line}" for line in wrapped(printable(when), width - 13))
    if len(shown) < len(rows):
        peaks = [row["peak_allocated_bytes"] for row in rows]
        yield (
            f"  of {len(rows)} devices those that hold most; least {bytes_text(min(peaks))}, "
            f"median {bytes_text(int(median(peaks)))}"
        )


def _when(row: Row) -> Iterator[str | None]:
    """Yield when the peak was: step, region and phase, operator, line of code, collective."""
    yield None if row["step"] is None else f"step {row['step']}"
    phase = f" ({row['phase']})" if row["phase"] else ""
    yield f"{row['region']}{phase}" if row["region"] else row["phase"]
    yield row["operator"]
    yield row["line"]
    if row["collective"] is not None:
        size = "" if row["collective_bytes"] is None else f" of {bytes_text(row['collective_bytes'])}"
        yield f"{row['collective']}{size} in flight"


def _categories(row: Row, screen: Screen, width: int) -> Iterator[str]:
    if not _has_totals(row):  # parts of an unknown whole
        return
    whole = max(row["peak_allocated_bytes"], 1)
    mark = "#" if screen.ascii_only else "\u2588"
    for category, size in categories_at_peak(row):
        if size >= _SHOWN_FROM * whole:
            bar = mark * round(min(_BAR, width - 51) * size / whole)
            yield f"  {category:<26}{bytes_text(size):>10} {size / whole:>7.1%}  {bar}"


def _places(analysis: MemoryTables, row: Row, screen: Screen, width: int) -> Iterator[str]:
    table = records(analysis.table("allocations"))
    own = [one for one in table if (one["rank"], one["device"]) == (row["rank"], row["device"])]
    known = [one for one in own if one["share_frac"] is not None and one["category"] != OLDER]
    held = [one for one in _alike(known) if one["share_frac"] >= _SHOWN_FROM]
    shown = held if screen.everything else held[:_MOST_PLACES]
    for one in shown:
        amount = f"{bytes_text(one['size_bytes']):>10} {one['share_frac']:>7.1%}"
        room = width - len(amount) - 4
        category = f" ({one['category']})"
        what = f"{_within(one, room - len(category))}{category}"
        yield f"  {what:<{room}}  {amount}"
    if len(shown) < len(held):
        yield f"  and {counted(len(held) - len(shown), 'more place')}: commtrace table allocations"


def _recomputing(analysis: MemoryTables, row: Row, width: int) -> Iterator[str]:
    """Yield the classes of regions that save most of a peak; of those that save the same, the outermost."""
    least = _WORTH_IT * row["peak_allocated_bytes"]
    shown: dict[tuple[int, int], Row] = {}
    for one in _rows_if_any(analysis, "checkpointing"):
        if (one["rank"], one["device"]) == (row["rank"], row["device"]) and one["saves_low_bytes"] >= least:
            shown.setdefault((one["saves_low_bytes"], one["saves_high_bytes"]), one)
    for one in [*shown.values()][:_MOST_CHECKPOINTED]:
        low, high = bytes_text(one["saves_low_bytes"]), bytes_text(one["saves_high_bytes"])
        again = "" if one["recompute_ns"] is None else f", for up to {length(one['recompute_ns'] / 1e6)} more per step"
        amount = f"{low if low == high else f'{low} to {high}'}{again}"
        yield f"  {shortened_path(printable(one['region']), width - len(amount) - 4)}  {amount}"


def _alike(rows: Sequence[Row]) -> list[Row]:
    """Rows with those of repeated layers as one, the largest first: with `*` for numbers in which regions differ."""
    found: dict[tuple[str | None, ...], list[Row]] = {}
    for row in rows:
        region = without_numbers(row["region"]) if row["region"] else None
        found.setdefault((row["category"], region, row["phase"], row["operator"], row["line"]), []).append(row)
    together = [
        own[0]
        | {name: sum(one[name] for one in own) for name in ("size_bytes", "share_frac")}
        | {"region": region if len(own) > 1 else own[0]["region"]}
        for (_, region, *_), own in found.items()
    ]
    return sorted(together, key=lambda row: -row["size_bytes"])


def place_in_words(row: Row) -> str:
    """`Block_3 > Linear_7 (backward), aten::mm, train.py:31`; what is not known is left out."""
    region = row["region"] or ""
    phase = f" ({row['phase']})" if row["phase"] and region else row["phase"] or ""
    return ", ".join(filter(None, (f"{region}{phase}", row["operator"], row["line"]))) or "outside of all operators"


def _within(row: Row, width: int) -> str:
    """Where a row was allocated, in at most `width` columns: regions give way to the operator in them."""
    last = row["operator"] or row["line"]
    phase = f" ({row['phase']})" if row["phase"] and row["region"] else ""
    behind = printable(f"{phase}, {last}") if last else phase
    if not row["region"] or width - len(behind) < _LEAST_REGION:
        return shortened(printable(place_in_words(row)), width)
    return f"{shortened_path(printable(row['region']), width - len(behind))}{behind}"


def growth_in_words(row: Row, rows: Sequence[Row]) -> tuple[str, str]:
    """`rank 1 grows by 64 MiB per step: train.py:31`, and `keep, aten::zeros; in each of 4 steps, ...` to say below.

    `rows` are those of all devices.
    """
    first = row["line"] or row["region"] or row["operator"] or row["phase"] or "outside of all operators"
    times = counted(row["of_steps"], _ROUND_NAMES[row["grows_per"]])
    is_each = row["steps"] == row["of_steps"]
    grew = f"in each of {times}" if is_each else f"in {row['steps']} of {times}"
    by = f"{bytes_text(row['grows_bytes'])} {_PER[row['grows_per']]}{'' if is_each else ' on average'}"
    return (
        f"{_who(row, rows)} grows by {by}: {first}",
        f"{place_in_words(row)}; {grew}, a leak if that goes on",
    )


def growth_of(analysis: MemoryTables, rows: Sequence[Row]) -> list[Row]:
    """Rows of `allocations` that grow, of these rows' devices, the fastest first."""
    devices = {(row["rank"], row["device"]) for row in rows}
    table = records(analysis.table("allocations"))
    growing = [one for one in table if one["grows_bytes"] and (one["rank"], one["device"]) in devices]
    return sorted(growing, key=lambda one: -one["grows_bytes"])


def _growing(analysis: MemoryTables, rows: Sequence[Row], width: int) -> Iterator[str]:
    growing = growth_of(analysis, rows)
    for one in growing[:_MOST_PLACES]:
        first, below = map(printable, growth_in_words(one, rows))
        yield f"  {first}"  # whole, however long: it names the place
        yield from (f"    {line}" for line in wrapped(below, width - 4))
    if len(growing) > _MOST_PLACES:
        yield f"  and {counted(len(growing) - _MOST_PLACES, 'more place')}: commtrace table allocations"
    placed = {(one["rank"], one["device"]) for one in growing}
    for row in rows:
        if row["grows_bytes"] and (row["rank"], row["device"]) not in placed:
            grows = bytes_text(row["grows_bytes"])
            yield f"  {_who(row, rows)} grows by {grows} {_PER[row['grows_per']]}; where, its trace does not say"
    for row in rows:
        room = (row["device_bytes"] or 0) - (row["peak_reserved_bytes"] or row["peak_allocated_bytes"])
        if row["grows_bytes"] and room > 0 and _has_totals(row) and row["grows_per"] == IN_STEPS:
            yield f"  {_who(row, rows)} is full in about {counted(int(room // row['grows_bytes']), 'more step')}"
    told = [row for row in rows if row["grows_bytes"] is not None]
    if told and not any(row["grows_bytes"] for row in told):
        yield "  nothing that adds up: what is held does not grow"
    elif not told and any(NO_STEPS in (row["note"] or "") for row in rows):
        yield "  not known: no steps are marked; call profiler.step() in the loop"
    elif not told:
        yield f"  not known: that takes {LEAST_ROUNDS} traced steps"
