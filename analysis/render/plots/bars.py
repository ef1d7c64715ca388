"""Bar charts: time of every rank, extra time of a rank, kernels by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....common.wording import bytes_text
from ...core.schema import Row, plain
from ...core.tables.lateness import REASONS
from ..units import TimeUnit, three_digits
from .colours import PART_KINDS
from .drawing import LEGEND_LINE, WIDTH, Drawing, legend_places, pixels, region_labels, text_width
from .figure import Figure, part_shown
from .scales import Scale, bottom_axis, covering

_TALLEST = 480
_MOST_LABELS = 32
_PARTS = (
    ("compute", "compute alone"),
    ("hidden", "compute and communication"),
    ("transfer", "exposed transfer"),
    ("wait", "exposed wait"),
    ("unsplit", "exposed, not split"),
    ("memory", "exposed copies"),
    ("idle", "idle"),
)
_ON_PATH = {
    "compute": ("compute", "compute"),
    "copy": ("memory", "copies"),
    "transfer": ("transfer", "transfer"),
    "unsplit": ("unsplit", "transfer or wait"),
    "cpu": ("cpu", "the CPU, before it launches"),
    "launch": ("idle", "launches"),
}
"""Kinds of links -> fill and name."""
_OF_COLLECTIVES = (("transfer", "transfer"), ("wait", "waiting for others"), ("unsplit", "not split"))
_IN_REGION = {
    "compute_ns": ("compute", "compute"),
    "exposed_transfer_ns": ("transfer", "exposed transfer"),
    "exposed_wait_ns": ("wait", "exposed wait"),
    "exposed_unsplit_ns": ("unsplit", "exposed, not split"),
    "exposed_memory_ns": ("memory", "exposed copies"),
    "idle_ns": ("idle", "idle"),
}
"""Parts of a region, which add up to `self_ns` -> fill and name."""
_MOST_BARS, _MOST_RANKS = 12, 20
_LEAST_BAR = 120
"""Pixels for the longest bar, however long names are."""
_LEAST_SHARE = 0.005
"""Of a step: what takes less would be 0%."""


def time_per_rank(breakdown: Any) -> Figure:
    """The time of every device, in parts that add up to its window."""
    rows = plain(breakdown).rows
    several = len({row["rank"] for row in rows}) < len(rows)
    names = [f"{row['rank']} / {row['device']}" if several else str(row["rank"]) for row in rows]
    values = [[value / 1e6 for value in _parts_of(row)] for row in rows]
    title = "Where the time of every rank went"
    return Figure(
        "time",
        title,
        "Every nanosecond of the window is in one part. Hiding communication costs what it slows compute by "
        "(`contention`); waiting is for other ranks.",
        _stacked(title, names, values, _PARTS),
        "breakdown",
        breakdown,
    )


def _parts_of(row: Row) -> list[int]:
    """Parts of a row of `breakdown`, in order, in ns; exposed time is unsplit if wait and transfer are NA."""
    split = row["exposed_wait_ns"] is not None
    return [
        row["compute_ns"] - row["overlap_ns"],
        row["overlap_ns"],
        row["exposed_transfer_ns"] if split else 0,
        row["exposed_wait_ns"] if split else 0,
        row["exposed_unsplit_ns"] if split else row["exposed_comm_ns"],
        row["exposed_memory_ns"],
        row["idle_ns"],
    ]


def time_per_run(trend: Any) -> Figure:
    """A typical step of every run of a series, in parts that add up to it, with its change against the run before."""
    return _steps(
        "trend",
        "A typical step of every run",
        "Every nanosecond of a step is in one part, mean over devices and steps. Beside it: its length, and the change "
        "against the run before. One star: more than steps of the two runs differ; two: more than runs do.",
        trend,
    )


def time_per_side(steps: Any) -> Figure:
    """A typical step of A and of B on one scale, in parts that add up to it."""
    title = "A step of A, and of B"
    about = "Every nanosecond of a step is in one part, mean over devices, traced steps and captures."
    return _steps("comparison", title, about, steps)


def _steps(name: str, title: str, about: str, trend: Any) -> Figure:
    rows = [row for row in plain(trend).rows if row["step_ns"] is not None]
    unit = TimeUnit.of(max([row["step_ns"] for row in rows] or [0]))
    values = [[row[part] / unit.ns for part in PART_KINDS] for row in rows]
    remarks = [_step_and_change(row, unit) for row in rows]
    svg = _stacked(title, [row["run"] for row in rows], values, _PARTS, unit.name, remarks)
    return Figure(name, title, about, svg, "trend", trend)


_STARS = {"runs": " **", "steps": " *"}


def _step_and_change(row: Row, unit: TimeUnit) -> str:
    """`49.4 ms, +7.4 *`."""
    change = row["change_ns"]
    if change is None:
        return unit.text(row["step_ns"])
    sign = "\u2212" if change < 0 else "+"
    return f"{unit.text(row['step_ns'])}, {sign}{unit.number(abs(change))}{_STARS.get(row['beyond'] or '', '')}"


def idle_per_rank(idle: Any, doing: Sequence[str], unit: TimeUnit) -> Figure:
    """Idle time of the devices that are idle longest; `doing` is what the CPU of each row did during most of it."""
    known = list(zip(plain(idle).rows, doing, strict=True))
    several = len({row["rank"] for row, _ in known}) < len(known)
    longest = sorted(known, key=lambda each: -each[0]["idle_ns"])[:_MOST_BARS]
    entries = [
        (
            f"{row['rank']} / {row['device']}" if several else f"rank {row['rank']}",
            row["idle_ns"] / unit.ns,
            ", ".join(part for part in (unit.text(row["idle_ns"]), what) if part),
        )
        for row, what in sorted(longest, key=lambda each: (each[0]["rank"], each[0]["device"]))
    ]
    title = "Idle time, and what the CPU did for most of it"
    return Figure(
        "idle",
        title,
        "Nothing ran on the device: no kernel, no copy."
        + part_shown(len(entries), len(known), "device", "those that are idle longest"),
        _horizontal(title, entries, "cpu", unit=unit.name),
        "idle",
        idle,
    )


def exposed_collectives(verdicts: Any) -> Figure:
    """Exposed time of the collectives that have most of it, in waiting and transfer, with the verdict on each."""
    known = [row for row in plain(verdicts).rows if row["exposed_ns"]]
    least = _LEAST_SHARE * sum(row["exposed_ns"] for row in known)
    rows = sorted((row for row in known if row["exposed_ns"] >= least), key=lambda row: -row["exposed_ns"])[:_MOST_BARS]
    several = len({(row["process_group"], row["pg_ranks"]) for row in rows}) > 1
    names, values = [], []
    for row in rows:
        of_group = row["role"] or f"group {row['process_group']}"
        group = f", {of_group}" if several else ""
        names.append(f"{row['collective'] or 'unknown'} of {bytes_text(row['size_bytes'])}{group}")
        ms, waiting = row["exposed_ns"] / 1e6, row["exposed_wait_frac"]
        values.append([0.0, 0.0, ms] if waiting is None else [ms * (1 - waiting), ms * waiting, 0.0])
    title = "Exposed time of collectives"
    return Figure(
        "collectives",
        title,
        "Time in which nothing was computed. Beside it the verdict: what bounds it."
        + part_shown(len(rows), len(known), "kind", "those with most of it"),
        _stacked(title, names, values, _OF_COLLECTIVES, "ms", [row["verdict"] or "" for row in rows]),
        "verdicts",
        verdicts,
    )


def kernel_categories(categories: Any, nearly_all: float) -> Figure:
    """Time of kernels by category, with its share, and its speed where FLOPs of `nearly_all` of it are known."""
    rows = plain(categories).rows[:_MOST_BARS]
    entries = []
    for row in rows:
        has_speed = row["tflop_per_s"] and row["with_flop_frac"] >= nearly_all
        speed = f", {three_digits(row['tflop_per_s'])} TFLOP/s" if has_speed else ""
        entries.append((row["category"], row["total_ns"] / 1e6, f"{row['share_frac']:.1%}{speed}"))
    title = "Kernels by category"
    return Figure(
        "categories",
        title,
        "Without communication." + part_shown(len(rows), len(categories), "category", "those with most time"),
        _horizontal(title, entries, "compute", ["memory" if row["category"] == "copy" else "compute" for row in rows]),
        "categories",
        categories,
    )


def path_in_words(table: Any) -> str:
    """What a critical path consists of, the longest part first, as `98% the CPU, before it launches, 2% copies`."""
    sums: dict[str, int] = {}
    for row in plain(table).rows:
        sums[row["kind"]] = sums.get(row["kind"], 0) + row["dur_ns"]
    whole = sum(sums.values())
    ordered = sorted(sums, key=lambda kind: -sums[kind])
    return ", ".join(f"{sums[kind] / whole:.0%} {_ON_PATH[kind][1]}" for kind in ordered if sums[kind] >= whole / 200)


def path_by_rank(table: Any) -> Figure:
    """The critical path of a step by kind, for the ranks on which it is longest."""
    kinds = list(_ON_PATH)
    times: dict[int, list[float]] = {}
    for row in plain(table).rows:
        times.setdefault(row["rank"], [0.0] * len(kinds))[kinds.index(row["kind"])] = row["dur_ns"] / 1e6
    ranks = sorted(sorted(times, key=lambda rank: -sum(times[rank]))[:_MOST_RANKS])
    title = "What the critical path of a step runs through"
    names = [str(rank) for rank in ranks]
    return Figure(
        "path",
        title,
        "By rank; all parts together are as long as the step. Where a rank waits, the path goes on with the other one."
        + part_shown(len(ranks), len(times), "rank", "those on which it is longest"),
        _stacked(title, names, [times[rank] for rank in ranks], list(_ON_PATH.values())),
        "critical_path",
        table,
    )


def top_regions(classes: Any, whole: str, unit: TimeUnit) -> Figure:
    """Classes of regions that take most themselves, in parts; `whole` is what that is of: `a step` or `the window`."""
    known = plain(classes).rows
    shown = [row for row in known if (row["share_frac"] or 0.0) >= _LEAST_SHARE] or known[:1]
    rows = sorted(shown, key=lambda row: -row["self_ns"])[:_MOST_BARS]
    names = region_labels([(row["region"], row["phase"]) for row in rows])
    values = [[(row[column] or 0) / unit.ns for column in _IN_REGION] for row in rows]
    remarks = [f"{unit.text(row['self_ns'])}, {row['share_frac'] or 0.0:.0%}" for row in rows]
    title = "Regions by device time"
    return Figure(
        "regions",
        title,
        f"Time of {whole} in each region, without the regions inside it, mean over all devices. Regions whose names "
        "differ in numbers only are one, with * for the numbers. Idle time is in the region whose work ends it. Beside "
        f"each: how long, and its share of {whole}."
        + part_shown(len(rows), len(known), "region", "those that take most"),
        _stacked(title, names, values, list(_IN_REGION.values()), unit.name, remarks),
        "region_classes",
        classes,
    )


def _stacked(
    title: str,
    rows: Sequence[str],
    values: Sequence[Sequence[float]],
    parts: Sequence[tuple[str, str]],
    unit: str = "ms",
    remarks: Sequence[str] = (),
) -> str:
    """Stacked bars; each part has a fill and a label, and a bar a remark behind it."""
    tall = min(max(_TALLEST / max(len(rows), 1), 2.0), 20.0)
    left = 16 + max([text_width(row) for row in rows] or [0.0]) + 8
    used = [index for index in range(len(parts)) if any(row[index] for row in values)]
    entries = [(f"f-{parts[index][0]}", parts[index][1]) for index in used]
    top = 28 + LEGEND_LINE * max([line for line, _ in legend_places(entries, left, WIDTH)] or [0])
    bottom = top + 6 + tall * len(rows)
    drawing = Drawing(title, WIDTH, bottom + 36)
    drawing.legend(12, entries, left)
    room = max([text_width(remark) for remark in remarks] or [0.0])
    scale = covering([sum(row) for row in values], left, max(WIDTH - 20 - room, left + _LEAST_BAR))
    bottom_axis(drawing, scale, bottom, top, unit)
    every = -(-len(rows) // _MOST_LABELS)
    for number, row in enumerate(rows):
        if number % every == 0:
            drawing.text(left - 6, top + tall * (number + 0.5) + 4, row, "end")
            if remarks:
                drawing.text(scale(sum(values[number])) + 6, top + tall * (number + 0.5) + 3, remarks[number], "faint")
    gap = 2 if tall > 8 else 0
    for index, (fill, _) in zip(used, entries, strict=True):
        commands = "".join(
            _bar(scale, sum(row[:index]), row[index], top + tall * number, tall - gap)
            for number, row in enumerate(values)
            if row[index]
        )
        drawing.path(commands, fill)
    return drawing.svg


def _bar(scale: Scale, begin: float, length: float, y: float, tall: float) -> str:
    x = scale(begin)
    wide = max(scale(begin + length) - x, 0.1)
    return f"M{pixels(x)} {pixels(y)}h{wide:.2f}v{pixels(tall)}h-{wide:.2f}z"


def causes(ranks: Any) -> Figure:
    """Waiting that each rank caused, by the reason for its lateness: the ranks that caused most."""
    rows = [row for row in plain(ranks).rows if row["caused_wait_ns"]]
    rows.sort(key=lambda row: -row["caused_wait_ns"])
    entries = [
        (
            f"rank {row['rank']}" + (f" ({row['host']})" if row["host"] else ""),
            row["caused_wait_ns"] / 1e6,
            _reason(row),
        )
        for row in rows[:_MOST_RANKS]
    ]
    return Figure(
        "causes",
        "Who makes the others wait, and why",
        "Waiting of all other ranks that began with this one; beside it what it does longer than they do."
        + part_shown(len(entries), len(rows), "rank", "those that caused most"),
        _horizontal("Who makes the others wait, and why", entries, "wait"),
        "ranks",
        ranks,
    )


def _reason(row: Row) -> str:
    because = REASONS.get(row["because"], row["because"])
    return " in ".join(part for part in (because, row["kernel"]) if part)


def top_kernels(kernels: Any) -> Figure:
    """Kernels by time, over all ranks."""
    known = plain(kernels).rows
    rows = sorted(known, key=lambda row: -row["total_ns"])[:_MOST_BARS]
    fills = {"comm": "transfer", "memory": "memory"}
    entries = [(row["name"], row["total_ns"] / 1e6, f"{row['share_frac']:.1%}") for row in rows]
    kinds = [fills.get(row["kind"], "compute") for row in rows]
    title = "Kernels by device time"
    return Figure(
        "kernels",
        title,
        "Times of kernels that ran at once are added, waiting inside communication included."
        + part_shown(len(rows), len(known), "kernel", "those with most time"),
        _horizontal(title, entries, "compute", kinds),
        "kernels",
        kernels,
    )


def _horizontal(
    title: str, entries: Sequence[tuple[str, float, str]], kind: str, kinds: Sequence[str] = (), unit: str = "ms"
) -> str:
    """One bar per entry: label, length, and a remark."""
    left = 16 + max([text_width(entry[0]) for entry in entries] or [0.0])
    bottom = 12 + 20 * len(entries)
    drawing = Drawing(title, WIDTH, bottom + 36)
    room = max([text_width(entry[2]) for entry in entries] or [0.0]) + 12
    scale = covering([entry[1] for entry in entries], left, max(WIDTH - room, left + _LEAST_BAR))
    bottom_axis(drawing, scale, bottom, 6, unit)
    for number, (what, length, note) in enumerate(entries):
        y = 8 + 20 * number
        drawing.text(left - 6, y + 12, what, "end")
        drawing.rectangle((left, y, max(scale(length) - left, 0.5), 15), f"f-{kinds[number] if kinds else kind}")
        drawing.text(scale(length) + 6, y + 12, note, "faint")
    return drawing.svg
