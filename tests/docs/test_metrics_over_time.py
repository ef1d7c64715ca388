"""The worked examples of the page on bandwidth by time, from logs that are written and read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inspector_logs import Comm, Log
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.results.opening import analyse
from commtrace.analysis.streaming.logs import LogsOverTime

EXAMPLES = examples("over-time")
_MINUTE_NS = 60_000_000_000


def analysis_of_logs(tables: Given) -> Any:
    """The tables of a log for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        logs: dict[int, Log] = {}
        for row in tables["logs"]:
            comm = Comm("0xa", row["rank"], row["n_ranks"])
            log = logs.setdefault(row["rank"], Log(pid=row["rank"] + 1))
            told = {"size_bytes": row["size_bytes"], "written_us": row["written_us"]}
            log.call(comm, row["collective"], row["sn"], row["dur_us"], **told)
        for row in tables.get("proxy_steps", []):
            comm = Comm("0xa", row["rank"], 2)
            phases = row["first_us"], row["second_us"], row["third_us"]
            logs[row["rank"]].step(comm, row["direction"], row["sn"], phases, size_bytes=row["size_bytes"])
        version = "v4.3" if "proxy_steps" in tables else "v4.0"
        paths = [log.write(Path(folder), version) for log in logs.values()]
        streamed = LogsOverTime(paths, _MINUTE_NS)
        streamed.read()
        run = analyse(folder)
        return SimpleNamespace(
            participation=run.participation,
            collectives=run.collectives,
            bandwidth_times=streamed.table(),
            proxies=run.proxies,
        )


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, analysis_of_logs)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, analysis_of_logs)
