"""Copies of real runs in a real TensorBoard: torch-tb-profiler counts in them what our tables say."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared
from distributed_view import View, assert_times_of_breakdown, copied
from tensorboards import tensorboard

from commtrace import analyse

pytestmark = [
    pytest.mark.slow,
    needs_shared,
    pytest.mark.skipif(
        find_spec("tensorboard") is None or find_spec("torch_tb_profiler") is None,
        reason="needs tensorboard and torch-tb-profiler",
    ),
]
DATA = Path(__file__).parents[1] / "data"
RUNS = [*sorted(TRACES.glob("*-w*")), *sorted(TRACES.glob("*-r?of?")), DATA / "nccl-pipeline", DATA / "gloo-training"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logdir: Path = tmp_path_factory.mktemp("logdir")
    for run in RUNS:
        copied(analyse(run), logdir / run.name)
    with tensorboard(logdir) as found:
        yield found


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_times_are_those_of_breakdown(address: str, run: Path) -> None:
    assert_times_of_breakdown(View(address, run.name), analyse(run))
