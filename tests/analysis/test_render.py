"""Tables as text: for people without loss of meaning, for programs without loss of digits."""

import csv
import html
import io
import json
import re

import pandas as pd
import pytest
from builders import MS, Collective, analysed, calls_table, traces_of

from commtrace.analysis.core.schema import Schema, records
from commtrace.analysis.core.tables.sweeps import SUBTRACTION
from commtrace.analysis.render import FORMATS, as_csv, as_json, as_markdown, as_text
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.show.summary import summary
from commtrace.analysis.tables.breakdown import BREAKDOWN
from commtrace.analysis.tables.collectives import COLLECTIVES
from commtrace.analysis.tables.ranks import RANKS

NASTY = 'a|b\n"c", <d>\\ \x1b[31mred\x07\x9b2J\u202e\r'
NAMES = (
    "breakdown",
    "breakdown_steps",
    "calls",
    "collectives",
    "participation",
    "bandwidth",
    "ranks",
    "clocks",
    "verdicts",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    truth = [Collective((k * 50 * MS, k * 50 * MS + 7_001), 10 * MS, elems=250_000_000) for k in range(3)]
    traces = [t.step(1, 0, 200 * MS).kernel("gemm", 5 * MS, 9 * MS) for t in traces_of(2, truth)]
    return analysed(tmp_path_factory.mktemp("run"), *traces)


def cells(line: str) -> list[str]:
    """Cells of a line of a markdown table."""
    return [c.strip() for c in line.replace("\\\\", "\0").replace("\\|", "\1").strip("|").split("|")]


@pytest.mark.parametrize("name", NAMES)
def test_csv_comes_back_as_it_was(found, name):
    table = getattr(found, name)
    rows = list(csv.DictReader(io.StringIO(as_csv(name, table))))
    wanted = [{k: "" if v is None else str(v) for k, v in row.items()} for row in records(table)]
    assert rows == wanted


@pytest.mark.parametrize("name", NAMES)
def test_json_comes_back_as_it_was(found, name):
    table = getattr(found, name)
    assert json.loads(as_json(name, table)) == {"table": name, "rows": records(table)}


def test_integers_keep_every_digit(found):
    starts = found.calls["start_ns"].tolist()
    assert [row["start_ns"] for row in json.loads(as_json("calls", found.calls))["rows"]] == starts
    assert all(str(start) in as_csv("calls", found.calls) for start in starts)
    assert all(start > 2**60 for start in starts)


@pytest.mark.parametrize("name", NAMES)
def test_markdown_has_as_many_cells_in_every_line(found, name):
    lines = as_markdown(name, getattr(found, name)).splitlines()
    assert len({len(cells(line)) for line in lines}) == 1
    assert len(lines) == 2 + len(getattr(found, name))


@pytest.mark.parametrize("name", NAMES)
def test_text_has_a_line_for_every_row_and_no_ragged_ends(found, name):
    lines = as_text(name, getattr(found, name)).splitlines()
    rule = next(i for i, line in enumerate(lines) if "──" in line)
    assert len(lines) - rule - 1 == len(getattr(found, name))
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_ascii_text_is_ascii(found, name):
    assert as_text(name, getattr(found, name), Screen(ascii_only=True)).isascii()


@pytest.mark.parametrize("output", FORMATS.values(), ids=FORMATS)
def test_empty_tables(output):
    assert output("ranks", RANKS.empty()).endswith("\n")


@pytest.mark.parametrize("output", FORMATS.values(), ids=FORMATS)
def test_tables_of_missing_values_only(output):
    row = {"collective_id": 0, "ranks": "0", "complete": False, "first_start_ns": 5, "last_end_ns": 9, "min_dur_ns": 4}
    assert output("collectives", COLLECTIVES.frame([row])).endswith("\n")


def test_people_read_yes_and_no():
    table = pd.DataFrame({"significant": pd.array([True, False, None], dtype="boolean")})
    assert as_text("comparison", table).split()[-3:] == ["yes", "no", "-"]


def test_markdown_with_bars_line_breaks_and_tags_in_names():
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": NASTY}])
    lines = as_markdown("calls", table).splitlines()
    assert len(lines) == 3
    assert len({len(cells(line)) for line in lines}) == 1
    assert "<d>" not in lines[2]


@pytest.mark.parametrize("output", [as_text, as_markdown], ids=["text", "markdown"])
def test_control_characters_are_written_out(output):
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": NASTY}])
    text = output("calls", table)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\\x1b" in text.replace("\\\\", "\\")


@pytest.mark.parametrize("name", ["__init__", "f(int*, int*)", "`x`", "[a](b)", "~~x~~", "$x$", "a&lt;b", "_a _b_"])
def test_markdown_marks_nothing_up(name):
    line = as_markdown("calls", calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": name}]))
    (shown,) = re.findall(r"all_reduce \| (.*?) \| 2 \|", line)
    bare = re.sub(r"\\(.)", "", shown)  # what a backslash stands before is text
    assert not re.search(r"[*`\[\]~$]|\b__|__\b", bare)
    assert html.unescape(re.sub(r"\\(.)", r"\1", shown)) == name


FORMULAS = [
    "=1+1",
    "+1",
    "-1+2",
    "@SUM(A1)",
    "-",
    '=HYPERLINK("x")',
    "'=",
    "\uff1d1+1",
    "\uff0b1",
    "\uff0d1",
    "\uff20A1",
]


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("before", ["", "x;", "x; ", 'x";"', "x;;"])
def test_csv_text_that_a_spreadsheet_would_run_is_made_text(name, before):
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": before + name}])
    text = as_csv("calls", table)
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["process_group"] == f"{before}'{name}"
    for delimiter in ",;":  # as the two kinds of spreadsheets take the line
        for cell in next(csv.reader(io.StringIO(text.splitlines()[1]), delimiter=delimiter)):
            assert not re.match(r"[=+@\uff1d\uff0b\uff0d\uff20]|-(?!\d+$)", cell.strip(' "'))


def test_csv_text_that_stands_after_an_apostrophe_comes_back():
    names = [*FORMULAS, "a;b", "'a", "a;'b", "x;=1;+2;'-3", "'';'='", 'x;""=1"', "void f<4, -1>(int; a=1)"]
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": name} for name in names])
    rows = csv.DictReader(io.StringIO(as_csv("calls", table), newline=""))
    before = re.compile(r"""(^|;[ "]*)'('*[=+\-@\uff1d\uff0b\uff0d\uff20])""")
    assert [before.sub(r"\1\2", row["process_group"]) for row in rows] == names


def test_every_row_of_a_csv_is_a_line():
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": NASTY}])
    text = as_csv("calls", table)
    assert text.count("\n") == 2
    assert all(c.isprintable() or c == "\n" for c in text)
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["process_group"] == 'a|b\\n"c", <d>\\ \\x1b[31mred\\x07\\x9b2J\\u202e\\r'


def test_csv_leaves_numbers_and_other_text_alone():
    row = {"rank": 0, "start_ns": -5, "dur_ns": 5, "process_group": "a=-+@b", "name": "'a;b", "size_bytes": None}
    (shown,) = csv.DictReader(io.StringIO(as_csv("calls", calls_table([row]))))
    assert [shown[c] for c in ("start_ns", "process_group", "name", "size_bytes")] == ["-5", "a=-+@b", "'a;b", ""]
    table = SUBTRACTION.frame([{"model": "-m", "workers": 2, "batch_size_per_worker": 1, "subtracted_comm_ns": -7}])
    (shown,) = csv.DictReader(io.StringIO(as_csv("subtraction", table)))
    assert (shown["model"], shown["subtracted_comm_ns"]) == ("'-m", "-7")


def test_epochs_are_in_seconds_and_may_be_negative():
    row = {"model": "m", "workers": 2, "batch_size_per_worker": 1, "epoch_ns": 16_100_000_000}
    table = SUBTRACTION.frame([row | {"subtracted_comm_ns": -345_000_000_000, "difference_ns": -4_200_000}])
    header, _, line = as_markdown("subtraction", table).splitlines()
    shown = dict(zip(cells(header), cells(line), strict=True))
    assert (shown["epoch (s)"], shown["subtracted_comm (s)"], shown["difference (s)"]) == (
        "16.10",
        "-345.00",
        "-0.0042",
    )


def test_names_in_brackets_are_not_taken_for_markup():
    table = calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": "[bold]dp[/bold] [link=x]y"}])
    assert "[bold]dp[/bold] [link=x]y" in as_text("calls", table)


@pytest.mark.parametrize("name", ["x" * 400, "数据并行组" * 20], ids=["long", "wide"])
def test_long_and_wide_names_are_never_cropped(name):
    text = as_text("calls", calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5, "process_group": name}]))
    assert name in text
    assert "…" not in text


