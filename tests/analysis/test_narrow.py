"""Every table of the catalog on narrow terminals, whatever its values are: it fits, and its rows can be told apart."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from simulator import PRESETS, simulate
from terminals import ESCAPES, HOSTILE, on_a_terminal, widest

from commtrace import analyse
from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import TableEntry, Worst
from commtrace.analysis.core.escaping import printable
from commtrace.analysis.core.schema import PlainTable
from commtrace.analysis.render import as_text
from commtrace.analysis.render.fitting import around, kernel_label, shortened_kernel, shortened_paths
from commtrace.analysis.render.people import fact_lines
from commtrace.analysis.render.screen import Screen
from commtrace.command_line import parser_for
from commtrace.registry import COMMANDS, table_commands

_CELL = {"model", "parallel", "workers", "batch_size_per_worker"}
KEYS = {  # what tells the rows of a table apart, where the first column that stays does not
    "breakdown": {"rank", "device"},
    "breakdown_steps": {"rank", "device", "step"},
    "calls": {"rank", "collective"},
    "participation": {"collective_id", "rank"},
    "bandwidth": {"process_group", "collective", "size_bytes"},
    "bandwidth_ceiling": {"process_group", "collective", "size_bytes"},
    "fits": {"process_group", "collective"},
    "verdicts": {"process_group", "collective", "size_bytes"},
    "lateness": {"collective_id", "rank"},
    "kernels": {"name"},
    "kernels_devices": {"rank", "device", "name"},
    "operators": {"operator"},
    "operators_devices": {"rank", "device", "operator"},
    "annotation_times": {"annotation"},
    "annotation_times_devices": {"rank", "device", "annotation"},
    "scaling": _CELL,
    "subtraction": _CELL,
    "mistakes": _CELL | {"mistake"},
    "training_epochs": {"run", "after_epochs"},
}
LONGEST_NAME = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
NAMES = [*HOSTILE, LONGEST_NAME, "0", "all_reduce", "reduce_scatter"]


def any_table(entry: TableEntry, seed: int) -> PlainTable:
    """A few rows of whatever values the dtypes allow."""
    draw = random.Random(seed)

    def value(column: str, dtype: str) -> Any:
        if draw.random() < 0.1 and dtype[0] in "IFbs":
            return None
        if dtype == "string":
            return draw.choice(NAMES)
        if dtype.lower().startswith("int"):
            return draw.randrange(1000) if not column.endswith("_ns") else draw.randrange(10 ** draw.randrange(1, 14))
        return draw.random() if column.endswith("_frac") else draw.choice((True, False)) if dtype == "boolean" else 1e3

    columns = {column: [value(column, dtype) for _ in range(6)] for column, (dtype, _) in entry.schema.columns.items()}
    return PlainTable(columns, {column: dtype for column, (dtype, _) in entry.schema.columns.items()})


@pytest.mark.parametrize("entry", CATALOG.values(), ids=CATALOG)
def test_whatever_the_values_are_it_fits(entry: TableEntry) -> None:
    for width in (60, 61, 79, 80, 81, 100, 120, 160, 200, 240):
        screen = Screen(width=width, colour=width % 2 == 0, ascii_only=width % 20 == 0)
        text = as_text(entry.name, any_table(entry, width), screen)
        assert widest(ESCAPES.sub("", text)) <= width, text
        assert width != 80 or text == as_text(entry.name, any_table(entry, width), screen)


@pytest.mark.parametrize("name", KEYS)
def test_rows_can_be_told_apart_on_a_narrow_terminal(name: str) -> None:
    for width in (80, 120):
        for seed in range(5):
            text = as_text(name, any_table(CATALOG[name], seed), Screen(width=width))
            below = " ".join(text.partition("no room for ")[2].split()).removesuffix(" (--all shows all)")
            left_out = {re.sub(r" \(.*\)", "", header).replace(" ", "_") for header in below.split(", ")}
            assert not left_out & {key.removesuffix("_bytes") for key in KEYS[name]}, (width, text)


@pytest.mark.parametrize("width", [60, 80])
def test_long_names_of_groups_do_not_push_facts_away(width: int) -> None:
    for name in map(printable, HOSTILE):
        facts = [("run", "x"), (f"group {name}", "192 calls (ranks 0-63)")]
        text = fact_lines(facts, max(len(item) for item, _ in facts), Screen(width=width))
        assert widest(text) <= width
        assert "192 calls (ranks 0-63)" in text


def test_a_kernel_loses_its_arguments_before_its_middle() -> None:
    kernels = [
        f"ncclDevKernel_AllReduce_Sum_{dtype}_RING_LL(ncclDevKernelArgsStorage<4096ul>)" for dtype in ("f32", "f64")
    ]
    assert [shortened_kernel(kernel, 50) for kernel in kernels] == [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)",
        "ncclDevKernel_AllReduce_Sum_f64_RING_LL(...)",
    ]
    assert len({shortened_kernel(kernel, 40) for kernel in kernels}) == 2
    assert shortened_kernel(kernels[0], 200) == kernels[0]
    for name in (*HOSTILE, ")", "a)", "f()(x)", LONGEST_NAME):
        assert all(cell_len(shortened_kernel(name, width)) <= width for width in range(1, 120))


@pytest.mark.parametrize(
    ("waits", "smallest", "row"),
    [([5, 900, 6, 5], False, 1), ([900, 901, 902], False, None), ([90, 91, 20], True, 2), ([90, 91, 80], True, None),
     ([3, 8], False, 1), ([7], False, None), ([None, None], False, None), ([0, 0, 0], False, None)],
)  # fmt: skip
def test_a_value_stands_out_where_it_is_far_from_the_others(
    waits: list[int | None], smallest: bool, row: int | None
) -> None:
    place = Worst("wait_ns", smallest=smallest).place(PlainTable({"wait_ns": list(waits)}, {"wait_ns": "Int64"}))
    assert place == (None if row is None else (row, "wait_ns"))


@pytest.fixture(scope="module")
def of_24(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of 24 ranks, of which rank 2 is slow."""
    from dataclasses import replace

    folder = tmp_path_factory.mktemp("runs") / "many"
    simulate(replace(PRESETS["straggler"], hosts=3, gpus=8)).write(folder)
    return folder


