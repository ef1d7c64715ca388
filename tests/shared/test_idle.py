"""Idle time by cause, against an independent calculation on real traces, and against the breakdown."""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from beside_checkout import EXPECTED, TRACES, needs_shared

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.device.idle_pieces import idle_pieces
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.values import host_tables

pytestmark = needs_shared

_TABLE = EXPECTED / "idle.csv"
QUEUE = ("starved", "launching", "queued", "unknown")
HOST = ("sync", "alloc", "data", "operator", "outside")


def expected() -> list[dict[str, str]]:
    if not _TABLE.exists():
        return []
    with _TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def detailed(path: Path) -> Analysis:
    return analyse(path, details=True, workers=1, whole=True)


def row_of(table: list[Row], device: str) -> Row:
    (row,) = [row for row in table if row["device"] == device]
    return row


@pytest.mark.slow_cases(
    "ddp-a100-r0of2/nccl_data.json.gz: 0",
    "ddp-v100-r1of2/df_index_resolver.json.gz: 1",
    "hta-negq-r0of16/rank0.json.gz: 0",
    "nanogpt-h100-w8/Baseline - 12-11 - 220ff-rank6-chrome-trace.json.gz: 6",
)
@pytest.mark.parametrize("want", [pytest.param(row, id=f"{row['file']}: {row['device']}") for row in expected()])
def test_every_device_as_calculated_elsewhere(want: dict[str, str]) -> None:
    found = row_of(records(detailed(TRACES / want["file"]).idle), want["device"])
    for part in ("window", "idle", *QUEUE):
        assert found[f"{part}_ns"] == pytest.approx(int(want[part]), abs=2_000), part
    for part in (*HOST, "drained"):
        assert found[f"{part}_ns"] == pytest.approx(int(want[part]), rel=0.01, abs=2_000), part


@pytest.mark.slow_cases("ddp-v100-r1of2/df_index_resolver.json.gz", "hta-negq-r0of16/rank0.json.gz")
@pytest.mark.parametrize("file", sorted({row["file"] for row in expected()}))
def test_the_parts_add_up_to_the_idle_time_of_the_breakdown(file: str) -> None:
    found = detailed(TRACES / file)
    for idle, breakdown, keys in (
        (found.idle, found.breakdown, ["rank", "device"]),
        (found.idle_steps, found.breakdown_steps, ["rank", "device", "step"]),
    ):
        pairs = list(zip(records(idle), records(breakdown), strict=True))
        for row, other in pairs:
            assert [row[key] for key in keys] == [other[key] for key in keys]
            assert (row["window_ns"], row["idle_ns"]) == (other["window_ns"], other["idle_ns"])
            assert sum(row[f"{part}_ns"] for part in QUEUE) == row["idle_ns"]
            assert sum(row[f"{part}_ns"] for part in HOST) == row["starved_ns"]
            assert row["note"] is None


@pytest.mark.slow_cases("ddp-v100-r1of2/df_index_resolver.json.gz")
@pytest.mark.parametrize("file", sorted({row["file"] for row in expected()}))
def test_calls_cost_what_idle_time_they_cover(file: str) -> None:
    found = detailed(TRACES / file)
    over_steps = replace(found, whole=False)
    pieces = idle_pieces(found.run.activities, found.of(host_tables))  # those before the first activity, too
    for kind in ("sync", "alloc"):
        for tables in (found, over_steps):
            assert tables.syncs["lost_ns"][tables.syncs["kind"] == kind].sum() == tables.idle[f"{kind}_ns"].sum()
        of_kind = pieces[pieces["cause"] == kind]
        steps = found.syncs_steps
        assert steps["lost_ns"][steps["kind"] == kind].sum() == (of_kind["end_ns"] - of_kind["start_ns"]).sum()


def test_memory_freed_and_allocated_takes_most_of_a_step() -> None:
    steps = records(analyse(TRACES / "torchrec-a2a3", details=True).syncs_steps)
    for rank in range(4):
        own = [row for row in steps if row["rank"] == rank and row["step"] == 4 and row["kind"] == "alloc"]
        counts = {name: sum(r["calls"] for r in own if r["name"] == name) for name in ("cudaFree", "cudaMalloc")}
        assert counts == {"cudaFree": 25, "cudaMalloc": 9}
        assert (own[0]["name"], own[0]["operator"]) == ("cudaFree", "aten::cat")
        assert 220e6 < sum(row["total_ns"] for row in own) < 260e6
