"""tests/slow.txt names tests that are there, and leaves something of every file to `make test`."""

from __future__ import annotations

import ast
from collections import defaultdict

from slow_tests import LIST, slow_of
from source import ROOT


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def test_all_of_them_are_there() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for test in LIST.read_text(encoding="utf-8").splitlines():
        path, _, function = test.partition("::")
        named[path].add(function.partition("[")[0])
    missing = {path: functions - functions_of(path) for path, functions in named.items() if (ROOT / path).is_file()}
    missing |= {path: set(functions) for path, functions in named.items() if not (ROOT / path).is_file()}
    assert not any(missing.values()), "run tests/support/slow_tests.py on new durations, or take these lines out"


def test_a_case_of_each_function_stays_unless_it_is_long_as_well() -> None:
    report = "\n".join((
        "0.90s call     tests/a.py::test_x[1]", "0.60s call     tests/a.py::test_x[2]",
        "2.00s call     tests/a.py::test_y[1]", "1.10s call     tests/a.py::test_y[2]",
        "0.34s call     tests/a.py::test_z", "0.70s call     tests/a.py::test_alone",
        "9.00s setup    tests/a.py::test_z", "5.00s call     tests/docs/test_page.py::test_page",
    ))  # fmt: skip
    assert slow_of(report) == [
        "tests/a.py::test_alone", "tests/a.py::test_x[1]", "tests/a.py::test_y[1]", "tests/a.py::test_y[2]",
    ]  # fmt: skip
