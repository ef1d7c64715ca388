"""A captured run in a real TensorBoard: its profiler plugin lists both workers and the Distributed view.

Beside its traces stand scalars, as `train --epochs` writes them.
"""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("tensorboard") is None or find_spec("torch_tb_profiler") is None,
    reason="needs tensorboard and torch-tb-profiler",
)
PLUGIN = "data/plugin/pytorch_profiler"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def run_dir(gloo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captured run, with scalars of two epochs."""
    from profiling.train.scalars import scalars

    folder = shutil.copytree(gloo_run, tmp_path_factory.mktemp("traces") / gloo_run.name)
    with scalars(folder, write=True) as add:
        add(1, {"accuracy/test": 0.25, "loss/test": None})
        add(2, {"accuracy/test": 0.5, "loss/test": 1.5})
    return folder


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    """Where a TensorBoard on the run's parent folder listens."""
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        run_dir.parent,
        "--port",
        "0",
        "--host",
        "127.0.0.1",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            found = next(m for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+/", line)))
            yield found[0]
        finally:
            server.terminate()
            server.stderr.read()


def content(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def once_loaded(url: str, ready: str) -> Any:
    """What the address answers once it holds `ready`: the plugin reads runs in the background."""
    answer: Any = None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            answer = content(url)
        except (urllib.error.URLError, ValueError):
            answer = None
        if ready in json.dumps(answer):
            return answer
        time.sleep(0.5)
    raise AssertionError(f"{url} never showed {ready}; last answer: {answer}")


def test_the_run_is_listed_with_both_workers_and_a_distributed_view(address: str, run_dir: Path) -> None:
    name = run_dir.name
    once_loaded(f"{address}{PLUGIN}/runs", name)
    views = once_loaded(f"{address}{PLUGIN}/views?run={name}", "Distributed")
    assert "Distributed" in views
    workers = content(f"{address}{PLUGIN}/workers?run={name}&view=Overview")
    ranks = [json.loads(side.read_text())["rank"] for side in sorted(run_dir.glob("*.meta.json"))]
    assert len(workers) == len(ranks) == 2
    assert {worker.rsplit("_", 1)[1] for worker in workers} == {str(rank) for rank in ranks}


def test_the_distributed_view_has_numbers_of_both_workers(address: str, run_dir: Path) -> None:
    views = once_loaded(f"{address}{PLUGIN}/views?run={run_dir.name}", "Distributed")
    assert "Distributed" in views
    spans = content(f"{address}{PLUGIN}/spans?run={run_dir.name}&view=Distributed&worker=All")
    overlap = content(f"{address}{PLUGIN}/distributed/overlap?run={run_dir.name}&worker=All&span={spans[0]}")
    assert len(overlap["data"]["2"]) == 2


def test_the_scalars_stand_under_the_same_run(address: str, run_dir: Path) -> None:
    tags = once_loaded(f"{address}data/plugin/scalars/tags", "accuracy/test")
    assert set(tags[run_dir.name]) == {"accuracy/test", "loss/test"}
    for tag, expected in (("accuracy/test", [[1, 0.25], [2, 0.5]]), ("loss/test", [[2, 1.5]])):
        points = content(f"{address}data/plugin/scalars/scalars?run={run_dir.name}&tag={tag}")
        assert [point[1:] for point in points] == expected
