"""docs/tables.md, the index of definitions, and the attributes of `Analysis`, from the catalog.

`python tests/docs/table_page.py`, in the root of the project, writes them.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.analysis.core.declaring import TableEntry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "tables.md"
INDEX = DOCS / "metrics" / "README.md"
ATTRIBUTES = ROOT / "analysis" / "results" / "table_attributes.py"

_INTRO = """<!-- Generated from the tables' declarations. Do not edit: run `python tests/docs/table_page.py`. -->

# Tables

Every table the analysis makes, with all its columns. [metrics/](metrics/README.md) explains what the numbers mean and
how they are computed.

- **From the command line**, `commtrace table` lists all tables, with a name it prints one; the command stands below
  each heading. Without a command, `commtrace RUN` prints one screen, and with `--all` what was read,
  and the main tables in full.
- **For programs**, `--format csv` and `--format json` give every column listed here, in this order, as full integers.
  The summary as JSON has `traces` as well: a row per file, with `read_bytes` and `not_understood_bytes`. JSON has names
  as they are. In CSV, control characters in text are written out. What a spreadsheet would run as a formula (a text, or
  what follows a `;` in it, that begins with `=`, `+`, `-` or `@`, also in full width, or with `'` before one of these)
  gets one more `'` in front.
- **For people**, `--format table` (the default), `--format markdown` and `--format latex` show the main columns, in
  units that keep the numbers short.
- **Rows** are chosen with `--where CONDITION`, sorted with `--sort COLUMN` and cut with `--top N`, in every format:
  `commtrace table calls RUN --where rank=3 --where 'dur_ns>1ms' --sort dur_ns --top 10`. A condition is a column, one
  of `=`, `!=`, `<`, `<=`, `>`, `>=` and `~` (contains, whatever the case), and a value: a number, for `_ns` also with
  its unit (`1ms`), for `_frac` in percent (`50%`), a text, `true`, or `NA` for what is not known. Numbers are sorted
  from the largest, texts from A; `COLUMN:asc` and `COLUMN:desc` choose. `--help` of a command explains its columns.
- **Columns** are chosen with `--columns A,B,C`, in this order and in every format, also those that people do not see
  otherwise. `--pivot rows=A,columns=B,values=C,D` makes a [cross table](reports.md), as reports have it: a row for each
  A, columns for each B, and C and D in its cells. Each side may have several columns. Numbers ascend and texts keep
  their order, unless `--sort` names a column of that side; `--top` counts rows of the cross table. A cell without a row
  is NA; several rows for one cell are an error that names the column that tells them apart. CSV has a column `B=32/C`
  for each value, JSON has `cells` in each row, LaTeX and Markdown have a header over headers.
- **In Python**, `commtrace.analyse(RUN)` has an attribute of each table's name, a pandas DataFrame. With
  `details=False` a run is read faster, but without operators, so without those tables of which they are the rows, and
  without what a change would gain. `commtrace.analyse_sweep(SWEEP)` has the
  tables across runs, `commtrace.compare(A, B)` those of two sides, each one run or a list of captures, and
  `commtrace.run_trend(A, B, C)` that of a series of runs. `workers`, `cache` and `keep_going` are what `--workers`,
  `--cache` and `--keep-going` are, except that nothing is kept unless asked for: `cache=True` keeps it beside the
  traces or, if these are another user's, in `~/.cache/commtrace`.
- **DIR** is a run directory, also one that is still being written; in Python, `commtrace.analyse_cycles(DIR)` has the
  table of its cycles.
- **Its meaning** goes with a table: `table.attrs["columns"]` has the meaning of each column, with its unit, and
  `table.attrs["table"]` its name. pandas keeps them when it filters, sorts or copies.
- **SWEEP** is a sweep directory, run directories of a sweep, or a CSV of timings; one or more of them.
- **RUNS** are run directories of `commtrace train --epochs`, or folders of them; in Python,
  `commtrace.analyse_training(RUNS)` has their tables.
- **DUMPS** are dumps of PyTorch's flight recorder, or folders of them; in Python,
  `commtrace.find_hang(DUMPS)` has their tables.
- **SNAPSHOTS** are snapshots of torch's memory allocator, or folders of them; in Python,
  `commtrace.analyse_snapshots(SNAPSHOTS)` has their tables.
- **MEASURED** is a folder that `commtrace layers` or `commtrace capacity` wrote; in Python,
  `commtrace.analyse_machine(MEASURED)` has their tables.
- **RUN_A RUN_B** are runs, or snapshots of runs, with different batches; in Python, `commtrace.fit_batches` takes what
  `analyse` or `analyse_snapshots` gives for each.

