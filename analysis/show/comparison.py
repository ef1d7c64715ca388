"""A comparison as a report, in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...common.wording import counted
from ...contract.reading import lenient
from ...contract.run import RunFile
from ..catalog import CATALOG
from ..comparison.analysis import Comparison
from ..comparison.significance import LEVEL, STEPS_NEEDED
from ..core.escaping import printable
from ..core.schema import PlainTable, Row, plain, records
from ..render import Table, as_markdown, as_text
from ..render.people import escaped, fact_lines, styled
from ..render.plots.paired import measure_name
from ..render.screen import PAPER, Screen

_SAID_AS_EQUAL = 0.0005
_TABLES = ("comparison", "changed_causes", "changed_kernels", "changed_operators")


def headline(comparison: Comparison) -> str:
    """How much longer steps of B take, in a few words, and whether that is known."""
    step = comparison.step
    change = step["change_frac"]
    if change is None:
        return "Steps of A and B cannot be compared"
    steps = comparison.of_kind.capitalize()
    said = f"{steps} of B are as long as those of A"
    if abs(change) >= _SAID_AS_EQUAL:
        said = f"{steps} of B take {abs(change):.1%} {'longer' if change > 0 else 'less time'} than those of A"
    if step["significant"] is None:
        return f"{said}, but there are too few to be sure"
    return said if step["significant"] else f"{said}, which may be chance"


def explanation(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on the headline: how sure it is, what changed by more than chance, and what is behind it."""
    step, *others = records(comparison.comparison)
    if step["change_frac"] is None:
        yield _sentence(comparison.verdict)
    elif step["significant"] is None:
        of_a, of_b = counted(step["steps_a"], "step"), step["steps_b"]
        yield f"A has {of_a}, B has {of_b}; each side needs {STEPS_NEEDED}, or several captures."
    else:
        low, high = (f"{100 * step[f'change_{end}_frac']:+,.1f}%" for end in ("low", "high"))
        yield f"The change is between {low} and {high}, with {1 - LEVEL:.0%} confidence."
    changed = [row for row in others if row["significant"] and row["difference_ns"]]
    if changed:
        parts = ", ".join(f"{measure_name(row['measure'])} {row['difference_ns'] / 1e6:+,.2f} ms" for row in changed)
        yield f"More than chance changed: {parts}."
    change = comparison.change
    if change is not None and not change.unit.is_zero(change.ns):
        longer = "longer" if change.ns > 0 else "less"
        yield f"A typical traced step of B takes {change.unit.text(abs(change.ns))} {longer}: {change.words}."
    yield from (f"{said}." for said in comparison.other_kinds)


def basis_sentences(comparison: Comparison) -> str:
    """The captures of each side and what they allow, in whole sentences."""
    said = [comparison.basis, *filter(None, [comparison.power])]
    return " ".join(_sentence(part) for whole in said for part in whole.split("; "))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def without_empty(table: Table) -> PlainTable:
    """Drop the columns without any value."""
    values = plain(table)
    kept = {name: column for name, column in values.columns.items() if any(value is not None for value in column)}
    return PlainTable(kept, values.dtypes, values.whole)


def without_empty_memory(table: Table) -> PlainTable:
    """Drop the columns of memory if none was recorded."""
    values = plain(table)
    kept = {
        name: column
        for name, column in values.columns.items()
        if "_bytes" not in name or any(value is not None for value in column)
    }
    return PlainTable(kept, values.dtypes, values.whole)


def report(comparison: Comparison, output_format: str, *, top: int, screen: Screen = PAPER) -> str:
    """The captures, verdict and tables; for people, only the `top` kernels and operators."""
    known = list(comparison_facts(comparison))
    tables = {name: getattr(comparison, name) for name in _TABLES if name not in comparison.not_known}
    if output_format == "json":
        content: Row = {"table": "compare", "facts": [{"item": i, "value": v} for i, v in known]}
        return json.dumps(content | {name: records(table) for name, table in tables.items()}, indent=1) + "\n"
    if comparison.on_cpu:  # there an operator is its own kernel
        tables.pop("changed_operators", None)
    markdown = output_format == "markdown"
    parts = ["".join(f"- **{i}**: {escaped(v)}\n" for i, v in known) if markdown else fact_lines(known, 11, screen)]
    for name, table in tables.items():
        if not len(table):
            continue
        shown = without_empty_memory(table if name == "comparison" else table.head(top))
        title = CATALOG[name].title or name
        text = as_markdown(name, shown) if markdown else as_text(name, shown, screen)
        parts.append(f"### {title}\n\n{text}" if markdown else f"{styled(title, 'bold', screen)}\n\n{text}")
        if len(table) > len(shown):
            parts.append(f"{counted(len(table) - len(shown), 'more row')}: use --top, or --by.\n")
    return "\n".join(parts)


def comparison_facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the sides, the differences of their settings, and the verdict, in words."""
    sides = {"A": comparison.a, "B": comparison.b}
    for name, side in sides.items():
        yield name, printable(", ".join(analysis.run.name for analysis in side))
    yield "basis", comparison.basis
    for item, (a, b) in settings_of(comparison).items():
        if a != b:
            yield "differs", printable(f"{item}: {a} in A, {b} in B")
    yield "verdict", comparison.verdict
    if comparison.cause is not None:
        yield "cause", comparison.cause
    yield from (("not known", why) for why in comparison.not_known.values())
    yield from (("other steps", said) for said in comparison.other_kinds)
    if comparison.power:
        yield "power", comparison.power
    for name, side in sides.items():
        for analysis in side:
            of = f"{name}: {analysis.run.name}" if len(side) > 1 else name
            for note in (*analysis.run.notes, *analysis.run.failed):
                yield "warning", printable(f"{of}: {note}")
            for why in analysis.run.partial_because:
                yield "warning", printable(f"{of}: {why}")


def settings_of(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Recorded facts that may explain a difference, of both sides; all values if captures of a side differ."""
    facts = [[_of_run(analysis.run) for analysis in side] for side in (comparison.a, comparison.b)]
    items = dict.fromkeys(item for side in facts for run in side for item in run)
    of_a, of_b = ({item: _listed([run.get(item, "not set") for run in side]) for item in items} for side in facts)
    return {item: (of_a[item], of_b[item]) for item in items}


def _of_run(run: Any) -> dict[str, str]:
    known = {"ranks": str(len(run.ranks))}
    for column in ("device_name", "versions", "backend"):
        listed = sorted(set(run.traces[column].dropna()))
        known[column.removesuffix("_name")] = ", ".join(listed) or "not known"
    options = lenient(run.config, RunFile)[0].config
    return known | {key: str(value) for key, value in options.items() if key not in ("out", "run_name")}


def _listed(values: list[str]) -> str:
    return " or ".join(dict.fromkeys(values))
