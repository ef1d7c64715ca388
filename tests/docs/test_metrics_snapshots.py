"""The worked examples of the page on snapshots of memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from worked_examples import Given, assert_a_changed_number_is_noticed, assert_true, examples

from commtrace import SnapshotAnalysis, analyse_snapshots

EXAMPLES = examples("memory-snapshots")


def snapshots_of(given: Given) -> SnapshotAnalysis:
    """What is found in a snapshot of these segments, blocks and entries."""
    segments = [
        {"address": one["address"], "total_size": one["size"], "blocks": _blocks(one, given["blocks"])}
        for one in given["segments"]
    ]
    entries = [_entry(one) for one in given["entries"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory_rank_0.json"
        path.write_text(json.dumps({"segments": segments, "device_traces": [entries]}))
        (Path(folder) / "node_0.meta.json").write_text(json.dumps(_side_file(given["device"][0])))
        return analyse_snapshots([path], workers=1)


def _side_file(device: dict[str, Any]) -> dict[str, Any]:
    """What the rank notes of its device at the end of a step."""
    outside = device["device_bytes"] - device["free"] - device["reserved"]
    step = {"step": 0, "peak_allocated_bytes": 0, "peak_reserved_bytes": 0, "outside_bytes": outside}
    return {
        "schema_version": 1,
        "rank": 0,
        "device": {"type": "cuda", "index": 0},
        "step_memory": [step | {"device_bytes": device["device_bytes"]}],
    }


def _blocks(segment: dict[str, Any], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    inside = range(segment["address"], segment["address"] + segment["size"])
    return [
        {"address": one["address"], "size": one["size"], "requested_size": one["requested"], "state": one["state"]}
        for one in blocks
        if one["address"] in inside
    ]


def _entry(one: dict[str, Any]) -> dict[str, Any]:
    key = "device_free" if one["action"] == "oom" else "addr"
    return {"action": one["action"], key: one["address"], "size": one["size"], "stream": 0}


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text: str) -> None:
    assert_true(text, snapshots_of)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_changed_number_is_noticed(text: str) -> None:
    assert_a_changed_number_is_noticed(text, snapshots_of)