@pytest.mark.slow
def test_24_ranks_on_a_terminal_show_the_culprit(of_24: Path) -> None:
    assert "Rank 2 costs" in analyse(of_24, workers=1).verdict
    screen = ESCAPES.sub("", on_a_terminal(80, "summary", "--no-cache", str(of_24)))
    assert widest(screen.partition("Everything: ")[0]) <= 80  # then comes the path, to be copied
    assert len(screen.splitlines()) < 40
    assert "Rank 2 costs" in " ".join(screen.partition("A step takes")[0].split())
    assert "rank 2 as fast as the others" in screen
    waits = ESCAPES.sub("", on_a_terminal(80, "ranks", "--no-cache", str(of_24)))
    assert widest(waits) <= 80
    assert re.split(r" ─+\n", waits)[1].split()[0] == "2"
    for word in ("min", "median", "max", "8 of 24 rows"):
        assert word in waits


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_only() -> None:
    text = on_a_terminal(80, "tests/data/nccl-straggler", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert text.isascii()
    assert widest(ESCAPES.sub("", text)) <= 80


@pytest.mark.parametrize("command", ["", *COMMANDS, *(row.name for row in table_commands().values())])
def test_help_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [*command.split(), "--help"]
    parser_for(words).main(args=words, prog_name="commtrace", standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    captures = command in COMMANDS and COMMANDS[command].captures  # their examples are long, and to be copied whole
    examples = [line for line in lines if captures and line.startswith(("    commtrace ", "    torchrun "))]
    assert widest("\n".join(line for line in lines if line not in examples)) <= 80


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_sentence_without_room_stands_below_its_row_in_full(width: int) -> None:
    rows = any_table(CATALOG["verdicts"], 3)
    rows.columns["because"] = [f"{number} ms of waiting for rank {number}, word by word " * 4 for number in range(6)]
    text = as_text("verdicts", rows, Screen(width=width))
    assert widest(text) <= width
    below = " ".join(text.split())
    for number, because in enumerate(rows.columns["because"]):
        assert " ".join(because.split()) in below, number


def test_advice_is_wrapped_and_never_loses_its_middle() -> None:
    rows = any_table(CATALOG["remedies"], 5)
    rows.columns["remedy"], rows.columns["concerned_frac"] = ["no_idle"] * 6, [0.5] * 6
    for column in ("what", "how"):
        rows.columns[column] = [
            f"{column} {number}: fewer synchronisations, a faster data loader" for number in range(6)
        ]
    for width in (60, 80, 200):
        text = as_text("remedies", rows, Screen(width=width))
        assert "..." not in text
        for number in range(6):
            assert f"how {number}: fewer synchronisations, a faster data loader" in " ".join(text.split())


def test_what_says_nothing_is_said_in_a_line() -> None:
    """Rows of 0.0 %, columns without a value, and one sentence for all rows; with --all they are there."""
    path = any_table(CATALOG["critical_path"], 1)
    path.columns["share_frac"] = [0.7, 0.2999, 0.0, 0.0001, None, -0.0]
    short = as_text("critical_path", path, Screen(width=80))
    assert "left out 3 rows of 0.0 % (--all shows all)" in short
    assert len(as_text("critical_path", path, Screen(everything=True)).splitlines()) > len(short.splitlines())
    clocks = any_table(CATALOG["clocks"], 1)
    clocks.columns["basis"] = ["raw clocks agree"] * 6
    clocks.columns["host"] = [None] * 6
    text = as_text("clocks", clocks, Screen(width=60))
    assert text.count("raw clocks agree") == 1
    assert "basis of all rows: raw clocks agree" in text
    assert "empty columns: host" in text
    assert as_text("clocks", clocks).count("raw clocks agree") == 6


@pytest.mark.slow
def test_no_number_is_minus_zero() -> None:
    for entry in CATALOG.values():
        rows = any_table(entry, 2)
        for column in rows.columns:
            if rows.is_number(column) and not rows.is_integer(column) and rows.dtypes[column] != "boolean":
                rows.columns[column] = [-1e-9] * 6
            elif column.endswith("_ns"):
                rows.columns[column] = [-1] * 3 + [10**9] * 3
        words = as_text(entry.name, rows, Screen(everything=True)).split()
        assert not [word for word in words if re.fullmatch(r"-0(\.0+)?", word)], entry.name


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_columns_that_matter_are_there(width: int) -> None:
    """Where the time went: compute, communication and idle on every terminal; verdicts with their sentence."""
    values = any_table(CATALOG["breakdown"], 4)
    for column in values.columns:
        if column.endswith("_ns"):
            values.columns[column] = [200_000_000] * 6
    values.columns["device"] = [str(number) for number in range(6)]
    head = " ".join(as_text("breakdown", values, Screen(width=width)).partition("─")[0].split())
    for word in ("window", "compute", "idle", "wait", "transfer"):
        assert word in head, (word, head)


def test_a_name_is_shortened_and_not_the_number_beside_it() -> None:
    for width in range(40, 120):
        text = around("  rank 2 (", "ip-172-31-16-248.us-east-2.compute.internal", "): 995.5 ms, 100% of it", width)
        assert text.startswith("  rank 2 (ip") or "(..." in text
        assert text.endswith("): 995.5 ms, 100% of it")
        assert cell_len(text) <= max(width, 37)


def test_paths_that_end_alike_are_told_apart() -> None:
    paths = [f"Model > {place} > Compiled Region: {place}/0 > CompiledGraph" for place in range(3)]
    short = shortened_paths([*paths, "Model > Loss"], [40] * 4)
    assert short == [f"... > ...led Region: {place}/0 > CompiledGraph" for place in range(3)] + ["Model > Loss"]
    assert shortened_paths(paths[:1], [40]) == ["... > CompiledGraph"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(Args<4096ul>)", "...el_ReduceScatter_Sum_bf16_RING_LL"),
        ("void at::vectorized_kernel<4, at::FillFunctor<int>, a>(int, int)", "vectorized_kernel<...unctor<int>, a>"),
        ("void at::a_kernel_with_quite_a_long_name_indeed<float, 1, 128>(int)", "...ith_quite_a_long_name_indeed<...>"),
        ("short_kernel(int)", "short_kernel(int)"),
    ],
)
def test_kernels_in_pictures_lose_arguments_and_then_their_beginning(name: str, short: str) -> None:
    assert kernel_label(name, 36) == short
    assert cell_len(short) <= 36
