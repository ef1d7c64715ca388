"""Heat maps: rank against step, and rank against rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.escaping import printable
from ...core.schema import Row, plain
from .colours import LEVELS, level
from .drawing import Drawing, pixels, text_width
from .figure import Figure

_WIDTH, _TALLEST, _LEFT = 860, 760, 16
_MOST_LABELS = 48
_MEASURES = {
    "exposed_wait_ns": "exposed waiting",
    "late_ns": "lateness",
    "caused_wait_ns": "waiting of others that the rank caused",
    "window_ns": "step time",
}


Orders = Mapping[str, Sequence[int]]
"""In which order ranks may stand, each by its name."""


@dataclass(frozen=True)
class HeatCells:
    """What a heat map shows: `values` has one list for each row; None is not known."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    unit: str = "ms"
    of_rows: str = "rank"
    of_columns: str = "step"


def heatmap(rank_steps: Any, measure: str = "exposed_wait_ns", orders: Orders | None = None) -> Figure:
    """Rank against step; `measure` is a column of the table `rank_steps`. Rows stand in the first of the `orders`.

    The colours of `window_ns` begin at the shortest step, those of the others at 0.
    """
    table = plain(rank_steps)
    rows = table.rows
    several = len({row["rank"] for row in rows}) < len({(row["rank"], row["device"]) for row in rows})
    places = {rank: place for place, rank in enumerate(next(iter((orders or {}).values()), []))}
    keys = sorted({(row["rank"], row["device"]) for row in rows}, key=lambda key: (places.get(key[0], 0), key))
    steps = sorted({row["step"] for row in rows})
    found = {(row["rank"], row["device"], row["step"]): _ms(row, measure) for row in rows}
    names = [f"{rank} / {device}" if several else str(rank) for rank, device in keys]
    cells = HeatCells(
        names, [str(step) for step in steps], [[found.get((*key, step)) for step in steps] for key in keys]
    )
    title = f"{_MEASURES[measure].capitalize()} by rank and step"
    ranks = [rank for rank, _ in keys]
    arranged = {name: sorted(range(len(keys)), key=_placed(order, ranks)) for name, order in (orders or {}).items()}
    return Figure(
        f"heat-{measure.removesuffix('_ns').replace('_', '-')}",
        title,
        "One hot cell is an event, a hot row a slow rank, hot rows of one host a slow machine, no fixed pattern uneven "
        "inputs.",
        _drawn(f"heat-{measure}", title, cells, from_zero=measure != "window_ns"),
        "rank_steps",
        rank_steps,
        data=_data(cells, arranged),
    )


def _placed(order: Sequence[int], ranks: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    """By which rows are sorted into an order of ranks."""
    places = {rank: place for place, rank in enumerate(order)}
    return lambda row: (places.get(ranks[row], len(places)), row)


def wait_matrix(waits: Any) -> Figure:
    """Who waits because of whom: a row for each rank to blame, a column for each rank that waited."""
    rows = plain(waits).rows
    late = sorted({row["blamed_rank"] for row in rows if row["blamed_rank"] is not None})
    waiting = sorted({row["rank"] for row in rows})
    found = {(row["blamed_rank"], row["rank"]): row["wait_ns"] / 1e6 for row in rows}
    blamed: list[int | None] = [*late, None] if any(row["blamed_rank"] is None for row in rows) else [*late]
    cells = HeatCells(
        ["none" if rank is None else str(rank) for rank in blamed],
        [str(rank) for rank in waiting],
        [[found.get((rank, other), 0.0) for other in waiting] for rank in blamed],
        of_rows="rank to blame",
        of_columns="rank that waited",
    )
    return Figure(
        "waits",
        "Who waits because of whom",
        "A bright row is a rank that the others wait for. `none`: no rank was late by more than clocks are uncertain.",
        _drawn("waits", "Who waits because of whom", cells),
        "waits",
        waits,
        data=_data(cells),
    )


def traffic_matrix(traffic: Any) -> Figure:
    """What each rank sends to each other one, in MB."""
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
        _drawn("traffic", "Who sends how much to whom", cells),
        "traffic",
        traffic,
        data=_data(cells),
    )


def _ms(row: Row, measure: str) -> float | None:
    return None if row[measure] is None else row[measure] / 1e6


def _data(cells: HeatCells, orders: dict[str, list[int]] | None = None) -> str:
    """What a page needs to say the value under the pointer, and to put the rows into another order, as JSON."""
    content = {
        "rows": [printable(row) for row in cells.rows],
        "columns": list(cells.columns),
        "values": [[None if value is None else float(f"{value:.6g}") for value in row] for row in cells.values],
        "unit": cells.unit,
        "of": [cells.of_rows, cells.of_columns],
        "orders": orders or {},
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)


def _drawn(name: str, title: str, cells: HeatCells, *, from_zero: bool = True) -> str:
    known = [value for row in cells.values for value in row if value is not None]
    low = 0.0 if from_zero or not known else min(known)
    largest = max(known, default=0.0)
    left = _LEFT + max(map(text_width, (cells.of_rows, *cells.rows)))
    wide = min(max((_WIDTH - left - 10) / max(len(cells.columns), 1), 1.0), 46.0)
    tall = min(max(_TALLEST / max(len(cells.rows), 1), 1.5), 18.0)
    width = max(left + wide * len(cells.columns) + 10, 420)
    drawing = Drawing(name, title, width, 58 + tall * len(cells.rows) + 34)
    drawing.text(left - 6, 42, cells.of_rows, "faint end")
    drawing.text(left, 14, f"{cells.of_columns}", "faint")
    _name_columns(drawing, cells.columns, left, wide)
    drawing.parts.append(
        f'<g class="cells" transform="translate({pixels(left)} 48)" data-wide="{wide:.4f}" data-tall="{tall:.4f}">'
    )
    every = -(-len(cells.rows) // _MOST_LABELS)
    for number, (row, values) in enumerate(zip(cells.rows, cells.values, strict=True)):
        drawing.parts.append(f'<g transform="translate(0 {number * tall:.2f})">')
        if number % every == 0:
            drawing.text(-6, tall / 2 + 4, row, "end")
        _draw_row(drawing, values, (wide, tall), (low, largest))
        drawing.parts.append("</g>")
    drawing.parts.append("</g>")
    _scale_of_colours(drawing, left, 48 + tall * len(cells.rows) + 12, (low, largest, cells.unit))
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
    """One path for all cells of a colour."""
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


def _scale_of_colours(drawing: Drawing, left: float, y: float, meaning: tuple[float, float, str]) -> None:
    low, largest, unit = meaning
    for step in range(LEVELS):
        drawing.rectangle((left + 14 * step, y, 14, 9), f"h{step}")
    drawing.text(left, y + 22, f"{low:,.4g}", "faint")
    drawing.text(left + 14 * LEVELS, y + 22, f"{largest:,.4g} {unit}", "faint end")
