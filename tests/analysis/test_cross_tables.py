"""`--columns` and `--pivot`: the shapes of tables in reports, in every format, and what is refused."""

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.core.pivots import BadChoice, Pivot
from commtrace.analysis.core.schema import PlainTable, Schema
from commtrace.analysis.core.table_choice import SortBy, TableChoice
from commtrace.analysis.render import CROSS_FORMATS, FORMATS, cross_as_text
from commtrace.analysis.render.screen import Screen
from commtrace.cli import main

HEADER = "model,parallel,workers,batch_size_per_rank,epoch_s"
SECONDS = {32: (16.10, 41.32, 24.85), 128: (8.37, 10.53, 9.29), 512: (9.19, 8.78, None)}
BY_SIZE = "rows=workers,columns=batch_size_per_worker,values=epoch_ns,speedup_scaled_work"
THINGS = Schema(
    "things",
    "thing",
    {
        "side": ("string", "name"),
        "top": ("Int64", "number"),
        "size_bytes": ("Int64", "size"),
        "dur_ns": ("Int64", "time"),
        "note": ("string", "text"),
    },
)


@pytest.fixture(scope="module")
def timings(tmp_path_factory):
    """Timings of DataParallel as one of the reports printed them, without its last cell."""
    rows = [
        f"resnet18,dp,{workers},{batch},{time}"
        for batch, times in SECONDS.items()
        for workers, time in zip((1, 2, 4), times, strict=True)
        if time is not None
    ]
    path = tmp_path_factory.mktemp("timings") / "dp.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def ran(capsys, *arguments, code=0):
    assert main([str(a) for a in arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def cross(pivot, rows, **choice):
    choice = TableChoice(pivot=Pivot.parse(pivot), **choice)
    choice.check(THINGS)
    return choice.shaped(choice.of(THINGS.plain(rows)))


def test_the_table_of_a_report_on_a_terminal(capsys, timings):
    lines = ran(capsys, "table", "scaling", timings, "--pivot", BY_SIZE).splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["1", "16.10", "1.00", "8.37", "1.00", "9.19", "1.00"],
        ["2", "41.32", "0.78", "10.53", "1.59", "8.78", "2.09"],
        ["4", "24.85", "2.59", "9.29", "3.60", "-", "-"],
    ]
    title, sizes, *head = lines[: -len(lines[-3:]) - 1]
    assert title.strip("\u2500 ") == "batch size per worker"
    assert re.findall(r"\w+", sizes.replace("\u2500", " ")) == ["32", "128", "512"]
    # Each label stands over its two columns.
    for label, column in (("32", 0), ("128", 1), ("512", 2)):
        begin = [match.start() for match in re.finditer("epoch", head[1])][column]
        assert begin <= sizes.index(label) <= begin + len("epoch   scaled")


def test_one_value_needs_no_header_of_its_own(capsys, timings):
    pivot = "rows=workers,columns=batch_size_per_worker,values=epoch_ns"
    lines = ran(capsys, "table", "scaling", timings, "--pivot", pivot).splitlines()
    assert lines[0].strip() == "epoch (s) by batch size per worker"
    assert lines[1].split() == ["workers", "32", "128", "512"]


def test_the_table_of_a_report_as_markdown(capsys, timings):
    assert ran(capsys, "table", "scaling", timings, "--pivot", BY_SIZE, "-f", "markdown").splitlines() == [
        "|  | batch size per worker |  |  |  |  |  |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        "|  | **32** |  | **128** |  | **512** |  |",
        f"| **workers** {'| **epoch (s)** | **speedup scaled work** ' * 3}|",
        "| 1 | 16.10 | 1.00 | 8.37 | 1.00 | 9.19 | 1.00 |",
        "| 2 | 41.32 | 0.78 | 10.53 | 1.59 | 8.78 | 2.09 |",
        "| 4 | 24.85 | 2.59 | 9.29 | 3.60 | - | - |",
    ]


@pytest.mark.parametrize(("form", "label"), [("markdown", "all_reduce of 2"), ("latex", r"all\_reduce of 2")])
def test_a_value_across_the_top_stays_as_it_is(form, label):
    table = cross("rows=top,columns=side,values=dur_ns", [{"side": "all_reduce of 2", "top": 1, "dur_ns": 1}])
    assert label in CROSS_FORMATS[form]("things", table)


def test_the_table_of_a_report_as_latex(capsys, timings):
    lines = ran(capsys, "table", "scaling", timings, "--pivot", BY_SIZE, "-f", "latex").splitlines()
    assert r" & \multicolumn{2}{c}{32} & \multicolumn{2}{c}{128} & \multicolumn{2}{c}{512} \\" in lines
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}" in lines
    assert r"4 & 24.85 & 2.59 & 9.29 & 3.60 & -- & -- \\" in lines
    spans = [
        sum(int((re.match(r" ?\\multicolumn\{(\d)\}", cell) or [0, 1])[1]) for cell in line.split("&"))
        for line in lines
        if line.endswith(" \\\\")
    ]
    assert set(spans) == {7}  # as many as \begin{tabular} declares
    assert "\\begin{tabular}{rrrrrrr}" in lines


