"""Launches of real traces against what their JSON says."""

from collections import defaultdict
from statistics import mean, median

import pytest
from beside_checkout import TRACES, needs_shared
from raw_traces import SEVERAL, Event, raw

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared
US = 1_000


def of_json(file: str) -> dict[str, Row]:
    """By name: how many activities, and (call, delay, length) of the calls that launched them, in ns."""
    events = raw(file)
    launches = events.launches()
    result: dict[str, Row] = defaultdict(lambda: {"activities": 0, "unlaunched": 0, "ran": 0, "calls": {}})
    for event in events.activities:
        row = result[event.name]
        row["activities"] += 1
        row["ran"] += event.end - event.start
        call = launches.get(event.correlation)
        if call is None:
            row["unlaunched"] += 1
        else:
            row["calls"].setdefault(event.correlation, []).append(event)
    for row in result.values():
        row["calls"] = [summed(launches[number], here) for number, here in row["calls"].items()]
    return result


def summed(call: Event, here: list[Event]) -> tuple[int, int, int]:
    return call.end - call.start, max(0, min(e.start for e in here) - call.end), sum(e.end - e.start for e in here)


@pytest.mark.slow
def test_as_hta_counts():
    """What HTA 0.6.1 finds with include_last_profiler_step=True: it reads whole us, as these traces have them."""
    rows = records(analyse(TRACES / "torchrec-a2a3", details=True, whole=True).launches)
    sums = {
        name: sum(row[name] for row in rows if row["rank"] == 0)
        for name in ("launches", "call_ns", "short_kernels", "long_calls", "long_delays")
    }
    assert sums == {
        "launches": 624, "call_ns": 8_518 * US, "short_kernels": 257, "long_calls": 3, "long_delays": 460,
    }  # fmt: skip
    assert max(row["delay_max_us"] for row in rows if row["rank"] == 0) == 76_012


@pytest.mark.slow_cases("hta-negq-r0of16/rank0.json.gz", "vllm-b200-r0of8/eager_trace.json.gz")
@pytest.mark.parametrize("file", SEVERAL)
def test_launches_as_the_json_has_them(file):
    wanted = of_json(file)
    rows = {
        row["name"]: row for row in records(analyse(TRACES / file, details=True, workers=1, whole=True).launches_names)
    }
    assert rows.keys() == wanted.keys()
    for name, want in wanted.items():
        row, calls = rows[name], want["calls"]
        assert (row["activities"], row["unlaunched"]) == (want["activities"], want["unlaunched"])
        assert (row["launches"], row["ran_ns"]) == (len(calls), want["ran"])
        assert (row["note"] is None) == (len(calls) > 0)
        if calls:
            assert row["call_ns"] == sum(took for took, _, _ in calls)
            assert row["short_kernels"] == sum(ran < took for took, _, ran in calls)
            assert row["long_calls"] == sum(took > 50 * US for took, _, _ in calls)
            assert row["long_delays"] == sum(delay > 100 * US for _, delay, _ in calls)
            delays = [delay / US for _, delay, _ in calls]
            assert row["delay_mean_us"] == pytest.approx(mean(delays))
            assert row["delay_median_us"] == pytest.approx(median(delays))
            assert row["delay_max_us"] == pytest.approx(max(delays))
