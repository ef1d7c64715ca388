"""One step over all ranks on one clock: compute, transfer, wait, and the arrivals others waited for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.intervals import Spans, spans
from ...core.kinds import COMPUTE
from ...core.schema import plain
from .drawing import Drawing, pixels, text_width
from .figure import Figure
from .scales import Scale, bottom_axis

_WIDTH, _TALLEST = 860, 900
_TICKS = 1 << 20
_MOST_SPANS, _MOST_OF_RANK, _MOST_JOINED = 48_000, 700, 150
_MOST_CALLS, _MOST_CALLS_OF_RANK = 12_000, 400
_Times = NDArray[np.int64]


class StepTables(NamedTuple):
    """The tables of a run that the figure needs: activities, participation and clocks."""

    activities: Any
    calls: Any
    collectives: Any
    participation: Any
    clocks: Any


class _Row(NamedTuple):
    """A device in the step; times are ns since its begin on the common clock; arrays of calls are (calls,)."""

    rank: int
    name: str
    compute: Spans
    starts: _Times
    waits: _Times
    ends: _Times
    split: NDArray[np.bool_]
    ids: _Times


def one_step(tables: StepTables, step: int) -> Figure:
    """Draw the step on every rank. Something must have run in it."""
    begin, span, rows = _rows(tables, step)
    per_tick = max(span / _TICKS, 1.0)
    most = max(min(_MOST_SPANS // len(rows), _MOST_OF_RANK), 60)
    rows = [row._replace(compute=coarser(row.compute, most)) for row in rows]
    rows, dropped = _longest_calls(rows)
    title = f"Step {step} on every rank"
    left = 16 + max(text_width(row.name) for row in rows)
    tall = min(max(_TALLEST / len(rows), 3.0), 34.0)
    bottom = 34 + tall * len(rows)
    drawing = Drawing(title, _WIDTH, bottom + 36)
    scale = Scale(0.0, span / 1e6, left, _WIDTH - 16)
    fills = [("f-compute", "compute"), ("f-transfer", "transfer"), ("f-wait", "waiting")]
    unsplit = [("f-unsplit", "not split")] if any((~row.split).any() for row in rows) else []
    drawing.legend(12, [*fills, *unsplit], left)
    bottom_axis(drawing, scale, bottom, 30, "ms")
    for number, row in enumerate(rows):
        if number % -(-len(rows) // 64) == 0:
            drawing.text(left - 6, 32 + tall * (number + 0.5) + 2, row.name, "end")
    _zoomable(drawing, rows, (scale.end - scale.start, per_tick), (left, tall, tables))
    left_out = f" The {dropped:,} shortest calls are not drawn." if dropped else ""
    return Figure(
        "step",
        title,
        "Above compute, below communication: first the waiting of a rank, then the transfer. Upright lines: the last "
        "rank arrives, and for all that waited the transfer begins; the band is the uncertainty of clocks."
        f"{left_out}",
        drawing.svg,
        "participation",
        _taking_part(tables, step),
        data=_data(rows, tables, begin, per_tick),
    )


def _rows(tables: StepTables, step: int) -> tuple[int, int, list[_Row]]:
    """Begin of the step on the common clock, its length, and its devices."""
    activities = tables.activities[(tables.activities["step"] == step).fillna(False).astype(bool)]
    of_call = tables.calls.set_index("call_id")["step"]
    taking = tables.participation[(tables.participation["call_id"].map(of_call) == step).fillna(False).astype(bool)]
    clocks = {row["rank"]: row for row in plain(tables.clocks).rows}
    devices, several = [], activities.groupby("rank")["device"].nunique().max() > 1 if len(activities) else False
    calls_of = dict(list(taking.groupby(["rank", "device"])))
    for (rank, device), part in activities.groupby(["rank", "device"], sort=True):
        start = part["start_ns"].to_numpy()
        ahead = ahead_ns(clocks.get(rank), start)
        computes = (part["kind"] == COMPUTE).to_numpy()
        begun = start - ahead
        ended = begun + part["dur_ns"].to_numpy()
        calls = calls_of.get((rank, device), taking.iloc[:0])
        arrived = calls["arrived_ns"].to_numpy(dtype=np.int64)
        waits = calls["wait_ns"].to_numpy(dtype=np.int64, na_value=0)
        row = _Row(
            int(rank),
            f"{rank} / {device}" if several else f"{rank}",
            spans(begun[computes], ended[computes]),
            arrived,
            waits,
            arrived + calls["dur_ns"].to_numpy(),
            calls["wait_ns"].notna().to_numpy(),
            calls["collective_id"].to_numpy(),
        )
        devices.append((int(begun.min()), int(ended.max()), row))
    begin, end = min(f[0] for f in devices), max(f[1] for f in devices)
    return begin, max(end - begin, 1), [_since(row, begin) for _, _, row in devices]


def ahead_ns(clock: dict[str, Any] | None, times_ns: _Times) -> _Times:
    """How far the clock of a rank, a row of `clocks`, is ahead at these times, in ns."""
    if clock is None:
        return np.zeros(len(times_ns), dtype=np.int64)
    drift = clock["drift_ppm"] * 1e-6 * (times_ns - clock["origin_ns"])
    ahead: _Times = np.rint(clock["offset_ns"] + drift).astype(np.int64)
    return ahead


def _since(row: _Row, begin: int) -> _Row:
    compute = Spans(row.compute.starts - begin, row.compute.ends - begin)
    return row._replace(compute=compute, starts=row.starts - begin, ends=row.ends - begin)


def coarser(whole: Spans, most: int) -> Spans:
    """Merge spans over the shortest gaps until at most `most` are left."""
    if len(whole.starts) <= most:
        return whole
    gaps = whole.starts[1:] - whole.ends[:-1]
    kept = np.sort(np.argpartition(gaps, -(most - 1))[-(most - 1) :])
    return Spans(whole.starts[np.concatenate(([0], kept + 1))], whole.ends[np.concatenate((kept, [-1]))])


def _longest_calls(rows: list[_Row]) -> tuple[list[_Row], int]:
    """Keep the longest calls of all rows, as many as a page can hold, and count the others."""
    lengths = np.concatenate([row.ends - row.starts for row in rows])
    most = min(_MOST_CALLS, _MOST_CALLS_OF_RANK * len(rows))
    if len(lengths) <= most:
        return rows, 0
    least = np.partition(lengths, -most)[-most]
    kept = []
    for row in rows:
        is_long = (row.ends - row.starts) >= least
        kept.append(_Row(row.rank, row.name, row.compute, *(column[is_long] for column in row[3:])))
    return kept, len(lengths) - sum(len(row.starts) for row in kept)


def _zoomable(
    drawing: Drawing, rows: Sequence[_Row], size: tuple[float, float], place: tuple[float, float, StepTables]
) -> None:
    """Draw the part that can be stretched along x, in its own coordinate system: ticks of time by pixels."""
    (wide, per_tick), (left, tall, tables) = size, place
    ticks = int(max(row.ends.max(initial=1) for row in rows) / per_tick)
    ticks = max(ticks, int(max((row.compute.ends.max(initial=1) for row in rows), default=1) / per_tick), 1)
    high = tall * len(rows)
    drawing.parts.append(
        f'<svg class="zoom" x="{pixels(left)}" y="30" width="{pixels(wide)}" height="{pixels(high)}" '
        f'viewBox="0 0 {ticks} {pixels(high)}" preserveAspectRatio="none">'
    )
    half = max(tall * 0.42, 1.0)
    for number, row in enumerate(rows):
        y = tall * number + tall * 0.06
        stroke = f' stroke-width="{pixels(half)}"'
        compute = _lines(row.compute.starts, row.compute.ends, y + half / 2, per_tick)
        drawing.path(compute, "l-compute", stroke)
        moving = row.starts + row.waits
        for classes, shapes, begin, end in (
            ("l-wait", row.split & (row.waits > 0), row.starts, moving),
            ("l-transfer", row.split, moving, row.ends),
            ("l-unsplit", ~row.split, row.starts, row.ends),
        ):
            drawing.path(_lines(begin[shapes], end[shapes], y + half * 1.5, per_tick), classes, stroke)
    _join(drawing, rows, (tall, per_tick), tables)
    drawing.parts.append("</svg>")


def _lines(starts: _Times, ends: _Times, y: float, per_tick: float) -> str:
    """Path commands of a horizontal line for each interval."""
    begin = (starts / per_tick).astype(np.int64).tolist()
    long = np.maximum(((ends - starts) / per_tick).astype(np.int64), 1).tolist()
    height = pixels(y)
    return "".join(f"M{x} {height}h{dx}" for x, dx in zip(begin, long, strict=True))


def _join(drawing: Drawing, rows: Sequence[_Row], size: tuple[float, float], tables: StepTables) -> None:
    """Draw a line across the ranks of a collective at its last arrival, for those with most waiting."""
    tall, per_tick = size
    arrived: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in enumerate(rows):
        for start, wait, split, which in zip(row.starts, row.waits, row.split, row.ids, strict=True):
            if split:
                arrived.setdefault(int(which), []).append((number, int(start), int(wait)))
    together = {which: members for which, members in arrived.items() if len(members) > 1}
    most = sorted(together, key=lambda which: -sum(member[2] for member in together[which]))[:_MOST_JOINED]
    uncertain = dict(zip(tables.clocks["rank"], tables.clocks["bent_uncertainty_ns"], strict=True))
    bands, lines = [], []
    for which in most:
        members = together[which]
        x = max(start for _, start, _ in members) / per_tick
        top, bottom = tall * members[0][0], tall * (members[-1][0] + 1)
        wide = 2 * max(int(uncertain.get(rows[number].rank, 0)) for number, _, _ in members) / per_tick
        bands.append(f"M{int(x - wide / 2)} {pixels(top)}h{int(wide)}V{pixels(bottom)}h-{int(wide)}z")
        lines.append(f"M{int(x)} {pixels(top)}V{pixels(bottom)}")
    drawing.path("".join(bands), "band")
    drawing.path("".join(lines), "thin", ' vector-effect="non-scaling-stroke" opacity=".6"')


def _taking_part(tables: StepTables, step: int) -> Any:
    """The rows of `participation` in the step."""
    of_call = tables.calls.set_index("call_id")["step"]
    in_step = (tables.participation["call_id"].map(of_call) == step).fillna(False).astype(bool)
    return tables.participation[in_step].reset_index(drop=True)


def _data(rows: Sequence[_Row], tables: StepTables, begin: int, per_tick: float) -> str:
    """JSON about the call under the pointer; times are ticks, each start relative to the one before."""
    ids = sorted({int(which) for row in rows for which in row.ids})
    numbers = {which: number for number, which in enumerate(ids)}
    known = tables.collectives[tables.collectives["collective_id"].isin(ids)]
    columns = ("collective", "size_bytes", "process_group", "last_rank")
    described = {row["collective_id"]: [row[column] for column in columns] for row in plain(known).rows}
    calls = []
    for row in rows:
        order = np.argsort(row.starts, kind="stable")
        starts = (row.starts[order] / per_tick).astype(np.int64)
        calls.append({
            "name": row.name,
            "start": np.diff(starts, prepend=0).tolist(),
            "wait": [int(w / per_tick) if s else -1 for w, s in zip(row.waits[order], row.split[order], strict=True)],
            "dur": ((row.ends - row.starts)[order] / per_tick).astype(np.int64).tolist(),
            "of": [numbers[int(which)] for which in row.ids[order]],
        })  # fmt: skip
    content = {"ns": per_tick, "begin": str(begin), "rows": calls, "collectives": [described.get(i) for i in ids]}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True)
