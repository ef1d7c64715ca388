"""The worked examples of docs/metrics/: what a page says, beside what the functions of the project compute.

An example is a fenced block `example`. `given <table>` starts a table that goes in, `then <table>` one that must come
out, row by row. Below it stand a header and rows, columns two or more blanks apart, and lines `name = value`, which
hold for every row; `-` is NA. In what comes out, `name = expression = value` also checks the arithmetic shown.
A float is compared to the decimals written.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from commtrace.analysis.core.kinds import collective_in_name, kernel_kind, memory_kind
from commtrace.analysis.core.schema import Row, records
from commtrace.common.nccl_tests import bus_factor

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "metrics"
Given = dict[str, list[Row]]


# The pages


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, up to the next heading."""

    page: str
    title: str
    body: str

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.body, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One table of an example, cells as text; `derived` holds the expressions between a name and its value."""

    role: str
    table: str
    rows: list[dict[str, str]]
    derived: dict[str, list[str]]


def sections(page: str) -> list[Section]:
    """The sections of a page, which is named by its file without the ending."""
    pieces = re.split(r"^#{1,4} (.+)$", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [Section(page, title, body) for title, body in zip(pieces[1::2], pieces[2::2], strict=True)]


def examples(*pages: str) -> list[Any]:
    """The examples of these pages, as parameters of a test."""
    return [
        pytest.param(text, id=f"{page}: {section.title} {number}")
        for page in pages
        for section in sections(page)
        for number, text in enumerate(section.blocks("example"))
    ]


def parts(example: str) -> list[Part]:
    texts = re.split(r"^(given|then) (.+)$", example, flags=re.MULTILINE)
    assert not texts[0].strip(), f"an example starts with given or then, not with {texts[0]!r}"
    return [_part(*three) for three in zip(texts[1::3], texts[2::3], texts[3::3], strict=True)]


def _part(role: str, table: str, text: str) -> Part:
    header: list[str] = []
    rows: list[dict[str, str]] = []
    shared: dict[str, str] = {}
    derived: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        cells = re.split(r" {2,}", line)
        if assigned := re.fullmatch(r"(\w+) = (.+)", line):
            *derived[assigned[1]], shared[assigned[1]] = assigned[2].split(" = ")
        elif not header:
            header = cells
        else:
            assert len(cells) == len(header), f"{len(header)} columns, but {len(cells)} cells in: {line}"
            rows.append(dict(zip(header, cells, strict=True)))
    rows = [shared | row for row in rows] if header else [shared]
    return Part(role, table.strip().replace(" ", "_"), rows, derived)


def _given(example: list[Part]) -> Given:
    return {p.table: [_parsed(row) for row in p.rows] for p in example if p.role == "given"}


def _parsed(row: dict[str, str]) -> Row:
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> Any:
    if text in ("-", "yes", "no"):
        return {"-": None, "yes": True, "no": False}[text]
    number = text.replace(",", "")
    if re.fullmatch(r"\d+\.\d+", number):
        return float(number)
    return int(number) if re.fullmatch(r"-?\d+", number) and name not in ("device", "pg_ranks", "comms_id") else text


# What comes out


@cache
def solved(text: str, analysis_of: Callable[[Given], Any]) -> list[tuple[Part, list[Row]]]:
    """The `then` parts of an example, each with the rows that the project computes for it."""
    example = parts(text)
    analysis = analysis_of(_given(example))
    return [(part, _computed(part, analysis)) for part in example if part.role == "then"]


def _computed(then: Part, analysis: Any) -> list[Row]:
    if then.table == "mistakes":
        return records(analysis.mistakes([row["mistake"] for row in then.rows]))
    if then.table == "bus_factors":
        return [{**row, "bus_factor": bus_factor(row["collective"], row["group_size"])}
                for row in map(_parsed, then.rows)]  # fmt: skip
    if then.table == "kinds":
        return [{**row, "kind": _kind(row["name"]), "collective": collective_in_name(row["name"])} for row in then.rows]
    if then.table == "verdict_of_the_run":
        return records(analysis.verdicts.head(1))
    if then.table == "verdicts":
        return records(analysis.verdicts.iloc[1:])
    if then.table == "predictions_of_6_ranks":
        return records(analysis.predict({"world_size": 6}, {"world_size": 6, "new_links": "1,50"}))
    if then.table.startswith("comparison_of_"):
        of = then.table.removeprefix("comparison_of_")
        return [row for row in records(analysis.comparison) if row["measure"] == of]
    return records(getattr(analysis.run if then.table == "activities" else analysis, then.table))


def _kind(name: str) -> str:
    is_memory = name.startswith(("Memcpy", "Memset"))
    return memory_kind(name) if is_memory else kernel_kind(name)


def assert_true(text: str, analysis_of: Callable[[Given], Any]) -> None:
    """Every number of the example is the one that is computed."""
    wrong = [difference for then, rows in solved(text, analysis_of) for difference in _differences(then, rows)]
    assert not wrong, "\n".join(wrong)


def assert_a_changed_number_is_noticed(text: str, analysis_of: Callable[[Given], Any]) -> None:
    for then, rows in solved(text, analysis_of):
        for number, row in enumerate(then.rows):
            for name in row:
                changed = [dict(r) for r in then.rows]
                changed[number][name] = re.sub(r"\d$", lambda m: str((int(m[0]) + 1) % 10), row[name])
                if changed[number][name] == row[name]:
                    changed[number][name] = "other"
                known = then.table in ("bus_factors", "kinds") and name in ("collective", "group_size", "name")
                assert known or _differences(replace(then, rows=changed, derived={}), rows), f"{then.table} {name}"


def _differences(then: Part, rows: list[Row]) -> list[str]:
    """What the page says otherwise than the project, one sentence each."""
    if len(rows) != len(then.rows):
        return [f"{then.table}: {len(then.rows)} rows written, {len(rows)} computed: {rows}"]
    found = [
        f"{then.table}, row {number}: {name} is written as {text}, but is {row[name]}"
        for number, (written, row) in enumerate(zip(then.rows, rows, strict=True))
        for name, text in written.items()
        if not _same(text, row[name])
    ]
    for name, expressions in then.derived.items():
        value = float(then.rows[0][name].replace(",", "")) if expressions else 0.0
        found += [f"{then.table}: {name} is {value}, not {e} = {_arithmetic(e)}"
                  for e in expressions if not _same(then.rows[0][name], float(_arithmetic(e)))]  # fmt: skip
    return found


def _same(text: str, value: Any) -> bool:
    if value is None or text == "-":
        return value is None and text == "-"
    if isinstance(value, bool):
        return text == ("yes" if value else "no")
    if isinstance(value, int):
        return text.replace(",", "") == str(value)
    if isinstance(value, float):
        decimals = len(text.partition(".")[2])
        return bool(abs(float(text.replace(",", "")) - value) <= 0.5000001 * 10**-decimals * (decimals > 0) + 1e-9)
    return text == str(value)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min, "max": max, "median": lambda *values: statistics.median(values), "exp": math.exp, "sqrt": math.sqrt,
}  # fmt: skip


def _arithmetic(expression: str) -> float:
    """The value of + - * / ( ) min max median exp sqrt over numbers."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*map(value, arguments))
        raise AssertionError(f"not arithmetic: {expression}")

    return value(ast.parse(expression, mode="eval").body)
