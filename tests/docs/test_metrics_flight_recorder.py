"""The worked examples of the page on hangs in dumps."""

from __future__ import annotations

import pickle
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace.analysis.hang.analysis import Hang, find_hang

EXAMPLES = examples("flight-recorder")


def hang_of(given: Given) -> Hang:
    """What is found in dumps that hold these calls; ranks that have none have no dump."""
    groups = {row["process_group"]: row for row in given["groups"]}
    entries: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in given["calls"]:
        entries[row["rank"]].append(_entry(row, groups[row["process_group"]], len(entries[row["rank"]])))
    with tempfile.TemporaryDirectory() as folder:
        for rank, calls in entries.items():
            config = {
                str(name): {"name": str(name), "desc": of["description"], "ranks": str(of["pg_ranks"])}
                for name, of in groups.items()
                if str(rank) in str(of["pg_ranks"]).split()
            }
            dump = {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": calls}
            (Path(folder) / f"dump_{rank}").write_bytes(pickle.dumps(dump, 2))
        return find_hang(folder, workers=1)


def _entry(row: dict[str, Any], group: dict[str, Any], record: int) -> dict[str, Any]:
    file, _, line = str(row["code"]).partition(":")
    return {
        "record_id": record,
        "pg_id": int(row["process_group"]),
        "process_group": (str(row["process_group"]), group["description"]),
        "collective_seq_id": row["seq"],
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{row['collective']}",
        "time_created_ns": row["issued_ns"],
        "input_sizes": [[row["elems"]]],
        "input_dtypes": ["Float"],
        "output_sizes": [[row["elems"]]],
        "output_dtypes": ["Float"],
        "state": row["state"],
        "frames": [{"name": "step", "filename": file, "line": int(line)}],
        "is_p2p": False,
    }


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, hang_of)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, hang_of)
