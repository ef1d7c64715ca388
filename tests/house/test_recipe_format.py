"""The recipe for an input format in CONTRIBUTING.md, followed in a copy of the package."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source import ROOT

READER = '''"""A small table of kernels, as a profiler of somebody else might write it: `name,start_us,dur_us`."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from ..core.kinds import kernel_kind
from ..errors import DamagedTrace
from ..recording.building import columns_of, events_of, header_of
from ..recording.options import Progress, ReadOptions
from ..recording.recording import Extent, RawTrace, raw_trace
from .format import TraceFormat, Reader

_BEGIN = b"name,start_us,dur_us"


def read_kernel_csv(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """What one file holds: kernels of one device, and nothing else. Raises DamagedTrace."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    try:
        starts, durations = ([float(row[key]) for row in rows] for key in ("start_us", "dur_us"))
    except (TypeError, ValueError) as err:
        raise DamagedTrace(f"{path}: a time is not a number ({err}); export it again") from err
    names = list(dict.fromkeys(row["name"] for row in rows))
    kernels = columns_of(
        "activities", len(rows), device=[0] * len(rows), stream=[7] * len(rows),
        name=[names.index(row["name"]) for row in rows], ts=starts, dur=durations,
    )
    events = events_of(names=names, kinds=[kernel_kind(name, options.pattern) for name in names], activities=kernels)
    return raw_trace(events, header_of(), Extent(path.stat().st_size), details=options.details)


def _recognised(path: Path, begin: Callable[[], bytes]) -> bool:
    return path.suffix in (".csv", ".txt") and begin().startswith(_BEGIN)


KERNEL_CSV = TraceFormat(
    name="kernel CSV",
    version=1,
    file_names=("*.kernels.csv",),
    recognises=_recognised,
    reader=lambda: Reader(read=read_kernel_csv),
)
'''
KERNELS = {"gemm": (0, 300), "ncclDevKernel_AllReduce_Sum_f32_RING_LL": (200, 250), "relu": (500, 20)}
"""Start and duration in us: of the communication 100 are beside compute and 150 exposed; then 50 of nothing."""


def steps() -> list[str]:
    """The files that the recipe names, a step each."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page.partition("### An input format\n")[2].partition("\n#")[0]
    return re.findall(r"^\d\. `([\w/.]+)`", recipe, re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which the recipe was followed."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "analysis", root / "analysis", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "analysis/formats/kernel_csv.py").write_text(READER, encoding="utf-8")
    registry = root / "analysis/formats/registry.py"
    content = registry.read_text(encoding="utf-8")
    for old, new in (
        (
            "from .kineto.entry import KINETO\n",
            "from .kernel_csv import KERNEL_CSV\nfrom .kineto.entry import KINETO\n",
        ),
        ("INSPECTOR, KINETO)", "INSPECTOR, KERNEL_CSV, KINETO)"),
    ):
        assert content.count(old) == 1, old
        content = content.replace(old, new)
    registry.write_text(content, encoding="utf-8")
    return root


def written(folder: Path, name: str = "rank{rank}.kernels.csv", ranks: int = 2) -> Path:
    """A file of kernels per rank, those of each rank twice as long as those of the one before."""
    folder.mkdir()
    for rank in range(ranks):
        rows = [f"{kernel},{start << rank},{took << rank}" for kernel, (start, took) in KERNELS.items()]
        text = "\n".join(["name,start_us,dur_us", *rows]) + "\n"
        (folder / name.format(rank=rank)).write_text(text, encoding="utf-8")
    return folder


def analysed(root: Path, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """What the command line says."""
    command = [sys.executable, "-m", "analysis", *map(str, arguments)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_recipe_names_the_files_that_change(copy: Path) -> None:
    changed = {
        str(path.relative_to(copy))
        for path in (copy / "analysis").rglob("*.py")
        if not (old := ROOT / path.relative_to(copy)).is_file() or old.read_bytes() != path.read_bytes()
    }
    assert len(changed) == len(steps()) <= 4
    for file in changed:
        assert any(file == step or (step.endswith("/") and file.startswith(step)) for step in steps()), file


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_folder_of_such_files_is_a_run(copy: Path, tmp_path: Path, workers: str) -> None:
    printed = analysed(copy, "breakdown", "-f", "csv", "--workers", workers, written(tmp_path / "run")).stdout
    rows = list(csv.DictReader(printed.splitlines()))
    assert [int(row["rank"]) for row in rows] == [0, 1]
    for rank, row in enumerate(rows):
        found = {key: int(row[f"{key}_ns"]) for key in ("window", "compute", "comm", "exposed_comm", "idle")}
        wanted = {"window": 520, "compute": 320, "comm": 250, "exposed_comm": 150, "idle": 50}
        assert found == {key: (us << rank) * 1000 for key, us in wanted.items()}


def test_one_such_file_is_told_by_its_first_bytes(copy: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", "any name {rank}.txt", ranks=1)
    done = analysed(copy, "breakdown", "-f", "json", folder / "any name 0.txt")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["compute_ns"] == 320_000
    assert "does not say which rank it is" in done.stderr


@pytest.mark.slow
def test_what_the_format_lacks_is_said(copy: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    assert "cannot be verified" in analysed(copy, "breakdown", "--verify", folder).stderr
    (folder / "rank0.kernels.csv").write_text("name,start_us,dur_us\ngemm,soon,3\n", encoding="utf-8")
    assert "rank0.kernels.csv: a time is not a number" in analysed(copy, "breakdown", folder, code=1).stderr
    (tmp_path / "empty").mkdir()
    message = analysed(copy, "breakdown", tmp_path / "empty", code=1).stderr
    assert "holds no Kineto trace, kernel CSV trace, " in message
    assert "(*.json, *.json.gz, *.kernels.csv, " in message


@pytest.mark.slow
def test_traces_of_kineto_are_read_as_before(copy: Path) -> None:
    run = ROOT / "traces/resnet18-ddp-w2"
    assert analysed(copy, "breakdown", "-f", "csv", run).stdout == analysed(ROOT, "breakdown", "-f", "csv", run).stdout


def test_it_is_kept_in_a_cache_of_its_own_version(copy: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from analysis.reading.cache import Cache
from analysis.recording.options import ReadOptions
cache, path = Cache(Path(sys.argv[2])), Path(sys.argv[1])
first = cache.read(path, ReadOptions())
assert cache.slot(path, ReadOptions()).load() == first
import analysis.formats.registry as registry
registry.TRACE_FORMATS = registry.TRACE_FORMATS[-1:]
assert cache.slot(path, ReadOptions()).load() is None
"""
    path = written(tmp_path / "run") / "rank0.kernels.csv"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
