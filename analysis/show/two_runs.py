"""Two sides on one screen of a terminal: headline, a step of each as a bar, what really differs, how sure that is.

Also the same as Markdown for a pull request, as JSON, and with every table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len

from ...common.markup import code_for_markdown
from ...common.wording import counted, listed, ranges_of
from ..catalog import CATALOG
from ..comparison.analysis import Comparison
from ..comparison.causes import signed
from ..core.escaping import for_shell, printable
from ..core.schema import Row, records
from ..errors import NothingMeasured
from ..metrics.typical_step import STEP_PARTS
from ..render import as_markdown, as_text
from ..render.people import escaped, styled, wrapped
from ..render.screen import PAPER, Screen
from ..render.units import TimeUnit
from .comparison import (
    MOST_NOTES,
    decision_fields,
    differences_of_settings,
    explanation,
    for_people,
    headline,
    notes_once,
    sides,
)
from .overview import COLOURS

_TABLES = ("comparison", "changed_causes", "changed_kernels", "changed_operators")
_WIDEST, _NARROWEST = 120, 60
_MOST_ROWS = 10
_MARKS = {
    "compute_alone_ns": ("\u2588", "#"),
    "overlap_ns": ("\u2593", "="),
    "exposed_transfer_ns": ("\u2592", "+"),
    "exposed_wait_ns": ("\u2591", "-"),
    "exposed_unsplit_ns": ("\u2584", "~"),
    "exposed_memory_ns": ("\u259a", "%"),
    "idle_ns": ("\u00b7", "."),
}
"""What parts of a step are drawn with: they are told apart without colours; and where only ASCII can be shown."""
_PRICED = "What costs more or less in a step"
_SHOWN = "Where the time of a step shows"
_OVERLAP = "Each alone, from replaying both runs. They overlap: do not add them."
_LEAST_CELL = 0.5
"""What takes less of a cell is not drawn: it would be a cell, or none, by chance."""
_MOSTLY = 0.5
"""Of what kernels take longer: the operator and shapes that have as much are named."""


def two_runs(comparison: Comparison, screen: Screen = PAPER, command: str | None = None) -> str:
    """The comparison in some 25 lines.

    `command` names both sides in a command to copy; where not given, the names of the runs do.
    """
    named = command or _named(comparison)
    # On a line of its own and whole, however long: it is there to be copied.
    commands = f"Everything: commtrace compare --all {named}\nPage:       commtrace compare -o compare.html {named}\n"
    return f"{_said(comparison, screen)}\n{commands}"


def _said(comparison: Comparison, screen: Screen) -> str:
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    return "".join(f"{line.rstrip()}\n" for line in _lines(comparison, screen, width))


def _lines(comparison: Comparison, screen: Screen, width: int) -> Iterator[str]:
    for name, about in sides(comparison):
        yield from beside(f"{name}  ", about, width)
    yield ""
    yield from (styled(line, "bold", screen) for line in wrapped(f"{headline(comparison)}.", width))
    said = " ".join(explanation(comparison))
    yield from wrapped(said, width) if said else ()
    if comparison.change is not None:
        yield from _bars(comparison, screen, width)
        yield from _rows(comparison, screen, width)
    yield ""
    for number, text in enumerate(comparison.decision.statements):
        yield from beside("          " if number else "Rests on  ", text, width)
    yield from (line for text in differences_of_settings(comparison) for line in beside("Differs   ", text, width))
    every = notes_once(comparison)
    shown = every if screen.everything else every[:MOST_NOTES]
    for text in shown:
        yield from beside("Note      ", text, width)
    if len(every) > len(shown):
        yield f"          and {counted(len(every) - len(shown), 'more note')}, which --all shows"


def beside(label: str, text: str, width: int) -> Iterator[str]:
    """Yield the text beside its label."""
    for number, line in enumerate(wrapped(text, width - len(label))):
        yield f"{' ' * len(label) if number else label}{line}"


def _named(comparison: Comparison) -> str:
    a, b = (" ".join(for_shell(one.run.name) for one in side) for side in (comparison.a, comparison.b))
    return f"{a} --against {b}" if comparison.separate else f"{a} {b}"


def _bars(comparison: Comparison, screen: Screen, width: int) -> Iterator[str]:
    """Yield a step of each side on one scale, and what its parts take."""
    rows = records(comparison.typical_steps)
    both = [{part: int(row[part]) for part in STEP_PARTS} for row in rows]
    lengths = [row["step_ns"] for row in rows]
    unit = TimeUnit.of(max(lengths))
    texts = [unit.text(ns) for ns in lengths]
    wide = max(map(len, texts))
    cell_ns = max(*lengths, 1) / (width - wide - 7)
    yield ""
    yield styled(_of_bars(comparison), "bold", screen)
    for name, parts, text in zip("AB", both, texts, strict=True):
        yield f"  {name}  {text:>{wide}}  {bar_of(parts, cell_ns, screen)}"
    yield from legend_of(both, cell_ns, unit, screen, width)


def _of_bars(comparison: Comparison) -> str:
    """What the bars are: `A traced step: mean of steps 2-4 of A and of B`, or the window of runs without steps."""
    steps = [[one.typical_step.steps for one in side] for side in (comparison.a, comparison.b)]
    if not all(each for side in steps for each in side):
        return "The window"
    if max(map(len, steps)) > 1:
        return "A traced step: mean over captures and steps"
    (of_a,), (of_b,) = steps
    what = "mean of steps" if max(len(of_a), len(of_b)) > 1 else "step"
    named = "A and of B" if of_a == of_b else f"A and {ranges_of(of_b)} of B"
    return f"A traced step: {what} {ranges_of(of_a)} of {named}"


def bar_of(parts: Mapping[str, int], cell_ns: float, screen: Screen) -> str:
    """A step as a bar of its parts, which are STEP_PARTS; what has less than half a cell is the next one's."""
    bar, cells, ends_ns = "", 0, 0
    for part in STEP_PARTS:
        ends_ns += parts[part]
        if parts[part] < _LEAST_CELL * cell_ns:
            continue
        mark = _MARKS[part][screen.ascii_only] * (round(ends_ns / cell_ns) - cells)
        cells += len(mark)
        bar += styled(mark, COLOURS[part], screen) if mark else ""
    return bar