def test_programs_get_numbers_in_full(capsys, timings):
    arguments = ("table", "scaling", timings, "--pivot", BY_SIZE)
    *_, last = csv.DictReader(io.StringIO(ran(capsys, *arguments, "-f", "csv")))
    assert list(last.items())[:2] == [("workers", "4"), ("batch_size_per_worker=32/epoch_ns", "24850000000")]
    assert last["batch_size_per_worker=512/epoch_ns"] == ""
    content = json.loads(ran(capsys, *arguments, "-f", "json"))
    assert content["table"] == "scaling"
    assert content["rows"][2]["workers"] == 4
    assert content["rows"][2]["cells"][::2] == [
        {"batch_size_per_worker": 32, "epoch_ns": 24_850_000_000, "speedup_scaled_work": 4 * 16.10 / 24.85},
        {"batch_size_per_worker": 512, "epoch_ns": None, "speedup_scaled_work": None},
    ]


@pytest.mark.parametrize("output_format", FORMATS)
def test_columns_are_those_that_are_named_in_their_order(capsys, timings, output_format):
    text = ran(capsys, "table", "scaling", timings, "--columns", "epoch_steps,run,workers", "-f", output_format)
    words = re.findall(r"steps|run|workers", text.replace("\\_", "_"))
    assert words[:3] in (["steps", "run", "workers"], ["run", "workers", "steps"])  # headers are stacked
    assert "resnet18-dp-w4-b128" in text
    assert "speedup" not in text


def test_columns_are_shown_though_they_say_nothing():
    rows = THINGS.plain([{"side": "a", "top": 1}, {"side": "b", "top": 1}])
    asked = TableChoice(columns=("note", "top")).shaped(rows)
    text = FORMATS["table"]("things", asked)
    assert [line.split() for line in text.splitlines()] == [["note", "top"], ["\u2500" * 9], ["-", "1"], ["-", "1"]]


@pytest.mark.parametrize(
    ("pivot", "because"),
    [
        ("workers", "expected rows, columns, values"), ("rows=a,columns=b", "expected rows, columns, values"),
        ("rows=a,columns=b,values=", "expected rows, columns, values"),
        ("rows=a,rows=b,columns=c,values=d", "each of rows, columns, values once"),
        ("rows=a,column=b,values=c", "each of rows, columns, values once"),
        ("rows=a,columns=a,values=c", "a has more than one place"),
        ("rows=a,columns=b,values=b", "b has more than one place"),
    ],
)  # fmt: skip
def test_a_pivot_without_its_parts_is_refused(pivot, because):
    with pytest.raises(BadChoice, match=re.escape(because)):
        Pivot.parse(pivot)


def test_several_rows_for_a_cell_are_an_error_that_names_the_column_that_is_missing(capsys, timings, tmp_path):
    both = tmp_path / "both.csv"
    both.write_text(timings.read_text() + timings.read_text().partition("\n")[2].replace(",dp,", ",ddp,"))
    error = ran(capsys, "table", "scaling", both, "--pivot", BY_SIZE, code=2)
    assert "Invalid value for --pivot: 2 rows have workers=1, batch_size_per_worker=32" in error
    assert "parallel tells them apart" in error
    for way in (["--where", "parallel=dp"], []):
        pivot = BY_SIZE if way else BY_SIZE.replace("columns=", "columns=parallel,")
        assert "2.59" in ran(capsys, "table", "scaling", both, "--pivot", pivot, *way)


