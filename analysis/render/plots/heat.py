"""Heat maps: rank by step, and rank by rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....common.wording import shortened
from ...core.escaping import printable
from ...core.schema import Row, plain
from .colours import LEVELS, level
from .drawing import WIDTH, Drawing, pixels, region_labels, text_width
from .figure import Figure, part_shown

_TALLEST, _LEFT = 480, 16
_WIDEST = 160.0
"""Of a cell."""
_MOST_LABELS = 32
_MOST_NAMED = 8
_MOST_REGIONS = 20
_MARK = 16  # beside the cells, for the arrow at a marked row


@dataclass(frozen=True)
class Measure:
    """A measure that a heat map of ranks and steps can show: its title, and how to read it."""

    title: str
    about: str
    kind: str = "wait"
    """Whose colour shows it."""
    from_zero: bool = True
    """Whether its colours begin at 0; else at the smallest value."""


# A rank that holds up the others is strong where it causes waiting or is late, and pale where waiting itself is shown.
MEASURES = {
    "caused_wait_ns": Measure(
        "Waiting caused",
        "How long the other ranks waited for each rank, added up over all that waited. A strong row is a rank that the "
        "others wait for, strong rows of one host point to that machine, and a single strong cell is one event. "
        "Strong cells that change from rank to rank mean uneven work, not a slow rank.",
    ),
    "exposed_wait_ns": Measure(
        "Time spent waiting",
        "How long each rank waited in collectives while it computed nothing. Strong rows wait for somebody else: the "
        "rank that they wait for is a pale row here.",
    ),
    "exposed_comm_ns": Measure(
        "Exposed communication",
        "How long each rank communicated while it computed nothing: waiting and transfer together. A rank that the "
        "others wait for usually has less of it than they have.",
        kind="transfer",
    ),
    "late_ns": Measure(
        "Lateness",
        "How late each rank came to the collective of the step to which it came latest. A rank may be late only "
        "because it waited for another one before; the map of waiting caused counts that against the other one.",
    ),
    "window_ns": Measure(
        "Step time",
        "How long each step took on each rank; the colours begin at the shortest. A strong column is a long step. "
        "Ranks that wait for each other take equally long, so a slow rank rarely stands out here.",
        kind="compute",
        from_zero=False,
    ),
}


Orders = Mapping[str, Sequence[int]]
"""In which order ranks may stand, each by its name."""


@dataclass(frozen=True)
class HeatCells:
    """The cells of a heat map: `values` has one list per row; None means not known."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    unit: str = "ms"
    of_rows: str = "rank"
    of_columns: str = "step"
    marked: frozenset[int] = frozenset()
    """Numbers of the rows that have a frame."""


def heatmap(
    table: Any,
    measure: str = "caused_wait_ns",
    orders: Orders | None = None,
    culprits: Sequence[int] = (),
    *,
    table_name: str = "rank_steps",
) -> Figure:
    """Rank by step; `measure` is a column of the table, which is `rank_steps` or `breakdown_steps`.

    Rows stand in the first of the `orders`. `culprits` are the ranks that the others wait for; their rows are marked.
    """
    shown = MEASURES[measure]
    rows = plain(table).rows
    several = len({row["rank"] for row in rows}) < len({(row["rank"], row["device"]) for row in rows})
    places = {rank: place for place, rank in enumerate(next(iter((orders or {}).values()), []))}
    keys = sorted({(row["rank"], row["device"]) for row in rows}, key=lambda key: (places.get(key[0], 0), key))
    steps = sorted({row["step"] for row in rows})
    values: dict[tuple[int, Any, int], float | None] = {}
    for row in rows:  # a step that was profiled twice has two
        key, value = (row["rank"], row["device"], row["step"]), _ms(row, measure)
        values[key] = value if values.get(key) is None else (values[key] or 0.0) + (value or 0.0)
    names = [f"{rank} / {device}" if several else str(rank) for rank, device in keys]
    ranks = [rank for rank, _ in keys]
    cells = HeatCells(
        names,
        [str(step) for step in steps],
        [[values.get((*key, step)) for step in steps] for key in keys],
        marked=frozenset(number for number, rank in enumerate(ranks) if rank in culprits),
    )
    title = f"{shown.title}, by rank and step"
    arranged = {name: sorted(range(len(keys)), key=_placed(order, ranks)) for name, order in (orders or {}).items()}
    return Figure(
        f"heat-{measure.removesuffix('_ns').replace('_', '-')}",
        title,
        f"{shown.about}{_who_is_marked(sorted(set(ranks) & set(culprits)))}",
        _drawn(title, cells, kind=shown.kind, from_zero=shown.from_zero),
        table_name,
        table,
        data=_data(cells, arranged),
    )


def _who_is_marked(ranks: Sequence[int]) -> str:
    """A sentence on the rows with a frame; empty without any."""
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f" The frame marks rank {ranks[0]}, for which the others wait most."
    return f" Frames mark ranks {shortened(ranks, _MOST_NAMED)}, for which the others wait most."


