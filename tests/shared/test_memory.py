"""Memory of real traces against what their JSON says, read and added up without the code under test."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from typing import Any

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.memory.table import CATEGORY_COLUMNS

pytestmark = needs_shared
FILES = {
    "ddp-v100-r1of2/df_index_resolver.json.gz": ("1", 6_629_508_096, 12_782_141_440),
    "tracelens-qwen-h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": ("0", 2_088_508_416, 2_629_828_608),
    "tracelens-bert-h100/gaunernst_bert-small-uncased__1016001.json.gz": ("0", 101_305_344, 121_634_816),
    "tracelens-falcon-mi300/Falconsai_nsfw_image_detection__1016002.json.gz": ("0", 272_628_736, 291_504_128),
    "kineto-resnet/worker0.1623143089861.pt.trace.json.gz": ("0", 2_791_636_480, None),
}
"""Each with a device and its peaks, as they were read once by hand."""


def read(file: str) -> Any:
    return json.loads(gzip.decompress((TRACES / file).read_bytes()))["traceEvents"]


@cache
def instants(file: str) -> dict[str, list[dict[str, Any]]]:
    """The arguments of each device's instants with their time, in its order."""
    found = defaultdict(list)
    for event in read(file):
        if event.get("name") == "[memory]":
            args = event["args"]
            device = "cpu" if args["Device Type"] == 0 else str(args["Device Id"])
            found[device].append(args | {"ts": event["ts"]})
    return {device: sorted(events, key=lambda one: one["ts"]) for device, events in found.items()}


@pytest.fixture(params=FILES)
def file(request) -> str:
    return request.param


@pytest.mark.slow_cases(
    "ddp-v100-r1of2/df_index_resolver.json.gz", "kineto-resnet/worker0.1623143089861.pt.trace.json.gz"
)
def test_peaks_are_those_of_the_json(file):
    rows = {row["device"]: row for row in records(analyse(TRACES / file, details=True, cache=False).memory)}
    events = instants(file)
    assert set(rows) == set(events)
    for device, own in events.items():
        reserved = [one["Total Reserved"] for one in own if "Total Reserved" in one]
        assert rows[device]["peak_reserved_bytes"] == (max(reserved) if reserved else None)
        total, totals = 0, []
        for one in own:
            total += one["Bytes"]
            totals.append(one.get("Total Allocated", total))
        assert rows[device]["peak_allocated_bytes"] == max(totals)
    device, allocated, reserved_peak = FILES[file]
    assert (rows[device]["peak_allocated_bytes"], rows[device]["peak_reserved_bytes"]) == (allocated, reserved_peak)


@pytest.mark.slow_cases("ddp-v100-r1of2/df_index_resolver.json.gz")
def test_what_is_held_at_the_peak_is_what_was_not_released_by_then(file):
    """Category by category they add up, and what is older than the trace is what no instant allocated."""
    found = analyse(TRACES / file, details=True, cache=False)
    for row in records(found.memory):
        own = instants(file)[row["device"]]
        if "Addr" not in own[0]:
            assert row["activations_bytes"] is None
            continue
        live: dict[int, int] = {}
        for one in own:
            if one["Bytes"] > 0:
                live[one["Addr"]] = one["Bytes"]
            else:
                live.pop(one["Addr"], None)
            if one["Total Allocated"] == row["peak_allocated_bytes"]:
                break
        older = row["before_the_trace_bytes"] or 0
        assert older == row["peak_allocated_bytes"] - sum(live.values())
        assert sum(row[column] or 0 for column in CATEGORY_COLUMNS.values()) == row["peak_allocated_bytes"]
        places = found.allocations.query("rank == @row['rank'] and device == @row['device']")
        assert places["size_bytes"].sum() == row["peak_allocated_bytes"]
        assert places.query("category != 'before the trace'")["blocks"].sum() == len(live)


@pytest.mark.slow
def test_training_holds_activations_and_temporaries_of_the_backward_pass():
    [row] = records(analyse(TRACES / next(iter(FILES)), details=True, cache=False).memory.query("device == '1'"))
    assert row["phase"] == "backward"
    assert row["activations_bytes"] > 2**30
    assert row["temporaries_bytes"] > 2**30
    assert row["grows_bytes"] == 0
