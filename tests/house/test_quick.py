"""`make quick` needs no torch: with its option no test can import it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "outcome"), [("torch", "1 failed"), ("json", "1 passed")])
def test_an_import_of_torch_fails(library: str, outcome: str, tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(f"def test_one():\n    import {library}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "--without-torch", "-c", os.devnull, str(path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout, done.stdout + done.stderr


def test_make_quick_asks_for_it_and_names_tests_that_exist() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nquick:")
    assert "--without-torch" in lines[1].partition("\n\n")[0]
    names = lines[0].rpartition("\nQUICK = ")[2].replace("\\\n", " ").split()
    assert names
    assert [name for name in names if not (ROOT / f"tests/analysis/test_{name}.py").is_file()] == []