def test_durations_of_a_table_share_a_unit_that_fits():
    row = {
        "rank": 0, "device": "0", "cycles": 1, "n_compute": 0, "n_comm": 0, "n_memory": 0, "n_no_step": 0,
        "overlap_ns": 0, "exposed_unsplit_ns": 0, "exposed_memory_ns": 0, "exposed_comm_ns": 0, "idle_ns": 0,
    }  # fmt: skip
    for window, compute, unit, size in [
        (123_456_789_012, 1_000_000_000, "s", 1e9),
        (12_345_678, 1_000_000, "ms", 1e6),
        (12_345, 1_000, "us", 1e3),
        (123, 45, "ns", 1),
    ]:
        table = BREAKDOWN.frame([row | {"window_ns": window, "compute_ns": compute, "comm_ns": 0}])
        lines = as_markdown("breakdown", table).splitlines()
        assert cells(lines[0])[2:4] == [f"window ({unit})", f"compute ({unit})"]
        shown = [float(cell.replace(",", "")) for cell in cells(lines[2])[2:4]]
        assert shown == pytest.approx([window / size, compute / size], abs=0.06)


def test_shares_are_percent_and_missing_values_a_dash(found):
    header, _, *lines = as_markdown("breakdown", found.breakdown).splitlines()
    row = dict(zip(cells(header), cells(lines[0]), strict=True))
    wanted = records(found.breakdown)[0]
    assert row["exposed_comm (%)"] == f"{100 * wanted['exposed_comm_frac']:.1f}"
    header, _, line = as_markdown("calls", calls_table([{"rank": 0, "start_ns": 0, "dur_ns": 5}])).splitlines()
    assert dict(zip(cells(header), cells(line), strict=True))["seq"] == "-"


