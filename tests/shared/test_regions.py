"""Regions of real traces beside a brute-force projection from their events, and beside Kineto's own arrows."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from beside_checkout import TRACES, needs_shared
from region_oracle import Oracle

from commtrace import analyse
from commtrace.analysis.core.schema import records

pytestmark = needs_shared

PARTS = {
    "compute": ["compute_ns"],
    "comm": ["exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns"],
    "memory": ["exposed_memory_ns"],
    "idle": ["idle_ns"],
    "hidden": ["hidden_ns"],
}
SETS = ("rccl-mi300x-r0of8", "ddp-a100-r0of2", "nanogpt-2026-02", "vllm-b200-r0of8", "tracelens-qwen-h100")
"""With checkpointing and modules, annotations, a compiler, CUDA graphs, and modules alone."""


def events(name: str, phases: str = "X") -> list[dict[str, Any]]:
    (path,) = (TRACES / name).rglob("*.json.gz")
    with gzip.open(path) as file:
        document = json.load(file, parse_float=Decimal)  # doubles of absolute times have no ns
    found = [event for event in document["traceEvents"] if event.get("ph") in tuple(phases)]
    for event in found:
        if event["name"].startswith("execute_"):  # vLLM's step
            event["name"] = "ProfilerStep#0"
    return found


def main_thread(found: list[dict[str, Any]]) -> int:
    steps = Counter(
        event["tid"]
        for event in found
        if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    )
    return steps.most_common(1)[0][0] if steps else -1


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_moment_belongs_to_the_region_that_launched_its_work(name: str) -> None:
    analysis = analyse(TRACES / name, details=True, cache=False)
    found = events(name)
    oracle = Oracle(found, main_thread(found))
    steps = analysis.regions_steps
    windows = analysis.breakdown_steps if len(analysis.breakdown_steps) else analysis.breakdown.assign(step=pd.NA)
    activities = analysis.run.activities
    base = int(activities["start_ns"].min()) - min(one.start for one in oracle.ran)
    for window in records(windows):
        own = steps[(steps["step"] == window["step"]) if window["step"] is not None else steps["step"].isna()]
        assert own["self_ns"].sum() == window["window_ns"]
        inside = activities if window["step"] is None else activities[activities["step"] >= window["step"]]
        first = int(inside[["start_ns", "idle_since_ns"]].min().min()) - base
        expected = oracle.times(first, first + window["window_ns"])
        for part, columns in PARTS.items():
            ours: dict[tuple[str, str | None], int] = {}
            for row in records(own):
                key = row["region"], row["phase"]
                ours[key] = ours.get(key, 0) + sum(row[column] or 0 for column in columns)
            assert {key: ns for key, ns in ours.items() if ns} == expected[part], (part, window["step"])


@pytest.mark.slow_cases("rccl-mi300x-r0of8")
@pytest.mark.parametrize("name", ["rccl-mi300x-r0of8", "ddp-a100-r0of2", "nanogpt-2026-02"])
def test_the_projection_joins_backward_operators_as_kineto_does(name: str) -> None:
    """Kineto draws an arrow (`fwdbwd`) from each forward operator to its backward one."""
    found = events(name, phases="Xsf")
    arrows = [event for event in found if event.get("cat") == "fwdbwd"]
    begun = {arrow["id"]: (arrow["tid"], arrow["ts"] * 1000) for arrow in arrows if arrow["ph"] == "s"}
    ended = {(arrow["tid"], arrow["ts"] * 1000): arrow["id"] for arrow in arrows if arrow["ph"] == "f"}
    oracle = Oracle(found, main_thread(found))
    joined = 0
    for one in (one for ranges in oracle.threads.values() for one in ranges if one.kind == "backward"):
        arrow = ended.get((one.thread, one.start))
        if arrow is not None and one.number >= 0:
            forward = oracle.forward_of(one)
            assert forward is not None
            assert (forward.thread, forward.start) == begun[arrow]
            joined += 1
    assert joined >= len(ended) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrec-a2a3", "dlrm-v100-w8", "nanogpt-h100-w8", "hta-negq-r0of16"])
def test_parts_of_regions_add_up_to_the_breakdown(name: str) -> None:
    """With wait and transfer, where several ranks were traced."""
    analysis = analyse(TRACES / name, details=True, cache=False)
    keys = ["rank", "device", "step"]
    columns = [column for part in PARTS.values() for column in part]
    sums = analysis.regions_steps.groupby(keys)[[*columns, "self_ns"]].sum().reset_index().astype({"step": "int64"})
    windows = analysis.breakdown_steps.rename(columns={"overlap_ns": "hidden_ns", "window_ns": "self_ns"})
    expected = windows[[*keys, *columns, "self_ns"]].fillna(0)
    assert records(sums) == records(expected.sort_values(keys))
    assert not sums.empty