The unit is the last word of a column's name: `_ns` nanoseconds, `_us` microseconds, `_bytes` bytes, `_elems` elements,
`_gb_per_s` 1e9 bytes per second, `_frac` a fraction from 0 to 1. A time called `start`, `issue` or `end` is a point on
that rank's clock; other times are durations.

`int64` columns always hold a number. `Int64`, `Float64`, `boolean` and `string` columns hold NA where a value is not
known: an empty field in CSV, `null` in JSON, `-` in tables for people.
"""


def page() -> str:
    """The whole of docs/tables.md."""
    from commtrace.analysis.catalog import CATALOG

    contents = "\n".join(f"- [{name}](#{name}): one row per {entry.schema.rows}" for name, entry in CATALOG.items())
    tables = "\n".join(_section(entry) for entry in CATALOG.values())
    return f"{_INTRO}\n{contents}\n\n{tables}"


def headings() -> dict[str, str]:
    """Every heading of the pages on metrics, by what a link to it says: `breakdown.md#steps`."""
    return {
        f"{page.name}#{re.sub(r'[^a-z0-9_ -]', '', heading.lower()).replace(' ', '-')}": heading
        for page in sorted((DOCS / "metrics").glob("*.md"))
        for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


def index() -> str:
    """docs/metrics/README.md with the tables that each page explains."""
    from commtrace.analysis.catalog import CATALOG

    def with_tables(row: re.Match[str]) -> str:
        explained = [f"`{name}`" for name, entry in CATALOG.items() if entry.section.startswith(f"{row[2]}#")]
        return f"{row[1]}| {', '.join(explained)}{' ' if explained else ''}|"

    rows = re.compile(r"^(\| \[.*?\]\(([a-z-]+\.md)\) \| .*? )\|.*\|$", re.MULTILINE)
    return rows.sub(with_tables, INDEX.read_text(encoding="utf-8"))


_ATTRIBUTES = '''"""The declared tables of a run as attributes, for editors and type checkers.

Generated by `python tests/docs/table_page.py`. Do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


class TableAttributes:
    """What `Analysis` has by the names of tables."""
'''


def attributes() -> str:
    """The module of the attributes of `Analysis` that hold declared tables."""
    from commtrace.analysis.catalog import CATALOG

    return _ATTRIBUTES + "".join(
        f'\n    {entry.name}: pd.DataFrame\n    """{(inspect.getdoc(entry.make) or "").splitlines()[0]}"""\n'
        for entry in CATALOG.values()
        if entry.make is not None
    )


def _section(entry: TableEntry) -> str:
    columns = entry.schema.columns.items()
    lines = [f"| `{column}` | {dtype} | {_escaped(meaning)} |" for column, (dtype, meaning) in columns]
    about = f"One row per {entry.schema.rows}. {_printed_by(entry)}"
    explained = f"Explained in [{headings()[entry.section]}](metrics/{entry.section})."
    return "\n".join([f"## {entry.name}", "", about, explained, "",
                      "| column | dtype | meaning |", "|---|---|---|", *lines, ""])  # fmt: skip


def _printed_by(entry: TableEntry) -> str:
    also = ", and in the summary" if entry.title and entry.of.value == "RUN" and not entry.options else ""
    if entry.command is None:
        return f"No command prints it; in Python it is `{_in_python(entry)}`."
    printed = f"Printed by `commtrace {entry.command} {entry.of.value}`{also}"
    return f"{printed}." if entry.of.value == "RUN" else f"{printed}; in Python it is `{_in_python(entry)}`."


def _in_python(entry: TableEntry) -> str:
    holder = {
        "RUN": "analyse(RUN)",
        "RUN...": "analyse(RUN).run",
        "DIR": "analyse_cycles(DIR)",
        "SWEEP": "analyse_sweep(SWEEP)",
        "RUNS": "analyse_training(RUNS)",
        "A B": "compare(A, B)",
        "A B C...": "run_trend(A, B, C)",
        "DUMPS...": "find_hang(DUMPS)",
        "SNAPSHOTS...": "analyse_snapshots(SNAPSHOTS)",
        "MEASURED": "analyse_machine(MEASURED)",
        "RUN_A RUN_B...": "fit_batches(A, B, batches=(32, 64))",
    }[entry.of.value]
    return f"commtrace.{holder}.{entry.name}" + ("(NAMES)" if entry.name == "mistakes" else "")


def _escaped(meaning: str) -> str:
    return meaning.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # a script's own folder is on the path, the project is not
    for document, text in ((PAGE, page()), (INDEX, index()), (ATTRIBUTES, attributes())):
        document.write_text(text, encoding="utf-8")
        print(f"wrote {document.relative_to(ROOT)}")
