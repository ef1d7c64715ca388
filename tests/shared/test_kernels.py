"""Device time of real traces, against sums of plain json and TensorBoard's plugin itself."""

import gzip
import json
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from beside_checkout import TRACES, needs_shared
from samples import with_slow

from commtrace.analysis.core.kinds import COMM_NAMES
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def ns(us: float) -> int:
    return round(us * 1000)


@pytest.fixture(scope="module", params=["rccl-mi300x-r0of8", "ddp-a100-r0of2"])
def both(request) -> tuple[list[dict[str, Any]], Analysis]:
    folder = TRACES / request.param
    (path,) = folder.glob("*.json.gz")
    return events(path), analyse(folder, details=True, whole=True)


@pytest.mark.quick_cases("ddp-a100-r0of2")
def test_sums_by_kernel(both):
    raw, found = both
    durations = defaultdict(list)
    for event in raw:
        if event.get("cat") == "kernel":
            durations[event["name"]].append(ns(event["dur"]))
    whole = sum(map(sum, durations.values()))
    rows = records(found.kernels)
    assert {row["name"]: (row["calls"], row["total_ns"]) for row in rows} == {
        name: (len(listed), sum(listed)) for name, listed in durations.items()
    }
    for row in rows:
        listed = durations[row["name"]]
        assert row["share_frac"] == pytest.approx(sum(listed) / whole)
        assert row["mean_us"] == pytest.approx(sum(listed) / len(listed) / 1000)
        assert (row["min_us"], row["max_us"]) == pytest.approx((min(listed) / 1000, max(listed) / 1000))
    assert [row["total_ns"] for row in rows] == sorted((row["total_ns"] for row in rows), reverse=True)


@pytest.mark.slow
def test_how_much_of_communication_is_hidden(both):
    raw, found = both
    spans = defaultdict(list)
    for event in raw:
        if event.get("cat") == "kernel":
            name = event["name"] if COMM_NAMES.search(event["name"]) else None
            spans[name].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    merged: list[list[int]] = []
    for start, end in sorted(spans.pop(None)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    hidden = {
        name: sum(max(0, min(end, e) - max(start, s)) for start, end in calls for s, e in merged)
        for name, calls in spans.items()
    }
    assert {r["name"]: r["hidden_ns"] for r in records(found.kernels) if r["kind"] == "comm"} == hidden
    assert any(hidden.values())


def test_operators_are_those_of_the_external_ids(both):
    raw, found = both
    of_id = {e["args"]["External id"]: e for e in raw if e.get("cat") == "cpu_op" and "External id" in e["args"]}
    around = [e for e in of_id.values() if e["name"].startswith("c10d::")]
    sums: dict[str | None, int] = defaultdict(int)
    for event in raw:
        if event.get("cat") == "kernel":
            operator = of_id.get(event["args"].get("External id"))
            name = operator and operator["name"]
            if name == "record_param_comms":  # which takes notes only, for the c10d operator around it
                (name,) = (
                    c["name"] for c in around
                    if c["tid"] == operator["tid"] and c["ts"] <= operator["ts"] <= c["ts"] + c["dur"]
                )  # fmt: skip
            sums[name] += ns(event["dur"])
    assert {row["operator"]: row["total_ns"] for row in records(found.operators)} == sums
    assert len(sums) > 10


@pytest.mark.slow
def test_most_of_what_dlrm_communicates_is_waiting():
    found = analyse(TRACES / "dlrm-v100-w8", whole=True)
    first = records(found.kernels)[0]
    assert first["split_calls"] == first["calls"] == 40
    assert first["wait_ns"] + first["transfer_ns"] == first["total_ns"]
    assert first["wait_ns"] == found.participation.query("collective == 'all_to_all'")["wait_ns"].sum()


# --- the plugin ------------------------------------------------------------------------------------------------------


def plugin_metrics(path: Path, *, launches_as: str | None) -> dict[int, tuple[float, float | None, float | None]]:
    """Utilisation, SM efficiency and occupancy by GPU as torch-tb-profiler computes them.

    `launches_as` is the category that it takes for launches: it does not know those of torch 1.13 and later.
    """
    from torch_tb_profiler.profiler import trace
    from torch_tb_profiler.profiler.event_parser import EventParser
    from torch_tb_profiler.profiler.gpu_metrics_parser import GPUMetricsParser

    made = []
    for event in events(path):
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and launches_as:
            event["cat"] = launches_as
        # It takes the GPU copies of ProfilerStep for further steps, and stumbles over events without a category.
        if event.get("cat") in ("gpu_user_annotation", "forward_backward") or "cat" not in event:
            continue
        made.append(trace.create_event(event, is_pytorch_lightning=False))
    known = sorted((e for e in made if e is not None), key=lambda e: e.ts)
    parser = EventParser()
    parser.parse(known, {})
    steps = parser.steps[0][0], parser.steps[-1][1]
    metrics = GPUMetricsParser.parse_events(known, parser.global_start_ts, parser.global_end_ts, *steps)
    return {
        gpu: (
            metrics.gpu_utilization[gpu],
            metrics.avg_approximated_sm_efficiency_per_device[gpu],
            metrics.avg_occupancy_per_device[gpu],
        )
        for gpu in metrics.gpu_ids
    }


@pytest.mark.slow_cases("ddp-a100-r0of2-None")
@pytest.mark.skipif(find_spec("torch_tb_profiler") is None, reason="torch-tb-profiler is not installed")
@pytest.mark.parametrize(
    ("traces", "launches_as"),
    with_slow(
        [
            ("ddp-a100-r0of2", None),  # where the GPU keeps up with the host, the plugin is right as it is
            ("moe-b200-r0of2", "Runtime"),
        ],
        [
            ("ddp-a100-r0of2", "Runtime"),
            ("dlrm-v100-w8", "Runtime"),
            ("torchrec-v100-w4", "Runtime"),
            ("rccl-mi300x-r0of8", "Runtime"),
        ],
    ),
)
def test_gpus_are_what_tensorboards_plugin_says(traces, launches_as):
    found = analyse(TRACES / traces, whole=True)
    named = {row["trace"]: row["rank"] for row in records(found.run.traces)}
    rows = {(row["rank"], int(row["device"])): row for row in records(found.gpus)}
    compared = 0
    for path in sorted((TRACES / traces).glob("*.json.gz")):
        for gpu, (utilisation, efficiency, occupancy) in plugin_metrics(path, launches_as=launches_as).items():
            row = rows.pop((named[path.name], gpu))
            assert row["utilisation_frac"] == pytest.approx(utilisation, rel=1e-5)
            for column, value in (
                ("sm_efficiency_frac", efficiency),
                ("occupancy_frac", occupancy and occupancy / 100),
            ):
                assert row[column] == (None if value is None else pytest.approx(value, rel=1e-5)), column
            compared += 1
    assert compared
    assert not rows
