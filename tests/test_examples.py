"""The examples run as they are, on what is in the repository."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commtrace import analyse

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    "read_a_run.py": (["tests/data/nccl-straggler"], ["heatmap.svg", "step.svg", "report.html"]),
    "compare_two.py": (["tests/data/nccl-straggler", "tests/data/nccl-two-hosts"], ["before-and-after.svg"]),
    "read_a_sweep.py": ([], []),
}


def test_all_are_known() -> None:
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    names = {path.name for path in (ROOT / "examples").glob("*.py")} - {"notebooks.py"}
    assert names == {*EXAMPLES, "slow_loader.py"}
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


def of_slow_loader(run: Path) -> None:
    """Rank 1 makes the other wait, because of its loader."""
    found = analyse(run)
    assert found.ranks.set_index("rank")["caused_wait_frac"].idxmax() == 1
    late = found.lateness[found.lateness["rank"] == 1]
    assert (late["because"] == "data").mean() > 0.5


@pytest.mark.slow
def test_the_bundled_run_has_a_slow_loader() -> None:
    of_slow_loader(ROOT / "traces/slow-loader-w2")
    headline = analyse(ROOT / "traces/slow-loader-w2").summary()
    assert "It waits for its data loader" in " ".join(headline.split())


@pytest.mark.slow
def test_the_slow_loader_is_captured_as_its_docstring_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "traces/README.md").read_text(encoding="utf-8")
    [line] = [line.strip() for line in page.splitlines() if "examples/slow_loader.py" in line and "torchrun" in line]
    assert line in (ROOT / "examples/slow_loader.py").read_text(encoding="utf-8")
    command = line.replace("torchrun", f"{Path(sys.executable).parent}/torchrun", 1).replace(
        "examples/", f"{ROOT}/examples/"
    )
    done = subprocess.run(shlex.split(command), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of_slow_loader(tmp_path / "traces/slow-loader-w2")