def _placed(order: Sequence[int], ranks: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    """The sort key that puts rows into this order of ranks."""
    places = {rank: place for place, rank in enumerate(order)}
    return lambda row: (places.get(ranks[row], len(places)), row)


def wait_matrix(waits: Any) -> Figure:
    """Who waits because of whom: one row per rank to blame, one column per rank that waited."""
    rows = plain(waits).rows
    late = sorted({row["blamed_rank"] for row in rows if row["blamed_rank"] is not None})
    waiting = sorted({row["rank"] for row in rows})
    waits_ms = {(row["blamed_rank"], row["rank"]): row["wait_ns"] / 1e6 for row in rows}
    blamed: list[int | None] = [*late, None] if any(row["blamed_rank"] is None for row in rows) else [*late]
    cells = HeatCells(
        ["none" if rank is None else str(rank) for rank in blamed],
        [str(rank) for rank in waiting],
        [[waits_ms.get((rank, other), 0.0) for other in waiting] for rank in blamed],
        of_rows="rank to blame",
        of_columns="rank that waited",
    )
    return Figure(
        "waits",
        "Who waits because of whom",
        "A strong row is a rank that the others wait for. `none`: no rank was late by more than clocks are uncertain.",
        _drawn("Who waits because of whom", cells),
        "waits",
        waits,
        data=_data(cells),
    )


def place_map(
    ranks: Any, of_rows: str, of_columns: str, rows: Sequence[int], columns: Sequence[int], means_ns: Any
) -> Figure:
    """Waiting caused over two dimensions of the job; `means_ns` has a list per row, of means over the ranks of a cell.

    `ranks` is the table of that name.
    """
    cells = HeatCells(
        [f"{of_rows} {number}" for number in rows],
        [f"{of_columns} {number}" for number in columns],
        [[None if ns is None else ns / 1e6 for ns in own] for own in means_ns],
        of_rows=of_rows,
        of_columns=of_columns,
    )
    title = f"Waiting caused, by {of_rows} and {of_columns}"
    return Figure(
        "places",
        title,
        f"How long the others waited for the ranks at each place of the job, mean of its ranks. A strong row is one "
        f"number in {of_rows}, a strong column one in {of_columns}: what runs there is slower. A single strong cell is "
        "a few ranks.",
        _drawn(title, cells),
        "ranks",
        ranks,
        data=_data(cells),
    )


def slow_regions(classes: Any, excess: Any, whole: str) -> Figure:
    """Where a rank takes longer than the others, by region and rank, of `a step` or `the window`.

    `classes` is the table `region_classes`; `excess` has columns `region`, `phase`, `rank` and `over_ns`, how much
    longer the rank takes than the median of the others.
    """
    over_ms = {(row["region"], row["phase"], row["rank"]): row["over_ns"] / 1e6 for row in plain(excess).rows}
    known = sorted(
        (row for row in plain(classes).rows if row["slowest_over_ns"]), key=lambda row: -row["slowest_over_ns"]
    )
    # The others would be as pale as 0.
    rows = [row for row in known if LEVELS * row["slowest_over_ns"] >= known[0]["slowest_over_ns"]][:_MOST_REGIONS]
    places = [(row["region"], row["phase"]) for row in rows]
    ranks = sorted({rank for *_, rank in over_ms})
    cells = HeatCells(
        region_labels(places),
        [str(rank) for rank in ranks],
        [[over_ms.get((*place, rank)) for rank in ranks] for place in places],
        of_rows="region",
        of_columns="rank",
    )
    title = "Where a rank is slower than the others"
    return Figure(
        "slow-regions",
        title,
        f"How much longer each region takes in {whole} than on the median of the other ranks, not counting waits for "
        "other ranks. A strong column is a rank that is slow everywhere, a single strong cell one that is slow in one "
        "place. The palest cells are no slower than the others; a rank without the region has none."
        + part_shown(len(rows), len(known), "region", "those where a rank stands out most"),
        _drawn(title, cells, kind="compute"),
        "region_classes",
        classes,
        data=_data(cells),
    )


def traffic_matrix(traffic: Any) -> Figure:
    """MB that each rank sends to each other rank."""
    rows = plain(traffic).rows
    ranks = sorted({row[end] for row in rows for end in ("rank", "to_rank")})
    sums: dict[tuple[int, int], float] = {}
    for row in rows:
        pair = row["rank"], row["to_rank"]
        sums[pair] = sums.get(pair, 0.0) + (row["size_bytes"] or 0) / 1e6
    cells = HeatCells(
        [str(rank) for rank in ranks],
        [str(rank) for rank in ranks],
        [[sums.get((rank, other)) for other in ranks] for rank in ranks],
        unit="MB",
        of_rows="sender",
        of_columns="receiver",
    )
    return Figure(
        "traffic",
        "Who sends how much to whom",
        "Sends and receives, and all_to_all, whose bytes go where its splits say. Empty: nothing was sent.",
        _drawn("Who sends how much to whom", cells, kind="transfer"),
        "traffic",
        traffic,
        data=_data(cells),
    )


def _ms(row: Row, measure: str) -> float | None:
    return None if row[measure] is None else row[measure] / 1e6


def _data(cells: HeatCells, orders: dict[str, list[int]] | None = None) -> str:
    """JSON with which a page shows the value under the pointer and reorders the rows."""
    content = {
        "rows": [printable(row) for row in cells.rows],
        "columns": list(cells.columns),
        "values": [[None if value is None else float(f"{value:.6g}") for value in row] for row in cells.values],
        "unit": cells.unit,
        "of": [cells.of_rows, cells.of_columns],
        "orders": orders or {},
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


def _drawn(title: str, cells: HeatCells, *, kind: str = "wait", from_zero: bool = True) -> str:
    known = [value for row in cells.values for value in row if value is not None]
    low = 0.0 if from_zero or not known else min(known)
    largest = max(known, default=0.0)
    left = _LEFT + max(map(text_width, (cells.of_rows, *cells.rows)))
    wide = min(max((WIDTH - left - _MARK) / max(len(cells.columns), 1), 1.0), _WIDEST)
    tall = min(max(_TALLEST / max(len(cells.rows), 1), 1.5), 24.0)
    width = max(left + wide * len(cells.columns) + _MARK, WIDTH)
    drawing = Drawing(title, width, 58 + tall * len(cells.rows) + 34)
    drawing.text(left - 6, 42, cells.of_rows, "faint end")
    drawing.text(left, 14, f"{cells.of_columns}", "faint")
    _name_columns(drawing, cells.columns, left, wide)
    drawing.parts.append(
        f'<g class="cells of-{kind}" transform="translate({pixels(left)} 48)" data-wide="{wide:.4f}" '
        f'data-tall="{tall:.4f}">'
    )
    every = -(-len(cells.rows) // _MOST_LABELS)
    for number, (row, values) in enumerate(zip(cells.rows, cells.values, strict=True)):
        drawing.parts.append(f'<g transform="translate(0 {number * tall:.2f})">')
        if number % every == 0:
            drawing.text(-6, tall / 2 + 4, row, "end")
        _draw_row(drawing, values, (wide, tall), (low, largest))
        if number in cells.marked:
            _mark_row(drawing, wide * len(values), tall)
        drawing.parts.append("</g>")
    drawing.parts.append("</g>")
    drawing.parts.append(f'<g class="of-{kind}">')
    _scale_of_colours(drawing, left, 48 + tall * len(cells.rows) + 12, (low, largest, cells.unit))
    drawing.parts.append("</g>")
    return drawing.svg


def _name_columns(drawing: Drawing, columns: Sequence[str], left: float, wide: float) -> None:
    longest = max([text_width(column) for column in columns] or [0.0]) + 6
    every = max(1, -(-int(longest) // max(int(wide), 1)))
    for number, column in enumerate(columns):
        if number % every == 0:
            drawing.text(left + (number + 0.5) * wide, 42, column, "faint mid")


def _draw_row(
    drawing: Drawing, values: Sequence[float | None], size: tuple[float, float], ends: tuple[float, float]
) -> None:
    """Draw one path for all cells of each colour."""
    (wide, tall), (low, largest) = size, ends
    at: dict[int, list[int]] = {}
    for number, value in enumerate(values):
        step = level(None if value is None else value - low, largest - low)
        if step is not None:
            at.setdefault(step, []).append(number)
    gap = 1 if wide > 4 and tall > 4 else 0
    cell = f"h{pixels(wide - gap)}v{pixels(tall - gap)}h-{pixels(wide - gap)}z"
    for step, numbers in at.items():
        drawing.path("".join(f"M{pixels(n * wide)} 0{cell}" for n in numbers), f"h{step}")


def _mark_row(drawing: Drawing, wide: float, tall: float) -> None:
    """Draw a frame around the cells and an arrow to them, visible on any colour and on paper."""
    drawing.rectangle((0, 0, wide - 1, tall - 1), "frame")  # whatever is below the row would cover more
    middle = pixels(tall / 2)
    drawing.path(f"M{pixels(wide + 4)} {middle}l9 -5v10z", "f-wait")


def _scale_of_colours(drawing: Drawing, left: float, y: float, meaning: tuple[float, float, str]) -> None:
    low, largest, unit = meaning
    for step in range(LEVELS):
        drawing.rectangle((left + 14 * step, y, 14, 9), f"h{step}")
    drawing.text(left, y + 22, _rounded(low), "faint")
    drawing.text(left + 14 * LEVELS, y + 22, f"{_rounded(largest)} {unit}", "faint end")


def _rounded(value: float) -> str:
    """An end of a scale with as many digits as clocks allow: one decimal, or two digits below 1."""
    return "0" if not value else f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
