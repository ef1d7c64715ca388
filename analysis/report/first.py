"""The first screen of a run as the page shows it: bars, a map of who makes others wait, and links to what is behind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ...common.wording import counted
from ..core.schema import records
from ..metrics.typical_step import STEP_PARTS, with_parts
from ..render.plots.colours import LEVELS, PART_KINDS, level
from ..results.analysis import Analysis
from ..show.first_screen import FirstScreen, Remedy, StepShare, Tile, first_screen
from ..show.step_kinds import not_counted

_MOST_ROWS, _MOST_COLUMNS = 32, 16
_MOST_CARDS = 3
_MOST_LEFT_OUT = 3
_FULL = 1000.0
"""A step is so wide in the coordinates of a bar."""
_LEAST_SHOWN = 0.0005
_RANKS = re.compile(r"[Rr]anks? \d+(?:(?:, | and )\d+)*\b")
"""Where a headline that is about ranks names them."""
_BEHIND = {
    "no_straggler": ("steps", "Its steps beside the others'"),
    "slow_links": ("bandwidth", "Bandwidth by group"),
    "balanced_experts": ("experts", "Experts by layer"),
    "no_jitter": ("ranks", "Who is late when"),
    "no_bubble": ("waits", "Who waits for whom"),
    "overlap": ("collectives", "Which collectives"),
    "faster_links": ("bandwidth", "Which sizes fall short"),
    "twice_links": ("bandwidth", "Bandwidth by group"),
    "no_copies": ("kernels", "Kernels and copies"),
}
"""Where the page shows what a remedy is about; of all others, where idle time is."""


@dataclass(frozen=True)
class Segment:
    """A part of a bar: its kind, where it begins and how wide it is in thousandths, and what it says."""

    kind: str
    x: float
    width: float
    hint: str


@dataclass(frozen=True)
class LegendEntry:
    """A colour, what it means, and how much of it there is."""

    kind: str
    name: str
    amount: str
    share: str


@dataclass(frozen=True)
class RankBar:
    """What the step of a device consists of."""

    rank: int
    name: str
    total: str
    late: bool
    segments: Sequence[Segment]


@dataclass(frozen=True)
class WaitCell:
    """Waiting that a rank caused in a step: the level of its colour, what the cell shows, and what it says."""

    step: int
    level: int
    text: str
    hint: str


@dataclass(frozen=True)
class Card:
    """A remedy: its title, gain and interval, where to begin, and where in the page it is shown."""

    title: str
    gain: str
    interval: str
    how: str
    anchor: str
    link: str


@dataclass(frozen=True)
class FirstView:
    """All that the template of the first screen shows; `culprit` is the name in the headline that is a link."""

    screen: FirstScreen
    whole: str
    """What it is about: a step, or the window of a run without steps."""
    before_culprit: str
    culprit: str
    rest_of_headline: str
    culprit_link: str
    tiles: Sequence[Tile]
    bar: Sequence[Segment]
    legend: Sequence[LegendEntry]
    idle: Sequence[LegendEntry]
    basis: str
    cards: Sequence[Card]
    nothing_to_gain: str
    rank_bars: Sequence[RankBar]
    more_ranks: int
    steps: Sequence[int]
    map: Sequence[tuple[int, bool, Sequence[WaitCell]]]
    map_says: str


def first_view(analysis: Analysis) -> FirstView:
    """The first screen of the run."""
    screen, whole = first_screen(analysis), "step" if analysis.run.steps else "window"
    has_step = len(screen.parts) > 0
    about = screen.headline_ranks
    named = _RANKS.search(screen.headline) if about else None
    culprits = list(about) or (analysis.culprits if has_step else [])
    shown = _shown_ranks(analysis, culprits) if has_step else []
    table = analysis.table("rank_steps")
    return FirstView(
        screen=screen,
        whole=whole,
        before_culprit=screen.headline[: named.start()] if named else "",
        culprit=named[0] if named else "",
        rest_of_headline=screen.headline[named.end() :] if named else screen.headline,
        culprit_link=_link_of_headline(screen, table, about[0]) if named else "",
        tiles=screen.tiles,
        bar=_segments(screen.parts, screen),
        legend=[_entry(part, screen) for part in screen.parts if part.frac >= _LEAST_SHOWN],
        idle=[
            replace(_entry(part, screen), name=part.name) for part in screen.idle if not screen.unit.is_zero(part.ns)
        ],
        basis=_basis(analysis, screen) if has_step else "",
        cards=[_card(remedy, screen, whole, culprits, table) for remedy in screen.remedies[:_MOST_CARDS]],
        nothing_to_gain=screen.nothing_to_gain,
        rank_bars=_rank_bars(analysis, screen, shown, culprits) if has_step and len(analysis.breakdown) > 1 else [],
        more_ranks=len(set(analysis.breakdown["rank"])) - len(set(shown)) if has_step else 0,
        steps=_steps_of(table),
        map=_map(table, shown, culprits) if has_step else [],
        map_says=_map_says(table),
    )


def _basis(analysis: Analysis, screen: FirstScreen) -> str:
    typical, devices = analysis.typical_step, len(analysis.breakdown)
    means = [counted(n, what) for n, what in ((devices, "device"), (len(typical.steps), "step")) if n > 1]
    of = f"Mean of {' and '.join(means)}. " if means else ""
    hiding = [screen.hiding.replace("`", "")] if screen.hiding else []
    return " ".join([f"{of}Every nanosecond is in one part.", *hiding, *not_counted(analysis.steps, _MOST_LEFT_OUT)])


def _segments(parts: Sequence[StepShare], screen: FirstScreen, whole: float = 0.0) -> list[Segment]:
    total = whole or sum(part.ns for part in parts) or 1.0
    x, segments = 0.0, []
    for part in parts:
        width = _FULL * part.ns / total
        if width > 0:
            hint = f"{part.name}: {screen.unit.text(part.ns)}, {part.frac:.1%}"
            segments.append(Segment(PART_KINDS[part.column], round(x, 2), round(width, 2), hint))
        x += width
    return segments


def _entry(part: StepShare, screen: FirstScreen) -> LegendEntry:
    name = f"{part.name[:1].upper()}{part.name[1:]}"
    return LegendEntry(PART_KINDS[part.column], name, screen.unit.text(part.ns), f"{part.frac:.0%}")


def _card(remedy: Remedy, screen: FirstScreen, whole: str, culprits: Sequence[int], table: pd.DataFrame) -> Card:
    anchor, link = _BEHIND.get(remedy.name, ("time", "Idle time by rank"))
    if remedy.name == "no_straggler" and culprits:
        anchor, link = _link(table, culprits[0]).removeprefix("#"), f"Rank {culprits[0]} in its worst step"
    unit = screen.unit
    title = f"{remedy.what[:1].upper()}{remedy.what[1:]}"
    how = f"{remedy.how[:1].upper()}{remedy.how[1:]}."
    if remedy.gain_ns is not None:
        between = f"{unit.number(remedy.low_ns or 0)} to {unit.number(remedy.high_ns or 0)}"
        gain = f"\u2212{unit.text(remedy.gain_ns)}"
        return Card(title, f"at most {gain}" if remedy.is_bound else gain, between, how, anchor, link)
    about = unit.text(remedy.concerned_ns or 0)
    return Card(title, about, f"of a {whole}, {remedy.concerned_frac or 0:.0%}", how, anchor, link)


def _link_of_headline(screen: FirstScreen, rank_steps: pd.DataFrame, rank: int) -> str:
    """Where the headline leads: a call that was never made is in no step, but in the table of hangs."""
    return "#collectives" if screen.verdict == "hang" else _link(rank_steps, rank)


def _link(rank_steps: pd.DataFrame, rank: int) -> str:
    """The address of the step in which the rank makes the others wait most."""
    own = rank_steps[rank_steps["rank"] == rank]
    if not len(own):
        return f"#rank={rank}"
    worst = own.loc[own["caused_wait_ns"].fillna(0).astype("int64").idxmax()]
    return f"#step={int(worst['step'])}&rank={rank}"


def _shown_ranks(analysis: Analysis, culprits: Sequence[int]) -> list[int]:
    """All ranks, or of many those that the others wait for, those that compute longest, and those that idle longest."""
    ranks = sorted(set(analysis.breakdown["rank"].tolist()))
    if len(ranks) <= _MOST_ROWS:
        return ranks
    by_rank = analysis.breakdown.groupby("rank")[["compute_ns", "idle_ns"]].sum()
    caused = analysis.ranks.set_index("rank")["caused_wait_ns"].fillna(0)
    chosen = dict.fromkeys(culprits[: _MOST_ROWS // 2])
    for values in (caused, by_rank["compute_ns"], by_rank["idle_ns"]):
        order = values.sort_values(ascending=False, kind="stable").index
        chosen |= dict.fromkeys([int(rank) for rank in order][: (_MOST_ROWS - len(culprits[:16])) // 3])
    return sorted(list(chosen)[:_MOST_ROWS])


def _rank_bars(analysis: Analysis, screen: FirstScreen, ranks: Sequence[int], culprits: Sequence[int]) -> list[RankBar]:
    steps = analysis.breakdown_steps
    counted = steps[steps["step"].isin(analysis.typical_step.steps)] if len(steps) else steps
    of_step = with_parts(counted if len(counted) else analysis.breakdown)
    means = of_step[of_step["rank"].isin(ranks)].groupby(["rank", "device"])[["window_ns", *STEP_PARTS]].mean()
    longest = float(means["window_ns"].max()) or 1.0
    several = means.index.get_level_values("rank").has_duplicates
    bars = []
    for row in records(means.reset_index()):
        rank, device = row["rank"], row["device"]
        whole = float(row["window_ns"]) or 1.0
        parts = [StepShare(of, called, float(row[of]), float(row[of]) / whole) for of, called in STEP_PARTS.items()]
        name = f"rank {rank} / {device}" if several else f"rank {rank}"
        total = screen.unit.number(whole)
        bars.append(RankBar(int(rank), name, total, rank in culprits, _segments(parts, screen, longest)))
    return bars


def _steps_of(rank_steps: pd.DataFrame) -> list[int]:
    """Steps of the map: the first ones, or of many those with most waiting."""
    steps = sorted(set(rank_steps["step"].tolist()))
    if len(steps) <= _MOST_COLUMNS:
        return steps
    caused = rank_steps.groupby("step")["caused_wait_ns"].sum().sort_values(ascending=False, kind="stable")
    return sorted(int(step) for step in caused.index[:_MOST_COLUMNS])


def _map(
    rank_steps: pd.DataFrame, ranks: Sequence[int], culprits: Sequence[int]
) -> list[tuple[int, bool, Sequence[WaitCell]]]:
    """Waiting that each rank caused by step, in ms; empty where nobody made others wait, or there is one step."""
    caused = rank_steps.groupby(["rank", "step"])["caused_wait_ns"].sum().astype("float64") / 1e6
    largest = float(caused.max()) if len(caused) else 0.0
    steps = _steps_of(rank_steps)
    if largest <= 0 or len(ranks) < 2:
        return []
    rows: list[tuple[int, bool, Sequence[WaitCell]]] = []
    for rank in ranks:
        cells = []
        for step in steps:
            ms = float(caused.get((rank, step), 0.0))
            text = f"{ms:,.0f}" if largest >= 20 else f"{ms:,.1f}"
            shown = text if ms >= 0.02 * largest else ""
            hint = f"rank {rank}, step {step}: the others waited {ms:,.3f} ms for it"
            cells.append(WaitCell(step, (level(ms, largest) or 0) if ms >= largest / LEVELS / 4 else 0, shown, hint))
        rows.append((rank, rank in culprits, cells))
    return rows


def _map_says(rank_steps: pd.DataFrame) -> str:
    """What the map shows of this run."""
    caused = rank_steps.groupby(["rank", "step"])["caused_wait_ns"].sum()
    if not len(caused) or not caused.max():
        return ""
    rank, step = next(iter(caused[caused == caused.max()].index))
    ms = caused.max() / 1e6
    count = rank_steps["step"].nunique()
    shown = f" {_MOST_COLUMNS} of {count} steps: those with most waiting." if count > _MOST_COLUMNS else ""
    return f"The most in a step: rank {rank} makes the others wait {ms:,.1f} ms together in step {step}.{shown}"
