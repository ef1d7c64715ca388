"""`--where`, `--sort`, `--top`, `--columns` and `--pivot` on every table command, in every format, by brute force."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace import analyse
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.core.pivots import BadChoice
from commtrace.analysis.core.schema import PlainTable, Schema
from commtrace.analysis.core.table_choice import Condition, SortBy, TableChoice
from commtrace.cli import main

RUN = str(Path(__file__).parents[2] / "traces/resnet18-ddp-w2")
SCHEMA = Schema(
    "things",
    "thing",
    {
        "rank": ("Int64", "rank"),
        "dur_ns": ("Int64", "duration"),
        "hidden_frac": ("Float64", "share"),
        "name": ("string", "name"),
        "complete": ("boolean", "whole"),
    },
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "rank": st.none() | st.integers(0, 3),
            "dur_ns": st.none() | st.integers(-5, 5),
            "hidden_frac": st.none() | st.sampled_from([0.0, 0.25, 1.0]),
            "name": st.none() | st.sampled_from(["a", "B", "ab"]),
            "complete": st.none() | st.booleans(),
        }
    ),
    max_size=12,
)
SIGNS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a is not None and a < b,
    "<=": lambda a, b: a is not None and a <= b,
    ">": lambda a, b: a is not None and a > b,
    ">=": lambda a, b: a is not None and a >= b,
}


@pytest.mark.slow
@given(ROWS, st.sampled_from(sorted(SIGNS)), st.integers(-5, 5))
def test_a_condition_keeps_the_rows_for_which_it_holds_in_their_order(rows, sign, bound) -> None:
    choice = TableChoice(where=(Condition.parse(f"dur_ns {sign} {bound}"),))
    choice.check(SCHEMA)
    assert choice.of(SCHEMA.plain(rows)).rows == [row for row in rows if SIGNS[sign](row["dur_ns"], bound)]


@pytest.mark.slow
@given(ROWS, st.sampled_from(list(SCHEMA.columns)), st.sampled_from(["", ":asc", ":desc"]), st.integers(1, 14))
def test_sorting_keeps_all_rows_and_puts_unknown_values_last(rows, column, order, top) -> None:
    choice = TableChoice(sort=(SortBy.parse(f"{column}{order}"),))
    table = SCHEMA.plain(rows)
    by = [row[column] for row in choice.of(table).rows]
    known = [value for value in by if value is not None]
    down = order == ":desc" or (not order and column != "name")
    assert known == sorted(known, reverse=down)
    assert by[len(known) :] == [None] * (len(rows) - len(known))
    first = TableChoice(sort=choice.sort, top=top).of(table).rows
    assert first == choice.of(table).rows[:top]


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("dur_ns>1ms", 1_000_001, True), ("dur_ns>1ms", 1_000_000, False), ("dur_ns<=2us", 2000, True),
        ("dur_ns=1_000", 1000, True), ("dur_ns=1,000", 1000, True), ("dur_ns>1e3", 1001, True),
        ("dur_ns=NA", None, True), ("dur_ns!=NA", None, False), ("dur_ns!=3", None, True), ("dur_ns<3", None, False),
        ("hidden_frac>=50%", 0.5, True), ("hidden_frac>=50%", 0.49, False),
        ("name=gemm", "gemm", True), ("name~GEM", "a gemm", True), ("name~gem", None, False),
        ("name=a = b", "a = b", True),
        ("complete=true", True, True), ("complete=no", True, False),
        ("rank=9007199254740993", 9007199254740992, False),
    ],
)  # fmt: skip
def test_values_are_compared_in_the_units_of_their_column(condition, value, holds) -> None:
    parsed = Condition.parse(condition)
    assert parsed.holds(SCHEMA.columns[parsed.column][0])(value) is holds


@pytest.mark.parametrize(
    ("condition", "because"),
    [
        ("rank", "is no condition"), ("=3", "is no condition"), ("__import__('os')", "is no condition"),
        ("rank=two", "rank holds numbers"), ("dur_ns>3%", "dur_ns holds numbers"), ("rank=3ms", "rank holds numbers"),
        ("complete=3", "complete is true or false"), ("dur>3", "did you mean dur_ns"), ("nme=a", "did you mean name"),
        ("xyz=3", "things has: rank, dur_ns, hidden_frac, name, complete"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_with_what_there_is(condition, because) -> None:
    with pytest.raises(BadChoice, match=because):
        TableChoice(where=(Condition.parse(condition),)).check(SCHEMA)


def test_the_first_rows_can_be_those_of_each_device() -> None:
    table = PlainTable({"rank": [1, 0, 1, 0, 1]}, {"rank": "int64"})
    assert TableChoice(top=2).of(table, ["rank"]).columns == {"rank": [1, 0, 1, 0]}


def output(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return str(capsys.readouterr().out)


@pytest.mark.parametrize(
    "name",
    [entry.name for entry in CATALOG.values() if entry.command not in (None, "hang") and entry.of is InputKind.run],
)
def test_every_table_command_takes_them_before_it_reads(capsys, name) -> None:
    command = (CATALOG[name].command or "").replace("FILE", "/nowhere").split()
    first = next(iter(CATALOG[name].schema.columns))
    for option, value in (
        ("--where", "nothing_like_it=3"),
        ("--sort", "nothing_like_it"),
        ("--columns", f"{first},nothing_like_it"),
        ("--pivot", f"rows={first},columns=nothing_like_it,values=neither"),
    ):
        assert main([*command, option, value, "/no/such/run"]) == 2
        error = capsys.readouterr().err
        assert f"Invalid value for {option}: no column nothing_like_it" in error
        assert list(CATALOG[name].schema.columns)[-1] in error.replace("\n", " ")


@pytest.mark.slow
def test_all_formats_have_the_same_rows(capsys) -> None:
    wanted = analyse(RUN).calls.query("rank == 1 and collective == 'all_reduce'").nlargest(3, "dur_ns")["call_id"]
    options = [
        "table",
        "calls",
        RUN,
        "--where",
        "rank=1",
        "--where",
        "collective=all_reduce",
        "--sort",
        "dur_ns",
        "--top",
        "3",
    ]
    rows = json.loads(output(capsys, *options, "--format", "json"))["rows"]
    assert [row["call_id"] for row in rows] == list(wanted)
    from_csv = csv.DictReader(io.StringIO(output(capsys, *options, "--format", "csv")))
    assert [int(row["call_id"]) for row in from_csv] == list(wanted)
    for output_format in ("table", "markdown"):
        lines = output(capsys, *options, "--format", output_format).splitlines()
        assert len([line for line in lines if "all_reduce" in line]) == 3


@pytest.mark.slow
def test_a_column_that_is_asked_for_is_shown(capsys) -> None:
    assert "n memory" not in " ".join(output(capsys, "breakdown", RUN).split())
    assert " memory" in output(capsys, "breakdown", RUN, "--sort", "n_memory")
    assert output(capsys, "breakdown", RUN, "--where", "n_memory=NA") == ""


def test_moments_stay_those_of_the_whole_table(capsys) -> None:
    """The time since the first call, not since the first call that is shown."""
    first = output(capsys, "table", "calls", RUN, "--format", "markdown").splitlines()[-1]
    assert first in output(capsys, "table", "calls", RUN, "--format", "markdown", "--sort", "call_id", "--top", "1")


@pytest.mark.parametrize("choice", [("--where", "rank=3"), ("--columns", "measure")])
def test_reports_of_several_tables_ask_for_one(capsys, choice) -> None:
    assert main(["compare", RUN, RUN, *choice]) == 2
    error = capsys.readouterr().err
    assert f"Invalid value for {choice[0]}" in error
    assert "name it by --by" in error