def test_points_in_time_are_shown_since_the_first():
    table = calls_table(
        [{"rank": 0, "start_ns": 10**18 + 5_000_000, "dur_ns": 5}, {"rank": 0, "start_ns": 10**18, "dur_ns": 5}]
    )
    header, _, *lines = as_markdown("calls", table).splitlines()
    column = cells(header).index("start (ms)")
    assert [cells(line)[column] for line in lines] == ["5.000", "0.000"]


def test_bandwidths_of_slow_links_keep_two_digits(found):
    table = found.bandwidth.assign(busbw_gb_per_s=pd.array([0.00123], dtype="Float64"))
    header, _, line = as_markdown("bandwidth", table).splitlines()
    row = dict(zip(cells(header), cells(line), strict=True))
    assert (row["busbw (GB/s)"], row["algbw (GB/s)"]) == ("0.0012", "100.00")
    assert row["size (bytes)"] == "1,000,000,000"
    assert row["count (elems)"] == "250,000,000"


def test_renderers_leave_their_argument_alone(found):
    for name in NAMES:
        table = getattr(found, name)
        before = table.copy()
        for output in FORMATS.values():
            output(name, table)
        pd.testing.assert_frame_equal(table, before)


def test_a_table_they_do_not_know_is_shown_whole():
    other = Schema("other", "thing", {"rank": ("int64", "rank"), "colour": ("string", "colour")})
    assert cells(as_markdown("other", other.frame([{"rank": 1, "colour": "red"}])).splitlines()[0]) == [
        "rank",
        "colour",
    ]


# --- summary ---------------------------------------------------------------------------------------------------------


def test_the_summary_as_json_has_facts_and_tables(found):
    content = json.loads(summary(found, "json"))
    facts = {row["item"]: row["value"] for row in content["facts"]}
    assert facts["ranks"] == "2 of 2: 0-1"
    assert facts["calls"] == "6, metadata from kernel 6"
    assert facts["collectives"].startswith("3 matched across ranks, 0 of them partial, 0 not certain")
    assert facts["group 0"].endswith("6 by seq")
    assert content["breakdown"] == records(found.breakdown)
    assert content["ranks"] == records(found.ranks)


def test_the_summary_as_csv_has_the_facts(found):
    rows = list(csv.DictReader(io.StringIO(summary(found, "csv"))))
    assert list(rows[0]) == ["item", "value"]
    assert {"run", "files", "ranks", "steps", "calls", "collectives", "clocks"} <= {row["item"] for row in rows}


@pytest.mark.parametrize("output_format", ["table", "markdown"])
def test_the_summary_for_people_has_the_tables(found, output_format):
    text = summary(found, output_format, Screen(ascii_only=True))
    for title in ("Where the time went", "Bandwidth", "Who waits, and for whom"):
        assert title in text
    assert text.isascii()


@pytest.mark.slow
def test_a_very_long_table_ends_with_how_many_rows_are_left_out():
    many = pd.DataFrame({"rank": range(10_003)})
    *_, last, said = as_text("numbers", many).splitlines()
    assert last.strip() == "9999"
    assert said.startswith("left out 3 more rows")
    assert as_text("numbers", many, Screen(everything=True)).splitlines()[-1].strip() == "10002"
