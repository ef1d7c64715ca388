"""A captured run in a real TensorBoard: its profiler plugin lists both workers and the Distributed view.

Beside its traces stand scalars, as `train --epochs` writes them.
"""

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tensorboards import PROFILER, content, once_loaded, tensorboard

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tensorboard") is None or find_spec("torch_tb_profiler") is None,
        reason="needs tensorboard and torch-tb-profiler",
    ),
]


@pytest.fixture(scope="module")
def run_dir(gloo_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captured run, with scalars of two epochs."""
    from commtrace.profiling.train.scalars import scalars

    folder = shutil.copytree(gloo_run, tmp_path_factory.mktemp("traces") / gloo_run.name)
    with scalars(folder, write=True) as add:
        add(1, {"accuracy/test": 0.25, "loss/test": None})
        add(2, {"accuracy/test": 0.5, "loss/test": 1.5})
    return folder


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    """Where a TensorBoard on the run's parent folder listens."""
    with tensorboard(run_dir.parent) as found:
        yield found


def test_the_run_is_listed_with_both_workers_and_a_distributed_view(address: str, run_dir: Path) -> None:
    name = run_dir.name
    once_loaded(f"{address}{PROFILER}/runs", name)
    views = once_loaded(f"{address}{PROFILER}/views?run={name}", "Distributed")
    assert "Distributed" in views
    workers = content(f"{address}{PROFILER}/workers?run={name}&view=Overview")
    ranks = [json.loads(side.read_text())["rank"] for side in sorted(run_dir.glob("*.meta.json"))]
    assert len(workers) == len(ranks) == 2
    assert {worker.rsplit("_", 1)[1] for worker in workers} == {str(rank) for rank in ranks}


def test_the_distributed_view_has_numbers_of_both_workers(address: str, run_dir: Path) -> None:
    views = once_loaded(f"{address}{PROFILER}/views?run={run_dir.name}", "Distributed")
    assert "Distributed" in views
    spans = content(f"{address}{PROFILER}/spans?run={run_dir.name}&view=Distributed&worker=All")
    overlap = content(f"{address}{PROFILER}/distributed/overlap?run={run_dir.name}&worker=All&span={spans[0]}")
    assert len(overlap["data"]["2"]) == 2


def test_the_scalars_stand_under_the_same_run(address: str, run_dir: Path) -> None:
    tags = once_loaded(f"{address}data/plugin/scalars/tags", "accuracy/test")
    assert set(tags[run_dir.name]) == {"accuracy/test", "loss/test"}
    for tag, expected in (("accuracy/test", [[1, 0.25], [2, 0.5]]), ("loss/test", [[2, 1.5]])):
        points = content(f"{address}data/plugin/scalars/scalars?run={run_dir.name}&tag={tag}")
        assert [point[1:] for point in points] == expected
