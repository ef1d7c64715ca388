"""The first screen of a run as the page shows it: bars, a map of who makes others wait, and links to what is behind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ...common.wording import counted
from ..core.escaping import printable
from ..core.schema import records
from ..metrics.typical_step import STEP_PARTS, with_parts
from ..render.fitting import without_front
from ..render.plots.colours import LEVELS, PART_KINDS, level
from ..results.analysis import Analysis
from ..show.first_screen import FirstScreen, Remedy, StepShare, Tile, first_screen
from ..show.step_kinds import not_counted

_MOST_ROWS, _MOST_COLUMNS = 32, 16
_MOST_CARDS = 3
_MOST_HOSTS, _LONGEST_HOST = 16, 24
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
class PictureRow:
    """A line of the pictures: a rank or, of many, all ranks of a host; `rank` is the one that it leads to."""

    name: str
    ranks: Sequence[int]
    rank: int
    late: bool


@dataclass(frozen=True)
class RankBar:
    """What the step of a device consists of, or that of a host in the mean."""

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
    a_whole: str
    """The same with its article."""
    before_culprit: str
    culprit: str
    rest_of_headline: str
    culprit_link: str
    tiles: Sequence[Tile]
    bar: Sequence[Segment]
    legend: Sequence[LegendEntry]
    idle: Sequence[LegendEntry]
    basis: str
    played: str
    """`by steps 2-4; --whole: by all`, where not all steps are played; else empty."""
    cards: Sequence[Card]
    nothing_to_gain: str
    rank_bars: Sequence[RankBar]
    more_ranks: int
    ranks: tuple[int, ...]
    """Those of the pictures; or of many, folded by host, those that stand out."""
    by_host: bool
    more_hosts: int
    covers: frozenset[str]
    """Names of the figures that would show no more than it does."""
    steps: Sequence[int]
    left_out: frozenset[int]
    """Steps that do not count."""
    map: Sequence[tuple[PictureRow, Sequence[WaitCell]]]
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
    lines = _by_host(analysis, culprits) or [
        PictureRow(f"rank {rank}", (rank,), rank, rank in culprits) for rank in shown
    ]
    by_host = any(len(line.ranks) > 1 for line in lines)
    rank_bars = _rank_bars(analysis, screen, lines) if has_step and len(analysis.breakdown) > 1 else []
    waiting = _map(table, lines) if has_step else []
    return FirstView(
        screen=screen,
        whole=whole,
        a_whole="a step" if whole == "step" else "the window",
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
        played=analysis.part_note or "",
        cards=[_card(remedy, screen, whole, culprits, table) for remedy in screen.remedies[:_MOST_CARDS]],
        nothing_to_gain=screen.nothing_to_gain,
        rank_bars=rank_bars,
        more_ranks=0 if by_host or not has_step else len(set(analysis.breakdown["rank"])) - len(set(shown)),
        ranks=tuple(shown),
        by_host=by_host,
        more_hosts=len(set(analysis.run.hosts.values())) - len(lines) if by_host else 0,
        covers=frozenset() if by_host else _covers(table, shown, rank_bars, waiting),
        steps=_steps_of(table),
        left_out=frozenset(table["step"]) - frozenset(analysis.counted_steps or table["step"]),
        map=waiting,
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
    return Card(
        title,
        about,
        f"of {'a step' if whole == 'step' else 'the window'}, {remedy.concerned_frac or 0:.0%}",
        how,
        anchor,
        link,
    )


def _covers(
    rank_steps: pd.DataFrame, shown: Sequence[int], rank_bars: Sequence[RankBar], waiting: Sequence[object]
) -> frozenset[str]:
    steps, ranks = _steps_of(rank_steps), set(rank_steps["rank"].tolist())
    whole_map = waiting and ranks <= set(shown) and len(steps) == rank_steps["step"].nunique()
    ranks_left = ranks - set(shown)
    return frozenset(
        [*(["time"] if rank_bars and not ranks_left else []), *(["heat-caused-wait"] if whole_map else [])]
    )


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


def _by_host(analysis: Analysis, culprits: Sequence[int]) -> list[PictureRow]:
    """The hosts of a run of many ranks, of many those that cause most waiting; none where not all are known."""
    hosts = {rank: analysis.run.hosts.get(rank) for rank in sorted(set(analysis.breakdown["rank"].tolist()))}
    if len(hosts) <= _MOST_ROWS or None in hosts.values() or not 2 <= len(set(hosts.values())) < len(hosts):
        return []
    caused = analysis.ranks.set_index("rank")["caused_wait_ns"].fillna(0)
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(printable(str(host)), []).append(rank)
    most = sorted(of_host, key=lambda host: -float(caused.reindex(of_host[host]).sum()))[:_MOST_HOSTS]
    return [
        PictureRow(
            f"{without_front(host, _LONGEST_HOST)}, {counted(len(ranks), 'rank')}",
            ranks,
            max(ranks, key=lambda rank: float(caused.get(rank, 0))),
            not set(culprits).isdisjoint(ranks),
        )
        for host, ranks in of_host.items()
        if host in most
    ]


def _rank_bars(analysis: Analysis, screen: FirstScreen, lines: Sequence[PictureRow]) -> list[RankBar]:
    steps = analysis.breakdown_steps
    counted_steps = steps[steps["step"].isin(analysis.typical_step.steps)] if len(steps) else steps
    of_step = with_parts(counted_steps if len(counted_steps) else analysis.breakdown)
    of_line = {rank: number for number, line in enumerate(lines) for rank in line.ranks}
    of_step = of_step[of_step["rank"].isin(of_line)]
    by_host = any(len(line.ranks) > 1 for line in lines)
    keys = [of_step["rank"].map(of_line).rename("line"), *([] if by_host else [of_step["device"]])]
    means = of_step.groupby(keys)[["window_ns", *STEP_PARTS]].mean()
    longest = float(means["window_ns"].max()) or 1.0
    several = means.index.get_level_values("line").has_duplicates
    bars = []
    for row in records(means.reset_index()):
        line = lines[row["line"]]
        whole = float(row["window_ns"]) or 1.0
        parts = [StepShare(of, called, float(row[of]), float(row[of]) / whole) for of, called in STEP_PARTS.items()]
        name = f"{line.name} / {row['device']}" if several else line.name
        total = screen.unit.number(whole)
        bars.append(RankBar(line.rank, name, total, line.late, _segments(parts, screen, longest)))
    return bars


def _steps_of(rank_steps: pd.DataFrame) -> list[int]:
    """Steps of the map: the first ones, or of many those with most waiting."""
    steps = sorted(set(rank_steps["step"].tolist()))
    if len(steps) <= _MOST_COLUMNS:
        return steps
    caused = rank_steps.groupby("step")["caused_wait_ns"].sum().sort_values(ascending=False, kind="stable")
    return sorted(int(step) for step in caused.index[:_MOST_COLUMNS])


def _map(rank_steps: pd.DataFrame, lines: Sequence[PictureRow]) -> list[tuple[PictureRow, Sequence[WaitCell]]]:
    """Waiting that each line caused by step, in ms; empty where nobody made others wait, or there is one line."""
    of_line = {rank: number for number, line in enumerate(lines) for rank in line.ranks}
    numbers = rank_steps["rank"].map(of_line)
    caused = rank_steps.groupby([numbers, rank_steps["step"]])["caused_wait_ns"].sum().astype("float64") / 1e6
    largest = float(caused.max()) if len(caused) else 0.0
    steps = _steps_of(rank_steps)
    if largest <= 0 or len(lines) < 2:
        return []
    rows: list[tuple[PictureRow, Sequence[WaitCell]]] = []
    for number, line in enumerate(lines):
        cells = []
        for step in steps:
            ms = float(caused.get((number, step), 0.0))
            text = f"{ms:,.0f}" if largest >= 20 else f"{ms:,.1f}"
            shown = text if ms >= 0.02 * largest else ""
            whom = "them" if len(line.ranks) > 1 else "it"
            hint = f"{line.name}, step {step}: the others waited {ms:,.1f} ms for {whom}"
            cells.append(WaitCell(step, (level(ms, largest) or 0) if ms >= largest / LEVELS / 4 else 0, shown, hint))
        rows.append((line, cells))
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
