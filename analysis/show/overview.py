"""A run on one screen of a terminal: headline, what a step is made of, who is late and why, what to try, bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len

from ...common.markup import code_for_markdown
from ...common.wording import counted, listed, ranges_of
from ..core.escaping import for_shell, printable
from ..core.schema import records
from ..core.tables.lateness import REASONS
from ..metrics.causes.blame import as_late, shares_of_waiting
from ..metrics.verdicts.doing import instead_of_computing, on_cpu
from ..metrics.verdicts.words import a_step, doing, length, nearly_as_late
from ..render.fitting import shortened, shortened_kernel
from ..render.people import escaped, styled, wrapped
from ..render.screen import PAPER, Screen
from ..render.units import TimeUnit
from ..results.analysis import Analysis
from .first_screen import FirstScreen, StepShare, first_screen
from .step_kinds import not_counted

if TYPE_CHECKING:
    import pandas as pd

_WIDEST, _WIDEST_TEXT, _NARROWEST, _MOST_LINES = 200, 120, 60, 32
_USUAL = 100
"""Columns where the terminal is not known. Rows with a number at their end are no wider."""
_LEAST_HOW = 32
"""Columns beside a change for where to begin."""
_MOST_ROWS, _SENTENCE_LINES = 4, 2
"""Of each kind of row so many are shown at most; and as many more lines of sentences as rows."""
_MORE_TO_TRY = 2
"""So many more rows has what to try, which a reader needs before whatever else there are rows of."""
_BAR = 24
_SHOWN_FROM = 0.0005
"""Of a step: parts that would be shown as 0.0% say nothing."""
_SHOWN_AS_ZERO_FROM = 0.01
"""Of a step: parts of less are left out if they would be shown as 0.0 ms."""
_UNSPLIT_FROM = 0.01
"""Of a step: from there it is said that waiting is only that of calls that could be split."""
_SAME_LENGTH = 0.02
_MOST_LEFT_OUT = 3
_UNSURE = 0.1
"""Of a gain: from there it is said between what it lies."""
_WORTH_NAMING = 0.05
"""Of the exposed waiting, so much is caused by a rank that is named, or by all the others together."""
_LEAST_MS = 0.001
_LONGEST_HOST, _LEAST_KERNEL = 24, 36
"""Letters of a name: of a host at most, of a kernel at least, or it gets a line of its own."""
_MOST_WARNING_LINES = 3


def overview(analysis: Analysis, screen: Screen = PAPER, run: str | None = None) -> str:
    """The overview in some 30 lines of at most 100 columns; fewer rows of each kind if it would be longer.

    `run` names the run in a command to copy: its paths, quoted for a shell; where not given, its name does.
    """
    width = max(min(screen.width or _USUAL, _WIDEST), _NARROWEST)
    text_width = min(width, _WIDEST_TEXT)
    named, first = run or for_shell(analysis.run.name), first_screen(analysis)
    sentences = first.why.count(". ") + 1
    # As many as are short on a wide terminal are always said: what is least must not depend on the width either.
    least = max(
        count
        for count in range(1, sentences + 1)
        if count == 1 or len(_sentences(first.why, count, _USUAL)) <= _SENTENCE_LINES + 1
    )
    lines: list[str] = []
    for rows, count in _amounts(least, sentences):
        said = _sentences(first.why, count, text_width)
        if count > least and len(said) > _SENTENCE_LINES + rows:
            continue
        lines = list(_lines(analysis, first, said, screen, (width, rows), named))
        if len(lines) <= _MOST_LINES:
            break
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _amounts(least: int, sentences: int) -> list[tuple[int, int]]:
    """How many rows of each kind, and sentences, to show: as much as there is, then less and less of both in turn.

    None has more of one and less of the other than the next, or a wider terminal would show less of something.
    """
    rows, count = 1, least
    amounts = [(rows, count)]
    while rows < _MOST_ROWS or count < sentences:
        if count < sentences and (count <= rows or rows == _MOST_ROWS):
            count += 1
        else:
            rows += 1
        amounts.append((rows, count))
    return amounts[::-1]


def first_look(analysis: Analysis, files: int, screen: Screen = PAPER) -> str:
    """What a step is made of by some of a run's ranks, to look at while all `files` are read.

    Nothing is said of who waits for whom: most of a collective's ranks are missing.
    """
    width = max(min(screen.width or _USUAL, _WIDEST_TEXT), _NARROWEST)
    first = first_screen(analysis)
    lines = [f"First look, at {counted(len(analysis.run.ranks), 'rank')}:", f"{first.headline}.", ""]
    lines += [_step_title(analysis), *_step(analysis, first, screen, width), ""]
    lines += [f"Reading all {files:,} files, to tell who waits for whom ...", ""]
    return "".join(f"{part.rstrip()}\n" for line in lines for part in wrapped(line, width) or [""])


def brief(analysis: Analysis, run: str | None = None) -> str:
    """A paragraph and a small table in markdown, to paste into a chat or a pull request.

    `run` names the run in a command to copy, as in `overview`.
    """
    first = first_screen(analysis)
    said = [f"**{escaped(_headline(first))}**", escaped(first.why)]
    if first.remedies and first.remedies[0].gain_ns is not None:
        best = first.remedies[0]
        between = first.unit.between(best.low_ns or 0, best.high_ns or 0)
        gain = f"{first.unit.text(best.gain_ns or 0)}{f' ({between})' if between else ''}"
        said.append(escaped(f"To try first: {best.what}, by which a step would gain {gain}."))
    if first.not_known:
        said.append(escaped(f"Not known: {first.not_known}"))
    said += [escaped(first.memory)] if first.memory else []
    said += map(escaped, not_counted(analysis.table("steps"), _MOST_LEFT_OUT))
    rows = [
        f"| {escaped(part.name)} | {first.unit.number(part.ns)} | {part.frac:.1%} |"
        for part in sorted(first.parts, key=lambda part: -part.ns)
        if part.frac >= _SHOWN_FROM
    ]
    whole = "step" if analysis.run.steps else "window"
    table = [f"| {whole} | {first.unit.name} | share |", "|---|---:|---:|", *rows] if rows else []
    about = escaped(f"{first.name}: {', '.join(first.facts)}")
    command = code_for_markdown(f"commtrace {run or for_shell(analysis.run.name)}")
    return "\n".join([" ".join(filter(None, said)), "", *table, *([""] if table else []), f"{about}; {command}", ""])


def _lines(
    analysis: Analysis, first: FirstScreen, said: list[str], screen: Screen, size: tuple[int, int], named: str
) -> Iterator[str]:
    whole_width, most = size
    width = min(whole_width, _WIDEST_TEXT)
    yield from _cut(wrapped(f"{first.name}: {', '.join(first.facts)}", width), 2)
    yield ""
    yield from (styled(line, "bold", screen) for line in wrapped(_headline(first), width))
    yield from said
    yield from wrapped(f"Not known: {first.not_known}", width) if first.not_known else ()
    yield from wrapped(first.memory, width) if first.memory else ()
    hangs = len(analysis.table("hangs")) > 0
    for title, found in (
        (_step_title(analysis), list(_step(analysis, first, screen, width))),
        (_try_title(analysis, first), list(_try(analysis, first, whole_width, min(most + _MORE_TO_TRY, _MOST_ROWS)))),
        (_who_title(analysis), [] if hangs else list(_who(analysis, first, whole_width, most))),
        ("Bus bandwidth, where most time is spent", list(_bandwidth(first, width, most))),
    ):
        if found:
            yield ""
            yield from (styled(line, "bold", screen) for line in wrapped(title, width))
            yield from found
    yield ""
    yield from _warned(analysis, screen, width, most)
    # On a line of its own and whole, however long: it is there to be copied.
    yield f"Everything: commtrace summary --all {named}"
    yield f"Pictures:   commtrace report {named}"


def _headline(first: FirstScreen) -> str:
    """`Waiting for rank 1 takes 7.4 ms of every 42.0 ms step (skew-bound).`"""
    return f"{first.headline}{f' ({first.verdict})' if first.verdict else ''}."


def _step_title(analysis: Analysis) -> str:
    if not len(analysis.table("breakdown")):
        return ""
    typical = analysis.typical_step
    unit = TimeUnit.of(typical.parts["window_ns"])
    mean_ns, lengths = typical.parts["window_ns"], typical.lengths_ns
    mean = unit.text(mean_ns)
    table = analysis.table("steps")
    counted_steps = table[table["left_out"].isna()]
    devices = int(counted_steps["devices"].max()) if lengths else len(analysis.table("breakdown"))
    of_devices = f"mean of {devices} devices" if devices > 1 else ""
    if not lengths:
        return ", ".join(filter(None, (f"The window is {mean}", of_devices)))
    if typical.period is not None:
        period = typical.period.steps
        periods = counted(len(lengths) // period, "period")
        said = f"{periods} of {period} steps, {ranges_of(typical.steps)}: {_of_period(counted_steps, unit)}"
        return f"A step takes {mean} on average ({', '.join(filter(None, (said, of_devices)))})"
    if typical.differ:
        each = listed([unit.number(ns) for ns in lengths])
        all_steps = f"Steps {ranges_of(typical.steps)} take {each} {unit.name}, on average {mean}"
        return ", ".join(filter(None, (all_steps, of_devices)))
    step = printable(a_step(typical.kind))
    if len(lengths) == 1:
        [row] = records(table.query("step == @typical.steps[0]"))
        spread = unit.between(row["shortest_ns"], row["longest_ns"]) if devices > 1 else ""
        said = ", ".join(filter(None, (f"step {typical.steps[0]}", of_devices, spread)))
        return f"{step} takes {mean} ({said})"
    middle = median(lengths)
    of_middle = f"median {unit.number(middle)}" if abs(middle - mean_ns) > _SAME_LENGTH * mean_ns else ""
    spread = unit.between(min(lengths), max(lengths))
    said = ", ".join(filter(None, (spread, of_middle, of_devices)))
    return f"{step} takes {mean} (steps {ranges_of(typical.steps)}{f': {said}' if said else ''})"


def _of_period(steps: pd.DataFrame, unit: TimeUnit) -> str:
    """`long ones 36.0, others 2.3 to 2.5`."""
    is_long = steps["is_long"].astype(bool)
    long, others = (steps["window_ns"][chosen] for chosen in (is_long, ~is_long))
    return ", ".join(f"{who} {_between(ns, unit)}" for who, ns in (("long ones", long), ("others", others)))


def _between(lengths: pd.Series[int], unit: TimeUnit) -> str:
    return unit.between(lengths.min(), lengths.max()) or unit.number(lengths.min())


def _step(analysis: Analysis, first: FirstScreen, screen: Screen, width: int) -> Iterator[str]:
    unit = first.unit
    mark = "#" if screen.ascii_only else "\u2588"

    def row(part: StepShare, indent: int) -> str:
        says_nothing = part.frac < _SHOWN_FROM or (unit.is_zero(part.ns) and part.frac < _SHOWN_AS_ZERO_FROM)
        bar = "" if indent > 2 else mark * round(min(_BAR if width <= _USUAL else 2 * _BAR, width - 51) * part.frac)
        line = f"{' ' * indent}{part.name:<{28 - indent}}{unit.number(part.ns):>10} {unit.name} {part.frac:>6.1%}  "
        return "" if says_nothing else f"{line}{styled(bar, COLOURS[part.column], screen)}".rstrip()

    for part in sorted(first.parts, key=lambda part: -part.ns):
        yield from filter(None, [row(part, 2)])
        if part.column == "idle_ns":
            yield from filter(None, (row(cause, 4) for cause in first.idle))
    if not first.parts:
        return
    if first.mfu is not None:
        yield from (f"  {line}" for line in wrapped(first.mfu.said, width - 2))
    if first.hiding:
        yield from (f"  {line}" for line in wrapped(first.hiding, width - 2))
    steps = analysis.table("steps")
    for said in not_counted(steps, _MOST_LEFT_OUT):
        yield from (f"  {line}" for line in wrapped(said, width - 2))


COLOURS = {
    "compute_alone_ns": "blue",
    "overlap_ns": "bright_blue",
    "exposed_transfer_ns": "yellow",
    "exposed_wait_ns": "red",
    "exposed_unsplit_ns": "yellow",
    "exposed_memory_ns": "magenta",
    "idle_ns": "bright_black",
}
"""Colours of a terminal, as near as there are to those of the page."""


def _who_title(analysis: Analysis) -> str:
    """The heading, which says if only part of the calls could be split."""
    return f"Who makes the others wait{', in calls that could be split' if _is_partly_split(analysis) else ''}"


def _is_partly_split(analysis: Analysis) -> bool:
    if not len(analysis.table("breakdown")):
        return False
    parts = analysis.typical_step.parts
    return parts["exposed_unsplit_ns"] >= _UNSPLIT_FROM * max(parts["window_ns"], 1)


def _who(analysis: Analysis, first: FirstScreen, width: int, most: int) -> Iterator[str]:
    """Yield who caused the exposed wait of a typical step, how much of it in ms, and why; not what a headline says."""
    waiting = analysis.typical_waiting
    ranks = waiting.ranks
    shares = shares_of_waiting(ranks, "rank")
    waited_ms = analysis.typical_step.parts["exposed_wait_ns"] / 1e6 if len(analysis.table("breakdown")) else 0.0
    late = shares[shares * waited_ms >= _LEAST_MS].sort_values(ascending=False, kind="stable")
    named = late[late >= _WORTH_NAMING].index[:most].tolist()
    if (
        len(named) == 1
        and first.headline_ranks == tuple(named)
        and first.verdict != "event-bound"  # that is not of a typical step
        and late.sum() - late[named[0]] < _WORTH_NAMING
    ):
        return
    a_step = " a step" if analysis.typical_step.steps else ""
    as_late_as_one = sorted(as_late(waiting.participation, named)) if len(named) == 1 else []
    hosts = set(ranks["host"].dropna())
    for row in sorted(records(ranks[ranks["rank"].isin(named)]), key=lambda row: named.index(row["rank"])):
        host = f" ({_short_host(row['host'])})" if row["host"] and len(hosts) > 1 else ""
        share = float(shares.reindex([row["rank"], *as_late_as_one]).sum())
        does = on_cpu(analysis.table("late_work"), row["rank"]) if row["because"] == "cpu" else None
        why = f": {REASONS.get(row['because'], row['because'])}" if row["because"] else ""
        why = f": CPU {printable(doing(does))}" if does is not None else why
        if row["because"] == "compute" and instead_of_computing(analysis.table("late_work"), row["rank"]) is not None:
            why = ": its operators take longer"
        alike = nearly_as_late(as_late_as_one)
        who = f"rank {row['rank']}{host}{f' and {alike}' if alike else ''}"
        caused = f"  {who}: {length(share * waited_ms)}{a_step}, {share:.0%} of the exposed wait"
        kernel = printable(row["kernel"]) if row["kernel"] else ""
        room = max(width - cell_len(caused + why) - 4, _LEAST_KERNEL)
        beside = f"{why} in {shortened_kernel(kernel, room)}" if kernel else why
        if cell_len(caused + beside) <= width:
            yield caused + beside
        else:  # what makes a rank late is not worth the number beside it
            yield from (f"  {line}" for line in wrapped(caused.strip(), width - 2))
            room = max(width - cell_len(why) - 6, _LEAST_KERNEL)
            below = f"{why} in {shortened_kernel(kernel, room)}" if kernel else why
            yield shortened(f"    {below.removeprefix(': ')}", width)
    rest = late.drop([*named, *(rank for rank in as_late_as_one if rank in late)])
    if rest.sum() >= _WORTH_NAMING:
        who = counted(len(rest), "more rank" if named else "rank")
        yield f"  {who}: {length(rest.sum() * waited_ms)}{a_step}{' together' if len(rest) > 1 else ''}"


def _short_host(name: str) -> str:
    """The host without its domain; an address stays whole."""
    first = name.partition(".")[0]
    return shortened(printable(name if first.isdigit() else first), _LONGEST_HOST)


def _try_title(analysis: Analysis, first: FirstScreen) -> str:
    if not first.is_priced:
        return "What to try, and how much of a step it is about"
    played = analysis.part_note
    return f"What to try, and what a step would gain{f' ({played})' if played else ''}"


def _try(analysis: Analysis, first: FirstScreen, width: int, most: int) -> Iterator[str]:
    """Yield what to try; with unsplit calls, waits may be longer than known, and transfers shorter."""
    if first.nothing_to_gain:
        yield f"  {shortened(first.nothing_to_gain, width - 2)}"
    unit = first.unit
    partly = bool(first.parts) and _is_partly_split(analysis)
    for remedy in first.remedies[:most]:
        if remedy.gain_ns is not None:
            low, high = remedy.low_ns or 0, remedy.high_ns or 0
            between = unit.between(low, high) if high - low > _UNSURE * remedy.gain_ns else ""
            at_most = ", at most" if remedy.is_bound else ""
            said, ns, frac = f"{at_most}{f' ({between})' if between else ''}", remedy.gain_ns, remedy.gain_frac
        else:
            bound = _BOUNDS.get(remedy.name, "") if partly else ""
            said, ns, frac = bound, remedy.concerned_ns or 0, remedy.concerned_frac
        amount = f"{unit.number(ns)} {unit.name} {frac or 0:>7.1%}"
        room = min(width, _USUAL) - cell_len(amount) - 6
        what = f"{shortened(remedy.what, room - cell_len(said))}{said}"
        beside = width - _USUAL - 2
        how = f"  {_without_end(remedy.how, beside)}" if beside >= _LEAST_HOW else ""
        yield f"  {what}{' ' * (room - cell_len(what))}  {amount}{how}".rstrip()


def _without_end(text: str, width: int) -> str:
    """The text without its last words if it is too wide."""
    return _cut(wrapped(text, width - 4), 1)[0] if cell_len(text) > width else text


_BOUNDS = {
    "no_straggler": ", at least",
    "no_bubble": ", at least",
    "no_jitter": ", at least",
    "overlap": ", at most",
    "faster_links": ", at least",
}
"""What the time of a remedy is where some of the communication could not be split."""


def _bandwidth(first: FirstScreen, width: int, most: int) -> Iterator[str]:
    """Yield bandwidth by collective and size; groups of as many ranks together."""
    for rate in first.rates[:most]:
        several = f" in {rate.groups} groups" if rate.groups > 1 else ""
        ranks = f", {rate.ranks} ranks" if rate.ranks else ""
        what = f"  {rate.what}{ranks}, {counted(rate.calls, 'call')}{several}"
        speed = ", ".join(filter(None, (" ".join(rate.amount), rate.beside, rate.others)))
        room = min(width, _USUAL) - cell_len(speed) - 1
        yield f"{shortened(what, room):<{room}} {speed}"


def _warned(analysis: Analysis, screen: Screen, width: int, most: int) -> Iterator[str]:
    """Yield whole warnings while there is room, and the number of the others."""
    warnings = analysis.warnings
    if not warnings:
        return
    texts = [printable(warning) for warning in warnings]
    # How long one is does not depend on the terminal: a wider one would show another instead.
    short = [text for text in texts if len(wrapped(text, _USUAL - 9)) <= _MOST_WARNING_LINES]
    shown = short[: max(most - 1, 1)]
    for text in shown:
        for number, line in enumerate(wrapped(text, width - 9)):
            yield f"{'       ' if number else styled('warning', 'red', screen)}  {line}"
    if len(texts) > len(shown):
        rest = counted(len(texts) - len(shown), f"{'more ' if shown else ''}warning")
        yield f"         {'and ' if shown else ''}{rest}, which `summary --all` shows"
    yield ""


def _sentences(text: str, count: int, width: int) -> list[str]:
    """The first so many sentences, in lines."""
    return wrapped(". ".join(text.split(". ")[:count]).rstrip(".") + ".", width) if text else []


def _cut(lines: list[str], most: int) -> list[str]:
    """At most `most` lines; the last one says that there are more."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1].rstrip(' .,;')} ..."]
