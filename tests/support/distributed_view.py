"""What the Distributed view of torch-tb-profiler shows of a copy, beside what our tables say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from tensorboards import PROFILER, content, once_loaded

from commtrace.analysis.results.analysis import Analysis


class View:
    """The charts of one run, by step and worker."""

    def __init__(self, address: str, run: str) -> None:
        once_loaded(f"{address}{PROFILER}/runs", run)
        once_loaded(f"{address}{PROFILER}/views?run={run}", "Distributed")
        self._at = f"{address}{PROFILER}/distributed", f"run={run}&worker=All&span=1&view=Distributed"

    def chart(self, name: str) -> dict[str, dict[str, list[float]]]:
        """`overlap` (us computing, both, communicating, other) or `waittime` (us transferring, waiting)."""
        folder, which = self._at
        found: dict[str, dict[str, list[float]]] = content(f"{folder}/{name}?{which}")["data"]
        return found

    def operations(self) -> dict[str, list[list[Any]]]:
        """By worker: name, calls, bytes, bytes per call, us, us per call, us of transfer, the same per call."""
        folder, which = self._at
        found = content(f"{folder}/commops?{which}")["data"]
        return {worker: table["rows"] for worker, table in found.items()}


def assert_times_of_breakdown(view: View, analysis: Analysis) -> None:
    """Every number of the chart of time is the one of `breakdown --by step`, to a ns."""
    steps = analysis.breakdown_steps
    steps = steps if len(steps) else analysis.breakdown.assign(step=0)
    expected = {
        (str(row.step), row.rank, row.device): [
            row.compute_ns - row.overlap_ns,
            row.overlap_ns,
            row.exposed_comm_ns,
            row.exposed_memory_ns + row.idle_ns,
        ]
        for row in cast("Iterator[Any]", steps.itertuples())
    }
    several = steps.groupby("rank")["device"].nunique().max() > 1
    only = dict(zip(steps["rank"], steps["device"], strict=True))
    found = {
        (step, rank, worker.rpartition("_")[0].rpartition("-device")[2] if several else only[rank]): times
        for step, workers in view.chart("overlap").items()
        if step != "all"
        for worker, times in workers.items()
        for rank in [int(worker.rpartition("_")[2])]
    }
    assert found.keys() == expected.keys()
    for place, times in found.items():
        assert [1e3 * time for time in times] == pytest.approx(expected[place], abs=1), place


def transfer_us(analysis: Analysis, step: int) -> pd.Series:
    """By rank: the time of its calls in a step after the last rank arrived."""
    own = analysis.participation[analysis.participation["step"] == step]
    result: pd.Series = own.groupby("rank")["transfer_ns"].sum() / 1e3
    return result


def copied(analysis: Analysis, folder: Path) -> Path:
    """A copy of the run in that folder."""
    from commtrace.analysis.tensorboard.distributed_view import trace_copies

    folder.mkdir()
    for copy in trace_copies(analysis):
        (folder / copy.name).write_bytes(copy.content)
    return folder
