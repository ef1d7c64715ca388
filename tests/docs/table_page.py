"""docs/tables.md from the schemas. `python tests/docs/table_page.py`, in the root of the project, writes it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tables.md"

COMMANDS = {
    "breakdown": "breakdown",
    "breakdown_steps": "breakdown --by step",
    "calls": "calls",
    "collectives": "collectives",
    "participation": "participation",
    "bandwidth": "bandwidth",
    "bandwidth_ceiling": "bandwidth --ceiling FILE",
    "fits": "fits",
    "ranks": "ranks",
    "hosts": "hosts",
    "lateness": "lateness",
    "hangs": "hangs",
    "clocks": "clocks",
    "verdicts": "verdicts",
    "kernels": "kernels",
    "kernels_devices": "kernels --rank all",
    "operators": "kernels --by operator",
    "operators_devices": "kernels --by operator --rank all",
    "gpus": "gpus",
    "comparison": "compare --by measure",
    "changed_kernels": "compare --by kernel",
    "changed_operators": "compare --by operator",
    "scaling": "scaling",
    "subtraction": "subtraction",
    "mistakes": "subtraction --mistake all",
    "training": "training",
    "training_epochs": "training --by epoch",
}
ACROSS_RUNS = {
    "timings": "`analysis.analyse_sweep(SWEEP).timings`",
    "scaling": "`analysis.analyse_sweep(SWEEP).scaling`",
    "subtraction": "`analysis.analyse_sweep(SWEEP).subtraction`",
    "mistakes": "`analysis.analyse_sweep(SWEEP).mistakes(NAMES)`",
}
OF_TRAININGS = ("training", "training_epochs")
OF_TWO_SIDES = ("comparison", "changed_kernels", "changed_operators")
IN_SUMMARY = ("breakdown", "bandwidth", "ranks", "verdicts")

_INTRO = """<!-- Generated from analysis/core/tables. Do not edit: run `python tests/docs/table_page.py`. -->

# Tables

Every table the analysis makes, with all its columns. [metrics/](metrics/README.md) explains what the numbers mean and
how they are computed.

- **From the command line**, `python -m analysis COMMAND RUN` prints one table; the command stands below each heading.
  `--format csv` and `--format json` give every column listed here, in this order, as full integers. `--format table`
  (the default), `--format markdown` and `--format latex` are for people: the main columns, in units that keep the
  numbers short. In CSV, control characters in text are written out, and what a spreadsheet would run as a formula (a
  text, or what follows a `;` in it, that begins with `=`, `+`, `-` or `@`, also in full width, or with `'` before one
  of these) stands after one more `'`; JSON has names as they are.
  Without a command, `python -m analysis RUN` prints the summary: what was read, then breakdown, bandwidth, ranks and
  verdicts. As JSON it has `traces`, too: a row per file, with `read_bytes` and `not_understood_bytes`.
- **In Python**, `analysis.analyse(RUN)` has an attribute of each table's name, a pandas DataFrame, and
  `analysis.analyse_sweep(SWEEP)` those across runs; for those of operators it is `analysis.analyse(RUN, details=True)`,
  which takes longer to read.
  `analysis.compare(A, B)` has those of two sides, each one run or a list of captures. `workers`, `cache` and
  `keep_going` are what `--workers`, `--cache` and `--keep-going` are, but that nothing is kept unless asked for:
  `cache=True` keeps it beside the traces, or of those of other users in `~/.cache/commtrace`. In the installed
  distribution the command is `commtrace` and the package `commtrace.analysis`.
- **SWEEP** is a sweep directory, run directories of a sweep, or a CSV of timings; one or more of them.
- **RUNS** are run directories of `python -m profiling train --epochs`, or folders that hold some; in Python,
  `analysis.analyse_training(RUNS)` has their tables.

The unit is the last word of a column's name: `_ns` nanoseconds, `_us` microseconds, `_bytes` bytes, `_elems` elements,
`_gb_per_s` 1e9 bytes per second, `_frac` a fraction from 0 to 1. A time called `start`, `issue` or `end` is a point on
that rank's clock; other times are durations.

`int64` columns always hold a number. `Int64`, `Float64`, `boolean` and `string` columns hold NA where a value is not
known: an empty field in CSV, `null` in JSON, `-` in tables for people.
"""


def page() -> str:
    """The whole of docs/tables.md."""
    from analysis.core.tables.communication import PUBLISHED

    contents = "\n".join(f"- [{table.name}](#{table.name}): one row per {table.rows}" for table in PUBLISHED)
    tables = "\n".join(_section(table.name, table.rows, table.columns) for table in PUBLISHED)
    return f"{_INTRO}\n{contents}\n\n{tables}"


def _section(name: str, rows: str, columns: dict[str, tuple[str, str]]) -> str:
    lines = [f"| `{column}` | {dtype} | {_escaped(meaning)} |" for column, (dtype, meaning) in columns.items()]
    return "\n".join([f"## {name}", "", f"One row per {rows}. {_printed_by(name)}", "",
                      "| column | dtype | meaning |", "|---|---|---|", *lines, ""])  # fmt: skip


def _printed_by(name: str) -> str:
    if name in OF_TRAININGS:
        return (
            f"Printed by `python -m analysis {COMMANDS[name]} RUNS`; in Python it is "
            f"`analysis.analyse_training(RUNS).{name}`."
        )
    if name in ACROSS_RUNS:
        printed = (
            f"Printed by `python -m analysis {COMMANDS[name]} SWEEP`" if name in COMMANDS else "No command prints it"
        )
        return f"{printed}; in Python it is {ACROSS_RUNS[name]}."
    if name in OF_TWO_SIDES:
        return f"Printed by `python -m analysis {COMMANDS[name]} A B`; in Python it is `analysis.compare(A, B).{name}`."
    if name not in COMMANDS:
        return f"No command prints it; in Python it is `analysis.analyse(RUN).run.{name}`."
    also = ", and in the summary" if name in IN_SUMMARY else ""
    return f"Printed by `python -m analysis {COMMANDS[name]} RUN`{also}."


def _escaped(meaning: str) -> str:
    return meaning.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # a script's own folder is on the path, the project is not
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