def legend_of(
    steps: Sequence[Mapping[str, int]], cell_ns: float, unit: TimeUnit, screen: Screen, width: int
) -> Iterator[str]:
    """Yield what the marks mean, and how much each part takes first and last, or at least and at most.

    Parts that no step has are left out. What is drawn is not called 0, however coarse the unit.
    """
    line, used, unit = "", 0, unit.as_fine_as(_LEAST_CELL * cell_ns)
    for part, name in STEP_PARTS.items():
        if all(unit.is_zero(parts[part]) for parts in steps):
            continue
        amount = _amounts([parts[part] for parts in steps], unit, screen)
        entry = f"{_MARKS[part][screen.ascii_only]} {name} {amount}"
        if line and used + cell_len(entry) + 3 > width - 2 - len(unit.name) - 1:
            yield f"  {line}"
            line, used = "", 0
        used += cell_len(entry) + (3 if line else 0)
        mark = styled(entry[0], COLOURS[part], screen)
        line += f"{'   ' if line else ''}{mark}{entry[1:]}"
    if line:
        yield f"  {line} {unit.name}"


def _amounts(times_ns: Sequence[int], unit: TimeUnit, screen: Screen) -> str:
    """`2.6 \u2192 3.0`, first and last; `0 to 0.8` where one between is less or more; once if all are the same."""
    texts = ["0" if unit.is_zero(ns) else unit.number(ns) for ns in times_ns]
    least, most = (texts[times_ns.index(end(times_ns))] for end in (min, max))
    if least == most:
        return least
    arrow = "->" if screen.ascii_only else "\u2192"
    return f"{texts[0]} {arrow} {texts[-1]}" if {texts[0], texts[-1]} == {least, most} else f"{least} to {most}"


def _rows(comparison: Comparison, screen: Screen, width: int) -> Iterator[str]:
    """Yield what really differs, how much, and between what that lies."""
    rows = records(comparison.what_differs)
    if not rows or comparison.change is None:
        return
    unit = comparison.change.unit
    amounts = [signed(row["difference_ns"], unit) for row in rows]
    intervals = [between(row, unit) for row in rows]
    wide = max(map(len, amounts))
    room = width - wide - max(map(len, intervals)) - 6
    yield ""
    yield styled(_PRICED if _is_priced(comparison) else _SHOWN, "bold", screen)
    for row, amount, ends in zip(rows, amounts, intervals, strict=True):
        first, *rest = wrapped(row["cause"], room - 2)
        yield f"  {first}{' ' * (room - cell_len(first))}{amount:>{wide}}  {ends}"
        yield from (f"    {line}" for line in rest)
        if shape := _largest_shape(comparison, row):
            yield from (f"    {line}" for line in wrapped(shape, width - 4))
    if _is_priced(comparison) and len(rows) > 1:
        yield from (f"  {line}" for line in wrapped(_OVERLAP, width - 2))


