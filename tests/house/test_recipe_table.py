"""The recipe for a table in CONTRIBUTING.md, followed in a copy of the project."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source import ROOT

RUN = "traces/resnet18-ddp-w2"
SCHEMA = """

GROUP_CALLS = Schema("group_calls", "process group", {
    "process_group": GROUP,
    "calls": ("int64", "communication calls in it, of all ranks"),
})  # fmt: skip
"""
METRIC = '''"""How many calls every process group had."""

import pandas as pd

from ..core.tables.communication import GROUP_CALLS


def group_calls(calls: pd.DataFrame) -> pd.DataFrame:
    """One row per process group: how many calls."""
    counts = calls["process_group"].value_counts(dropna=False, sort=False)
    return GROUP_CALLS.frame({"process_group": group, "calls": int(count)} for group, count in counts.items())
'''
PROPERTY = '''    @cached_property
    def group_calls(self) -> pd.DataFrame:
        """One row per process group: how many calls."""
        return group_calls(self.calls)

'''
ENTRY = """    TableEntry(
        communication.GROUP_CALLS,
        Topic.communication,
        "How many calls every process group had.",
        "calls.md#what-is-known-of-a-call",
        command="group_calls",
    ),
"""


def steps() -> list[str]:
    """The files that the recipe names, a step each."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page.partition("### A table with its column docs and command\n")[2].partition("\n#")[0]
    return re.findall(r"^\d\. `([\w/.]+)`", recipe, re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the recipe was followed."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("analysis", "docs", "tests", RUN):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(ROOT / "pyproject.toml", root)
    _insert(root, "analysis/core/tables/communication.py", SCHEMA, before="")
    (root / "analysis/metrics/group_calls.py").write_text(METRIC, encoding="utf-8")
    _insert(root, "analysis/results/analysis.py", PROPERTY, before="    @cached_property\n    def matches(")
    _insert(root, "analysis/results/analysis.py", "from ..metrics.group_calls import group_calls\n",
            before="from ..metrics.hangs import")  # fmt: skip
    _insert(root, "analysis/catalog.py", ENTRY, before="    TableEntry(\n        communication.COLLECTIVES,")
    return root


def _insert(root: Path, file: str, text: str, *, before: str) -> None:
    """At the end where nothing is given that stands behind it."""
    content = (root / file).read_text(encoding="utf-8")
    assert content.count(before) == 1 or not before, f"{file}: {before!r}"
    (root / file).write_text(content.replace(before, text + before) if before else content + text, encoding="utf-8")


def python(root: Path, *arguments: str) -> str:
    """What a Python process prints in that folder."""
    done = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_recipe_names_the_files_that_change(copy: Path) -> None:
    changed = {
        str(path.relative_to(copy))
        for path in (copy / "analysis").rglob("*.py")
        if not (old := ROOT / path.relative_to(copy)).is_file() or old.read_bytes() != path.read_bytes()
    }
    assert len(steps()) <= 4
    assert len(changed) == len(steps())
    for file in changed:
        assert any(file == step or (step.endswith("/") and file.startswith(step)) for step in steps()), file


def test_the_table_has_a_command(copy: Path) -> None:
    rows = list(csv.DictReader(python(copy, "-m", "analysis", "group_calls", "-f", "csv", RUN).splitlines()))
    counted = list(csv.DictReader(python(copy, "-m", "analysis", "calls", "-f", "csv", RUN).splitlines()))
    assert sum(int(row["calls"]) for row in rows) == len(counted) > 0
    assert {row["process_group"] for row in rows} == {row["process_group"] for row in counted}


def test_help_lists_the_command(copy: Path) -> None:
    assert re.search(r"^ +group_calls +How many calls", python(copy, "-m", "analysis", "--help"), re.MULTILINE)


@pytest.mark.slow
def test_the_pages_and_the_tests_of_the_catalog_know_it(copy: Path) -> None:
    python(copy, "tests/docs/table_page.py")
    page = (copy / "docs/tables.md").read_text(encoding="utf-8")
    assert "| `calls` | int64 | communication calls in it, of all ranks |" in page
    assert "`commtrace group_calls RUN`" in page
    assert "`group_calls`" in (copy / "docs/metrics/README.md").read_text(encoding="utf-8")
    tests = ("tests/analysis/test_catalog.py", "tests/docs/test_tables.py", "-k", "group_calls")
    assert "0 passed" not in python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
