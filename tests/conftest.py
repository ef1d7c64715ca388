"""Fixtures that tests of both packages share."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A shell has what it begins in the background ignore these, nohup the last one, and so would every process that a test
# begins and signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(ignored, signal.SIG_DFL)
# Kineto asks once, and where a test's own profiler is the first of this process, it would tell of all later ones.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of these tests alone."""
    parser.addoption(
        "--update-golden", action="store_true", help="write what tests/analysis/test_golden.py compares with"
    )
    parser.addoption("--sets", type=int, metavar="N", help="of each test, at most N sets of parameters, spread evenly")
    parser.addoption("--without-torch", action="store_true", help="let every import of torch fail, as where it is not")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported."""
    if config.getoption("--without-torch"):
        assert "torch" not in sys.modules
        sys.modules["torch"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that are slow; leave out what `--sets` does.

    Tests of which each set of parameters calls something else are marked `each`, and all are kept.
    """
    unknown: dict[str, set[str]] = {}
    for item in items:
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        for marker in (*item.iter_markers("slow_cases"), *item.iter_markers("quick_cases")):
            if (case in marker.args) == (marker.name == "slow_cases"):
                item.add_marker(pytest.mark.slow)
            unknown.setdefault(test, set(marker.args)).discard(case)
    if not any("[" in arg for arg in config.args) and any(unknown[test] for test in unknown if "/shared/" not in test):
        gone = {test: cases for test, cases in unknown.items() if cases}
        raise pytest.UsageError(f"slow_cases or quick_cases name what is no case: {gone}")
    most = config.getoption("sets")
    if most is None:
        return
    sets: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("each"):
            of = item.nodeid.partition("[")[0], item.get_closest_marker("slow") is not None
            sets.setdefault(of, []).append(item)
    left_out = set()
    for (test, _), cases in sets.items():
        first = crc32(test.encode())  # elsewhere in each test: those of one file often have the same sets
        taken = {(first + len(cases) * number // most) % len(cases) for number in range(most)}
        left_out |= {case for number, case in enumerate(cases) if number not in taken}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there by now stays until the end, and is much: looking for garbage in it takes time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# What `gloo_run` captures: 2 traced steps, which are steps 2 and 3.
GLOO_RUN_OPTIONS = [
    *("--workers", "2", "--device", "cpu", "--model", "resnet18", "--batch-size", "4", "--seed", "0"),
    *("--image-size", "16", "--wait", "1", "--warmup", "1", "--active", "2", "--steps", "7"),
]


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that all processes of one pytest share; the first that asks has `make` fill it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"{name}-shared"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            make(folder)
            (folder / ".made").touch()
    return folder


@pytest.fixture(scope="session")
def gloo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory captured for real: ResNet-18 under DDP in 2 processes, gloo on CPU; for reading only."""
    pytest.importorskip("torch")
    return made_once(tmp_path_factory, "captured", capture_with_gloo) / "gloo"


def capture_with_gloo(out: Path) -> None:
    """As a user would, from the first import."""
    command = [sys.executable, "-m", "commtrace", "train", *GLOO_RUN_OPTIONS, "--out", str(out), "--run-name", "gloo"]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (out / "said.txt").write_text(done.stderr, encoding="utf-8")