def _largest_shape(comparison: Comparison, row: Row) -> str | None:
    """`mostly aten::mm of 4096x512 512x4096, bfloat16`: the operator by its shapes that has half of such a change."""
    operators = comparison.operators_behind(row["cause"])
    if not operators or comparison.change is None:
        return None
    try:
        shapes = [each for each in records(comparison.changed_shapes) if each["operator"] in operators]
    except NothingMeasured:
        return None
    first, ns = next(iter(shapes), None), row["difference_ns"]
    if first is None or not first["inputs"] or first["difference_ns"] * ns < _MOSTLY * ns**2:
        return None
    types = f", {first['dtype']}" if first["dtype"] else ""
    if not first["a_ns"] or not first["b_ns"]:
        types += f", which {comparison.names.b if first['a_ns'] else comparison.names.a} does not have"
    what = f"{printable(first['operator'])} of {printable(first['inputs'])}{types}"
    return f"mostly {what}: {signed(first['difference_ns'], comparison.change.unit)}"


def _is_priced(comparison: Comparison) -> bool:
    """Whether what really differs are prices, not parts of a step."""
    change = comparison.change
    return change is not None and not any(part.bounds_ns is None for part in change.parts)


def between(row: Row, unit: TimeUnit) -> str:
    """`+1.0 to +3.9`; `+391 to +395 us` where both would look the same; empty where that is not known."""
    low, high = row["difference_low_ns"], row["difference_high_ns"]
    if low is None or high is None:
        return ""
    shown = unit.for_amount(row["difference_ns"])
    alike = shown.number(low) == shown.number(high)
    exact = TimeUnit.of(0) if alike else shown
    ends = " to ".join(
        f"{'-' if end < 0 and not exact.is_zero(end) else '+'}{exact.number(abs(end))}" for end in (low, high)
    )
    return f"{ends} {exact.name}" if exact != shown else ends


def in_brief(comparison: Comparison, command: str | None = None) -> str:
    """A headline, a table of at most five rows and what it rests on in Markdown, to paste into a pull request."""
    lines = [f"**{escaped(headline(comparison))}.** {escaped(' '.join(explanation(comparison)))}".rstrip(), ""]
    rows = records(comparison.what_differs)
    if rows and comparison.change is not None:
        unit = comparison.change.unit
        what = _PRICED if _is_priced(comparison) else _SHOWN
        lines += [f"| {what} | change | between |", "|---|---:|---:|"]
        lines += [
            f"| {escaped(row['cause'])} | {signed(row['difference_ns'], unit)} | {between(row, unit) or '-'} |"
            for row in rows
        ]
        lines.append("")
    lines += [escaped(f"{name}: {about}") + "  " for name, about in sides(comparison)]
    settings = differences_of_settings(comparison)
    said = [*comparison.decision.statements, *(f"Differs: {listed(settings)}." for _ in settings[:1])]
    said += [f"Note: {note}." for note in notes_once(comparison)[:MOST_NOTES]]
    lines += [escaped(" ".join(said)), "", code_for_markdown(f"commtrace compare {command or _named(comparison)}"), ""]
    return "\n".join(lines)


def report(
    comparison: Comparison,
    output_format: str,
    *,
    top: int = _MOST_ROWS,
    screen: Screen = PAPER,
    command: str | None = None,
    limit_frac: float | None = None,
) -> str:
    """The comparison and its tables; for people, only the `top` kernels and operators.

    `limit_frac` is the most that steps of B may take longer, for the decision in JSON.
    """
    tables = {name: getattr(comparison, name) for name in _TABLES if name not in comparison.not_known}
    if output_format == "json":
        content: Row = {"table": "compare", **decision_fields(comparison, limit_frac)}
        content |= {
            "a": [one.run.name for one in comparison.a],
            "b": [one.run.name for one in comparison.b],
            "differs": differences_of_settings(comparison),
            "notes": notes_once(comparison),
        }
        return json.dumps(content | {name: records(table) for name, table in tables.items()}, indent=1) + "\n"
    if comparison.on_cpu:  # there an operator is its own kernel
        tables.pop("changed_operators", None)
    markdown = output_format == "markdown"
    parts = [in_brief(comparison, command) if markdown else _said(comparison, replace(screen, everything=True))]
    for name, table in tables.items():
        if not len(table):
            continue
        shown = for_people(table if name == "comparison" else table.head(top))
        title = CATALOG[name].title or name
        text = as_markdown(name, shown) if markdown else as_text(name, shown, screen)
        parts.append(f"### {title}\n\n{text}" if markdown else f"{styled(title, 'bold', screen)}\n\n{text}")
        if len(table) > len(shown):
            parts.append(f"{counted(len(table) - len(shown), 'more row')}: use --top, or --by.\n")
    return "\n".join(parts)
