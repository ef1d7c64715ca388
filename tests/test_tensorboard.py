"""A captured run in a real TensorBoard: its profiler plugin lists both workers and the Distributed view."""

import json
import re
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
def address(gloo_run: Path) -> Iterator[str]:
    """Where a TensorBoard on the run's parent folder listens."""
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        gloo_run.parent,
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


def test_the_run_is_listed_with_both_workers_and_a_distributed_view(address: str, gloo_run: Path) -> None:
    name = gloo_run.name
    once_loaded(f"{address}{PLUGIN}/runs", name)
    views = once_loaded(f"{address}{PLUGIN}/views?run={name}", "Distributed")
    assert "Distributed" in views
    workers = content(f"{address}{PLUGIN}/workers?run={name}&view=Overview")
    ranks = [json.loads(side.read_text())["rank"] for side in sorted(gloo_run.glob("*.meta.json"))]
    assert len(workers) == len(ranks) == 2
    assert {worker.rsplit("_", 1)[1] for worker in workers} == {str(rank) for rank in ranks}


def test_the_distributed_view_has_numbers_of_both_workers(address: str, gloo_run: Path) -> None:
    views = once_loaded(f"{address}{PLUGIN}/views?run={gloo_run.name}", "Distributed")
    assert "Distributed" in views
    spans = content(f"{address}{PLUGIN}/spans?run={gloo_run.name}&view=Distributed&worker=All")
    overlap = content(f"{address}{PLUGIN}/distributed/overlap?run={gloo_run.name}&worker=All&span={spans[0]}")
    assert len(overlap["data"]["2"]) == 2
