"""The examples run as they are, on what is in the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    "read_a_run.py": (["tests/data/nccl-straggler"], ["heatmap.svg", "step.svg", "report.html"]),
    "compare_two.py": (["tests/data/nccl-straggler", "tests/data/nccl-two-hosts"], ["before-and-after.svg"]),
    "read_a_sweep.py": ([], []),
}


def test_all_are_known() -> None:
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    names = {path.name for path in (ROOT / "examples").glob("*.py")} - {"notebooks.py"}
    assert names == set(EXAMPLES)
    assert all(f"[{name}]({name})" in page for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    given, written = EXAMPLES[name]
    arguments = [*given, str(tmp_path)] if given else []
    done = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    for file in written:
        assert (tmp_path / file).stat().st_size > 500


@pytest.mark.slow
@pytest.mark.parametrize("script", ["read_a_run", "compare_two"])
def test_notebooks_are_what_they_are_when_executed_anew(script: str) -> None:
    pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    code = f"import notebooks, nbformat; print(nbformat.writes(notebooks.executed({script!r})))"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT / "examples", env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = nbformat.reads(done.stdout, 4)
    stored = nbformat.read(ROOT / f"examples/{script}.ipynb", 4)
    assert made == stored, "the notebook is stale: python examples/notebooks.py"
    assert sum("svg" in str(cell.get("outputs")) for cell in stored.cells) >= 1
