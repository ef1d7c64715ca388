"""Outside tests/shared no test depends on a path outside the repository, nor is one skipped for want of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(
    path
    for path in TESTS.rglob("*.py")
    if (path.name.startswith("test_") or path.name == "conftest.py")
    and path.parent.name != "shared"
    and path != Path(__file__)
)


def reaching_out(tree: ast.Module, depth: int) -> list[str]:
    """Expressions that lead above the root, in a module that stands `depth` folders below it."""
    return [ast.unparse(node) for node in ast.walk(tree) if _leads_out(node, depth)]


def _leads_out(node: ast.AST, depth: int) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in ("parent", "parents"):
        return ast.unparse(node.value) == "ROOT"
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
        steps = node.slice
        return "__file__" in ast.unparse(node) and isinstance(steps, ast.Constant) and int(str(steps.value)) > depth
    if isinstance(node, ast.ImportFrom):
        return node.module == "beside_checkout"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("../shared")


def test_make_runs_every_folder_of_tests() -> None:
    (line,) = [
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if line.startswith("TESTS = ")
    ]
    named = set(line.removeprefix("TESTS = ").split())
    folders = {path.parent.relative_to(ROOT).as_posix() for path in TESTS.rglob("test_*.py")}
    assert named == (folders - {"tests", "tests/installed"}) | {"tests/test_*.py"}
    assert "tests/installed" in (ROOT / "Makefile").read_text(encoding="utf-8"), "what pip installs, in its own target"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_looks_outside_the_repository(path: Path) -> None:
    depth = len(path.relative_to(ROOT).parts) - 1
    assert reaching_out(ast.parse(path.read_text(encoding="utf-8")), depth) == []


@pytest.mark.parametrize(
    "source",
    [
        "SHARED = Path(__file__).resolve().parents[3] / 'shared'",
        "x = ROOT.parent / 'shared'",
        "from beside_checkout import TRACES",
        "x = Path('../shared/traces')",
    ],
)
def test_what_this_rests_on_sees_the_ways_out(source: str) -> None:
    assert len(reaching_out(ast.parse(source), 2)) == 1
    assert not reaching_out(ast.parse("ROOT = Path(__file__).resolve().parents[2]"), 2)