@pytest.mark.parametrize(
    ("rows", "because"),
    [
        ([{"note": "a", "size_bytes": 1}, {"note": "b", "size_bytes": 2}], "size_bytes tells them apart"),
        ([{}, {}], "no column tells them apart"),
        ([{"size_bytes": 1}, {"size_bytes": 1, "note": "a"}, {"note": "a"}], "they differ in size_bytes, note"),
    ],
)  # fmt: skip
def test_what_else_may_tell_rows_of_a_cell_apart(rows, because):
    with pytest.raises(BadChoice, match=because):
        cross("rows=side,columns=top,values=dur_ns", rows)


def test_numbers_ascend_and_texts_keep_their_order_unless_they_are_sorted():
    rows = [{"side": side, "top": top, "dur_ns": 1} for top in (10, None, 9) for side in ("b", "a")]
    pivot = "rows=side,columns=top,values=dur_ns"
    assert cross(pivot, rows).across == [(9,), (10,), (None,)]
    assert cross(pivot, rows).down == [("b",), ("a",)]
    both = cross("rows=side,top,columns=size_bytes,values=dur_ns", rows).down
    assert both == [("b", 9), ("b", 10), ("b", None), ("a", 9), ("a", 10), ("a", None)]
    assert cross(pivot, rows, sort=(SortBy("top", descending=True),)).across == [(10,), (9,), (None,)]
    assert cross(pivot, rows, sort=(SortBy("side"),), top=1).down == [("a",)]


@pytest.mark.parametrize(
    ("output_format", "text"),
    [("table", ""), ("csv", "side\n"), ("markdown", "| side |\n|---|\n"),
     ("latex", "\\begin{tabular}{l}\n\\toprule\nside \\\\\n\\midrule\n\\bottomrule\n\\end{tabular}\n")],
)  # fmt: skip
def test_without_rows_there_is_a_header(output_format, text):
    made = CROSS_FORMATS[output_format]("things", cross("rows=side,columns=top,values=dur_ns", []))
    assert made.removeprefix("% needs \\usepackage{booktabs}\n") == text


def test_names_cannot_be_formulas_or_markup():
    rows = [{"side": "a", "top": 1, "note": "|x|"}, {"side": "=1;=2", "top": 1, "note": "<b>"}]
    table = cross("rows=top,columns=side,values=note", rows)
    assert CROSS_FORMATS["csv"]("things", table).splitlines()[0] == "top,side=a/note,side==1;'=2/note"
    assert "\\|x\\|" in CROSS_FORMATS["markdown"]("things", table)
    assert "<b>" not in CROSS_FORMATS["markdown"]("things", table)


CELLS = st.dictionaries(
    st.tuples(st.sampled_from([None, "a", "a long name of a side", "c"]), st.none() | st.integers(0, 10**9)),
    st.tuples(st.none() | st.integers(-(10**12), 10**12), st.none() | st.sampled_from(["x", "\u6f22\u5b57", "y" * 30])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(CELLS, st.integers(40, 200))
def test_every_cell_is_shown_once_on_any_screen(cells, width):
    rows = [{"side": s, "top": t, "size_bytes": v, "note": n} for (s, t), (v, n) in cells.items()]
    table = cross("rows=side,columns=top,values=size_bytes,note", rows)
    flat = table.flat
    assert len(flat.columns) == 1 + 2 * len({top for _, top in cells})
    found = {
        (row["side"], cell["top"]): (cell["size_bytes"], cell["note"]) for row in table.nested for cell in row["cells"]
    }
    assert found == {(s, t): cells.get((s, t), (None, None)) for s in flat.columns["side"] for (t,) in table.across}
    text = cross_as_text("things", table, Screen(width=width))
    for _, note in cells.values():
        assert note is None or note in text
    if width >= 80:
        from rich.cells import cell_len

        assert max(map(cell_len, text.splitlines())) < width


def test_moments_count_from_the_first_of_the_whole_table():
    whole = PlainTable(
        {"rank": [0, 0, 1], "step": [1, 2, 1], "start_ns": [5_000_000, 9_000_000, 6_000_000]},
        dict.fromkeys(("rank", "step", "start_ns"), "int64"),
    )
    choice = TableChoice(pivot=Pivot.parse("rows=rank,columns=step,values=start_ns"))
    text = CROSS_FORMATS["markdown"]("calls", choice.shaped(choice.of(whole)))
    assert "| 0 | 0.000 | 4.000 |" in text
    assert "| 1 | 1.000 | - |" in text
