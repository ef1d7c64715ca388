"""A run on one screen: verdict, cost in a step, late ranks and reasons, what to try, and key numbers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from rich.cells import cell_len

from ...common.wording import counted, listed, ranges_of
from ..core.escaping import for_shell, printable
from ..core.schema import Row, records
from ..metrics.causes.blame import shares_of_waiting
from ..metrics.typical_step import STEP_PARTS, TypicalStep
from ..metrics.verdicts.culprits import length
from ..metrics.verdicts.doing import on_cpu
from ..metrics.verdicts.of_idle import idle_rows
from ..metrics.verdicts.of_run import first_verdict
from ..render.fitting import shortened, shortened_kernel
from ..render.people import styled, wrapped
from ..render.screen import PAPER, Screen
from ..results.analysis import Analysis

_WIDEST, _NARROWEST, _MOST_LINES = 100, 60, 38
_BAR = 24
_SHOWN_FROM = 0.0005
"""Of a step: parts that would be shown as 0.0% say nothing."""
_SHOWN_AS_ZERO_FROM = 0.01
"""Of a step: parts of less are left out if they would be shown as 0.0 ms."""
_UNSPLIT_FROM = 0.01
"""Of a step: from there it is said that waiting is only that of calls that could be split."""
_SAME_LENGTH = 0.02
_MOST_LEFT_OUT = 3
_WORTH_TRYING = 0.01
"""Of a step: changes that gain less, or are about less, are left out."""
_UNSURE = 0.1
"""Of a gain: from there it is said between what it lies."""
_WORTH_NAMING = 0.05
"""Of the exposed waiting, so much is caused by a rank that is named, or by all the others together."""
_LEAST_MS = 0.001
_LONGEST_HOST = 24
_MOST_WARNING_LINES = 3


def overview(analysis: Analysis, screen: Screen = PAPER, run: str | None = None) -> str:
    """The overview in at most 40 lines of 100 columns; fewer rows of each kind if it would be longer.

    `run` names the run in a command to copy: its paths, quoted for a shell; where not given, its name does.
    """
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    lines: list[str] = []
    for most in (4, 3, 2, 1):
        lines = list(_lines(analysis, screen, (width, most), run or for_shell(analysis.run.name)))
        if len(lines) <= _MOST_LINES:
            break
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _lines(analysis: Analysis, screen: Screen, size: tuple[int, int], named: str) -> Iterator[str]:
    width, most = size
    yield from _cut(wrapped(_what(analysis), width), 2)
    yield ""
    hangs = len(analysis.table("hangs")) > 0
    verdict, not_known = first_verdict(analysis.table("verdicts")) or ("Nothing was measured.", "")
    yield from (styled(line, "bold", screen) for line in wrapped(printable(verdict), width))
    yield from wrapped(printable(f"Not known: {not_known}"), width) if not_known else ()
    for title, found in (
        (_step_title(analysis), list(_step(analysis, screen, width))),
        (_who_title(analysis), [] if hangs else list(_who(analysis, width, most))),
        (_try_title(analysis), [] if hangs else list(_try(analysis, width, most))),
        ("Bus bandwidth, where most time is spent", list(_bandwidth(analysis, width, most))),
    ):
        if found:
            yield ""
            yield from (styled(line, "bold", screen) for line in wrapped(title, width))
            yield from found
    yield ""
    yield from _warned(analysis, screen, width, most)
    # On a line of its own and whole, however long: it is there to be copied.
    yield f"More: commtrace summary --all {named}"
    yield from wrapped(
        "has everything, `report` pictures, `table lateness` and `ranks` who was late and why, `bandwidth` every size; "
        "`commtrace table` and `commtrace --help` list the rest.",
        width,
    )


def _what(analysis: Analysis) -> str:
    run = analysis.run
    steps = run.steps
    parts = [
        f"{counted(len(run.ranks), 'rank')}{_of_world(run)}",
        f"{counted(len(steps), 'step')} ({ranges_of(steps)})" if steps else "no steps marked",
        *(", ".join(sorted(set(run.traces[column].dropna()))) for column in ("backend", "device_name")),
    ]
    return printable(f"{run.name}: {', '.join(part for part in parts if part)}")


def _of_world(run: Any) -> str:
    return f" of {run.world_size}" if run.world_size not in (None, len(run.ranks)) else ""


class _Unit(NamedTuple):
    """The unit of all times in a step: us for short steps, as in the verdict."""

    name: str
    ns: float
    decimals: int

    @classmethod
    def of(cls, typical: TypicalStep) -> _Unit:
        """The unit for this step."""
        return cls("us", 1e3, 0) if typical.parts["window_ns"] < 1e6 else cls("ms", 1e6, 1)

    def number(self, ns: float) -> str:
        """The number without its unit."""
        return f"{ns / self.ns:,.{self.decimals}f}"

    def is_zero(self, ns: float) -> bool:
        """Whether it would be shown as 0.0."""
        return not float(self.number(ns).replace(",", ""))

    def between(self, low: float, high: float) -> str:
        """A range in parentheses; empty if both ends look the same."""
        return "" if self.number(low) == self.number(high) else f"{self.number(low)} to {self.number(high)}"


def _step_title(analysis: Analysis) -> str:
    if not len(analysis.table("breakdown")):
        return ""
    typical = analysis.typical_step
    unit = _Unit.of(typical)
    mean_ns, lengths = typical.parts["window_ns"], typical.lengths_ns
    mean = f"{unit.number(mean_ns)} {unit.name}"
    devices = len(analysis.table("breakdown"))
    of_devices = f"mean of {devices} devices" if devices > 1 else ""
    if not lengths:
        return ", ".join(filter(None, (f"The window is {mean}", of_devices)))
    if typical.differ:
        each = listed([unit.number(ns) for ns in lengths])
        all_steps = f"Steps {ranges_of(typical.steps)} take {each} {unit.name}, on average {mean}"
        return ", ".join(filter(None, (all_steps, of_devices)))
    if len(lengths) == 1:
        [row] = records(analysis.table("steps").query("step == @typical.steps[0]"))
        spread = unit.between(row["shortest_ns"], row["longest_ns"]) if devices > 1 else ""
        said = ", ".join(filter(None, (f"step {typical.steps[0]}", of_devices, spread)))
        return f"A step takes {mean} ({said})"
    middle = median(lengths)
    of_middle = f"median {unit.number(middle)}" if abs(middle - mean_ns) > _SAME_LENGTH * mean_ns else ""
    spread = unit.between(min(lengths), max(lengths))
    said = ", ".join(filter(None, (spread, of_middle, of_devices)))
    return f"A step takes {mean} (steps {ranges_of(typical.steps)}{f': {said}' if said else ''})"


def _step(analysis: Analysis, screen: Screen, width: int) -> Iterator[str]:
    if not len(analysis.table("breakdown")):
        return
    typical = analysis.typical_step
    unit, parts = _Unit.of(typical), typical.parts
    mark = "#" if screen.ascii_only else "\u2588"

    def row(name: str, ns: float, indent: int) -> str:
        share = ns / parts["window_ns"] if parts["window_ns"] else 0.0
        says_nothing = share < _SHOWN_FROM or (unit.is_zero(ns) and share < _SHOWN_AS_ZERO_FROM)
        bar = "" if indent > 2 else mark * round(min(_BAR, width - 51) * share)
        line = f"{' ' * indent}{name:<{28 - indent}}{unit.number(ns):>10} {unit.name} {share:>6.1%}  {bar}"
        return "" if says_nothing else line.rstrip()

    for column in sorted(STEP_PARTS, key=lambda column: -parts[column]):
        yield from filter(None, [row(STEP_PARTS[column], parts[column], 2)])
        if column == "idle_ns":
            yield from filter(None, (row(name, ns, 4) for name, ns in idle_rows(analysis.idle_causes)))
    steps = analysis.table("steps")
    for left_out in records(steps[steps["left_out"].notna()].head(_MOST_LEFT_OUT)):
        said = f"Step {left_out['step']} is not counted: {left_out['note']}."
        yield from (f"  {line}" for line in wrapped(said, width - 2))


def _who_title(analysis: Analysis) -> str:
    """The heading, which says if only part of the calls could be split."""
    return f"Who makes the others wait{', in calls that could be split' if _is_partly_split(analysis) else ''}"


def _is_partly_split(analysis: Analysis) -> bool:
    if not len(analysis.table("breakdown")):
        return False
    parts = analysis.typical_step.parts
    return parts["exposed_unsplit_ns"] >= _UNSPLIT_FROM * max(parts["window_ns"], 1)


def _who(analysis: Analysis, width: int, most: int) -> Iterator[str]:
    """Yield who caused the exposed wait of a typical step, how much of it in ms, and why."""
    ranks = analysis.typical_ranks
    shares = shares_of_waiting(ranks, "rank")
    waited_ms = analysis.typical_step.parts["exposed_wait_ns"] / 1e6 if len(analysis.table("breakdown")) else 0.0
    late = shares[shares * waited_ms >= _LEAST_MS].sort_values(ascending=False, kind="stable")
    named = late[late >= _WORTH_NAMING].index[:most].tolist()
    a_step = " a step" if analysis.typical_step.steps else ""
    hosts = set(ranks["host"].dropna())
    for row in sorted(records(ranks[ranks["rank"].isin(named)]), key=lambda row: named.index(row["rank"])):
        host = f" ({_short_host(row['host'])})" if row["host"] and len(hosts) > 1 else ""
        share = shares[row["rank"]]
        doing = on_cpu(analysis.table("late_work"), row["rank"]) if row["because"] == "cpu" else None
        why = f": {_BECAUSE.get(row['because'], row['because'])}" if row["because"] else ""
        why = f": CPU {printable(str(doing))}" if doing is not None else why
        kernel = f" in {shortened_kernel(printable(row['kernel']), 36)}" if row["kernel"] else ""
        caused = f"  rank {row['rank']}{host}: {length(share * waited_ms)}{a_step}, {share:.0%} of the exposed wait"
        if cell_len(caused + why + kernel) <= width:
            yield caused + why + kernel
        else:  # what makes a rank late is not worth the number beside it
            yield caused
            yield shortened(f"    {why.removeprefix(': ')}{kernel}", width)
    rest = late.drop(named)
    if rest.sum() >= _WORTH_NAMING:
        who = counted(len(rest), "more rank" if named else "rank")
        yield f"  {who}: {length(rest.sum() * waited_ms)}{a_step}{' together' if len(rest) > 1 else ''}"


_BECAUSE = {
    "compute": "computes longer",
    "memory": "copies longer",
    "comm": "held up by communication",
    "cpu": "CPU launches late",
    "data": "data loader",
    "start": "begins the traced step later",
}
"""Why a rank is late, for which `ranks` has one word."""


def _short_host(name: str) -> str:
    """The host without its domain; an address stays whole."""
    first = name.partition(".")[0]
    return shortened(printable(name if first.isdigit() else first), _LONGEST_HOST)


def _try_title(analysis: Analysis) -> str:
    priced = analysis.prices is not None
    return "What to try, and what a step would gain" if priced else "What to try, and how much of a step it is about"


def _try(analysis: Analysis, width: int, most: int) -> Iterator[str]:
    """Yield what to try; with unsplit calls, waits may be longer than known, and transfers shorter."""
    table = records(analysis.table("remedies"))
    room, unit, partly = width - 26, _Unit.of(analysis.typical_step), _is_partly_split(analysis)
    if analysis.prices is not None:
        gaining = [row for row in table if (row["gain_frac"] or 0) >= _WORTH_TRYING]
        for row in gaining[:most]:
            number = f"{unit.number(row['gain_ns']):>11} {unit.name}"
            low, high = row["gain_low_ns"], row["gain_high_ns"]
            between = unit.between(low, high) if high - low > _UNSURE * row["gain_ns"] else ""
            what = row["what"] + (f" ({between})" if between else "")
            yield f"  {shortened(what, room):<{room}}{number} {row['gain_frac']:>7.1%}"
        return
    for row in table[:most]:
        if (row["concerned_frac"] or 0) >= _WORTH_TRYING:
            bound = _BOUNDS.get(row["remedy"], "") if partly else ""
            what = f"{shortened(row['what'], room - len(bound))}{bound}"
            number = f"{unit.number(row['concerned_ns']):>11} {unit.name}"
            yield f"  {what:<{room}}{number} {row['concerned_frac']:>7.1%}"


_BOUNDS = {
    "no_straggler": ", at least",
    "no_bubble": ", at least",
    "no_jitter": ", at least",
    "overlap": ", at most",
    "faster_links": ", at least",
}
"""What the time of a remedy is where some of the communication could not be split."""


def _bandwidth(analysis: Analysis, width: int, most: int) -> Iterator[str]:
    """Yield bandwidth by collective and size; groups of as many ranks together."""
    alike: dict[tuple[str, int, int], list[Row]] = {}
    name = "bandwidth" if analysis.ceiling is None else "bandwidth_ceiling"
    for row in records(analysis.table(name)):
        if row["busbw_gb_per_s"] is not None:
            key = row["collective"], row["size_bytes"] or 0, len((row["pg_ranks"] or "").split())
            alike.setdefault(key, []).append(row)
    longest = sorted(alike, key=lambda key: -sum(row["calls"] * (row["time_us_median"] or 0) for row in alike[key]))
    for collective, size, ranks in longest[:most]:
        rows = alike[collective, size, ranks]
        calls = counted(sum(row["calls"] for row in rows), "call")
        several = f" in {len(rows)} groups" if len(rows) > 1 else ""
        what = f"  {collective} of {size:,} bytes{f', {ranks} ranks' if ranks else ''}, {calls}{several}"
        reached = [row["of_ceiling_frac"] for row in rows if row.get("of_ceiling_frac") is not None]
        of = f", {min(reached):.0%} of the ceiling" if reached else ""
        rate = f"{_between([row['busbw_gb_per_s'] for row in rows])} GB/s{of}"
        room = width - cell_len(rate) - 1
        yield f"{shortened(what, room):<{room}} {rate}"


def _between(values: list[float]) -> str:
    low, high = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _warned(analysis: Analysis, screen: Screen, width: int, most: int) -> Iterator[str]:
    """Yield whole warnings while there is room, and the number of the others."""
    warnings = analysis.warnings
    if not warnings:
        return
    texts = [wrapped(printable(warning), width - 9) for warning in warnings]
    shown = [lines for lines in texts if len(lines) <= _MOST_WARNING_LINES][: max(most - 1, 1)]
    for lines in shown:
        for number, line in enumerate(lines):
            yield f"{'       ' if number else styled('warning', 'red', screen)}  {line}"
    if len(texts) > len(shown):
        rest = counted(len(texts) - len(shown), f"{'more ' if shown else ''}warning")
        yield f"         {'and ' if shown else ''}{rest}, which `summary --all` shows"
    yield ""


def _cut(lines: list[str], most: int) -> list[str]:
    """At most `most` lines; the last one says that there are more."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1].rstrip(' .,;')} ..."]
