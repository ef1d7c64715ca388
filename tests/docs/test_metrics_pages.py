"""The pages of docs/metrics/ as a whole: all in the index, all examples recomputed, all columns defined."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from given_runs import analysis_of_run
from worked_examples import FOLDER, Section, examples, parts, sections, solved

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.tables import communication as schema
from commtrace.analysis.core.tables.events import EVENT_SORTS
from commtrace.analysis.core.tables.lab import CAPACITY, LAYERS, TIME_RATIOS

INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.name != "README.md")
SECTIONS = [section for page in PAGES for section in sections(page)]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md")))

# Page -> its title, as the index has them.
INDEXED = {page: title for title, page in re.findall(r"^\| \[(.+?)\]\(([\w-]+)\.md\) \|", INDEX, re.MULTILINE)}

# Columns that repeat what the trace or another table says, or number the rows. Every other one is a formula.
COPIED = {
    *("rank", "cycle", "device", "stream", "name", "start_ns", "dur_ns", "issue_ns", "correlation", "external_id"),
    *("process_group", "pg_ranks", "group_size", "dtype", "in_elems", "out_elems", "seq", "comms_id", "root", "host"),
    *("in_split", "out_split", "description", "place", "role"),
    *("call_id", "collective_id", "step", "collective", "blocks_per_sm", "occupancy_frac", "device_name"),
    *("cell", "run", "model", "parallel", "workers", "batch_size_per_worker", "status", "reason"),
    *("dataset_samples", "shared_cores", "sample_bytes", "parameters_elems", "parameters_bytes"),
}
# And by table: what a training wrote down, and what it was.
COPIED_IN = {
    "activities": {one.shown for one in EVENT_SORTS["activities"].held},
    "participation": {"size_bytes"},
    "cycles": {"run_id"},
    "serving": {"engine"},
    "serving_fits": {"engine"},
    "serving_ranks": {"engine"},
    "serving_floors": {"engine"},
    "training_epochs": set(schema.TRAINING_EPOCHS.columns),
    "layers": set(LAYERS.columns),
    "time_ratios": set(TIME_RATIOS.columns),
    "capacity": set(CAPACITY.columns),
    "training": {"training", "data", "optimizer", "lr_scaling", "global_batch_size", "planned_epochs"},
}
_WEIGHTED = {"blocks_per_sm", "occupancy_frac"}
NOT_COPIED = {
    "activities": {"step"},
    "calls": {"collective"},
    "collectives": {"collective"},
    "kernels": _WEIGHTED,
    "gpus": {"occupancy_frac"},
}
# What one is made by is what the other is made by: a step is broken down by the formulas of a device, and a ceiling
# stands beside the columns of bandwidth.
LIKE = {
    "breakdown_steps": "breakdown",
    "account_steps": "account",
    "mfu_steps": "mfu",
    "regions": "regions_steps",
    "region_classes": "regions",
    "regions_ranks": "regions_steps",
    "idle_steps": "idle",
    "gaps": "idle",
    "contention_kernels": "contention",
    "launches_names": "launches",
    "queue_times": "queue",
    "syncs_steps": "syncs",
    "bandwidth_ceiling": "bandwidth",
    "kernels_devices": "kernels",
    "operators": "kernels",
    "operators_devices": "operators",
    "annotation_times": "kernels",
    "annotation_times_devices": "annotation_times",
    "changed_causes": "comparison",
    "changed_kernels": "comparison",
    "changed_operators": "comparison",
    "changed_shapes": "comparison",
    "changed_regions": "comparison",
}


# The index


def test_the_index_lists_every_page_and_no_other() -> None:
    assert sorted(INDEXED) == PAGES


def test_the_index_has_the_titles_of_the_pages() -> None:
    assert {page: sections(page)[0].title for page in PAGES} == INDEXED


def test_the_index_says_where_each_table_is_explained() -> None:
    explained = [name for row in re.findall(r"^\| \[.*\| (.*) \|$", INDEX, re.MULTILINE)
                 for name in re.findall(r"`(\w+)`", row)]  # fmt: skip
    assert sorted(explained) == sorted(CATALOG)


# The examples


def test_every_example_is_recomputed() -> None:
    """By the test of some topic, once."""
    recomputed = [
        text
        for path in sorted(Path(__file__).parent.glob("test_metrics_*.py"))
        if path.name != Path(__file__).name
        for mark in runpy.run_path(str(path))["test_example"].pytestmark
        for (text,) in (parameter.values for parameter in mark.args[1])
    ]
    assert sorted(recomputed) == sorted(text for (text,) in (parameter.values for parameter in examples(*PAGES)))


def test_no_block_of_a_page_has_another_language() -> None:
    """A misspelt `example` would be skipped."""
    assert set(re.findall(r"^```(\w*)$", TEXT, re.MULTILINE)) == {"example", "formula", "drawing", ""}


def test_the_drawing_shows_its_example() -> None:
    """One character of a drawing is 10,000 ns: `w` waits, `t` transfers, `=` is a bound."""
    [section] = [s for s in SECTIONS if s.blocks("drawing")]
    [drawing] = section.blocks("drawing")
    rows = {part.table: found for part, found in solved(section.blocks("example")[0], analysis_of_run)}
    for row in rows["participation"]:
        [bar] = re.findall(rf"^rank {row['rank']} +\|(.*?)\|", drawing, re.MULTILINE)
        times = [10_000 * count for count in (len(re.match(r"[ .]*", bar)[0]), bar.count("w"), bar.count("t"))]
        assert times == [row["start_ns"], row["wait_ns"], row["transfer_ns"]], f"rank {row['rank']}"
    [collective] = rows["collectives"]
    widths = [10_000 * bar.count("=") for bar in re.findall(r"^\w+ +\|([ =]*)\|", drawing, re.MULTILINE)]
    assert widths == [collective["transfer_low_ns"], collective["transfer_high_ns"]]
    [before] = re.findall(r"^last arrival +\|( *)v", drawing, re.MULTILINE)
    assert 10_000 * len(before) == collective["last_start_ns"]


# The definitions


def _recomputed(found: list[Section]) -> set[tuple[str, str]]:
    """Table and column of everything the examples of these sections make come out."""
    thens = [p for s in found for e in s.blocks("example") for p in parts(e) if p.role == "then"]
    named = {"verdict_of_the_run": "verdicts", "predictions_of_6_ranks": "predictions"}
    named |= {p.table: "comparison" for p in thens if p.table.startswith("comparison_of_")}
    return {(named.get(p.table, p.table), name) for p in thens for row in p.rows for name in row}


@pytest.mark.parametrize("section", [pytest.param(s, id=s.title) for s in SECTIONS if s.blocks("formula")])
def test_every_formula_has_an_example_in_its_section(section: Section) -> None:
    defined = {line.partition(" = ")[0].strip() for block in section.blocks("formula")
               for line in block.splitlines() if re.match(r"\w+ +=", line)}  # fmt: skip
    assert defined, f"{section.title}: a formula reads `name = ...`"
    missing = defined - {name for _, name in _recomputed([section])}
    assert not missing, f"{section.title}: no example in this section computes {sorted(missing)}"


@pytest.mark.parametrize("table", [pytest.param(e.schema, id=e.name) for e in CATALOG.values()])
def test_every_measured_column_has_a_formula_and_an_example(table: schema.Schema) -> None:
    copied = COPIED - NOT_COPIED.get(table.name, set()) | COPIED_IN.get(table.name, set())
    measured = set(table.columns) - copied
    undefined = {n for n in measured if f"`{n}`" not in TEXT and not re.search(rf"^{n} +=", TEXT, re.MULTILINE)}
    assert not undefined, (
        f"docs/metrics/ does not define {sorted(undefined)} of table {table.name}: write a formula and an example for "
        "them in the section that the table's TableEntry names"
    )
    shown_as = {table.name, LIKE.get(table.name, "kinds"), LIKE.get(LIKE.get(table.name, ""), "kinds")}
    missing = measured - {name for of, name in _recomputed(SECTIONS) if of in shown_as}
    assert not missing, f"no example of docs/metrics/ computes {sorted(missing)} of table {table.name}"


def test_every_column_they_name_exists() -> None:
    columns = {name for entry in CATALOG.values() for name in entry.schema.columns}
    units = r"ns|us|bytes|elems|frac|gb_per_s"
    named = set(re.findall(rf"`(\w+_(?:{units})|\w+_us_\w+)`", TEXT))
    assert not named - columns
