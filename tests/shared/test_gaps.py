"""Gaps of real traces, against what their JSON says gap by gap."""

from functools import cache

import pytest
from beside_checkout import TRACES, needs_shared
from raw_traces import SEVERAL, Event, raw

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared

BLOCKING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy",
            "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipMemcpy", "hipMemcpyWithStream",
            "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")  # fmt: skip
SUMMED = ("idle", "starved", "launching", "queued", "unknown", "sync", "alloc", "data", "operator", "outside",
          "drained")  # fmt: skip


@cache
def detailed(file: str) -> Analysis:
    return analyse(TRACES / file, details=True, workers=1, whole=True)


def of_json(activities: list[Event], launches: dict[int, Event], calls: list[Event]) -> dict[int, Row]:
    """Gaps by their start: length and parts in ns, what ran before and after, and the launching thread."""
    result: dict[int, Row] = {}
    until, ended = activities[0].end, {activities[0].name}
    for place, event in enumerate(activities):
        if event.start > until:
            enders = [other for other in activities[place : place + 50] if other.start == event.start]
            result[until] = {"idle": event.start - until, "before": ended, "after": {e.name for e in enders}}
            result[until] |= parts_of(until, event.start, enders, launches, calls)
        ended = {event.name} if event.end > until else ended | {event.name} if event.end == until else ended
        until = max(until, event.end)
    return result


def parts_of(begin: int, end: int, enders: list[Event], launches: dict[int, Event], calls: list[Event]) -> Row:
    known = [launches[e.correlation] for e in enders if e.correlation in launches]
    if not known:
        return {"starved": 0, "launching": 0, "queued": 0, "unknown": end - begin, "sync": 0, "thread": None}
    launch = min(known, key=lambda call: call.start)
    at = min(max(launch.start, begin), end)
    done = min(max(launch.end, at), end)
    within = sorted(
        (max(c.start, begin), min(c.end, at))
        for c in calls
        if c.name in BLOCKING and c.thread == launch.thread and c.start < at and c.end > begin
    )
    sync, reach = 0, begin
    for first, last in within:
        sync += max(0, last - max(first, reach))
        reach = max(reach, last)
    return {"starved": at - begin, "launching": done - at, "queued": end - done, "unknown": 0, "sync": sync,
            "thread": launch.thread}  # fmt: skip


@pytest.mark.slow_cases("hta-negq-r0of16/rank0.json.gz", "vllm-b200-r0of8/eager_trace.json.gz")
@pytest.mark.parametrize("file", SEVERAL)
def test_every_gap_as_the_json_has_it(file):
    events, table = raw(file), records(detailed(file).gaps)
    zero = int(detailed(file).run.activities["start_ns"].min())
    launches = events.launches()
    blocking = [call for call in events.calls if call.name in BLOCKING]
    seen = 0
    for device, activities in events.devices().items():
        wanted = of_json(activities, launches, blocking)
        rows = [row for row in table if row["device"] == device]
        assert len(rows) == len(wanted)
        for row in rows:
            want = wanted[row["start_ns"] - zero]
            for part in ("idle", "starved", "launching", "queued", "unknown", "sync"):
                assert row[f"{part}_ns"] == want[part], part
            assert row["before"] in want["before"]
            assert row["after"] in want["after"]
            assert want["thread"] in (row["thread"], None)
            seen += 1
    assert seen == len(table) > 0


@pytest.mark.slow_cases("hta-negq-r0of16/rank0.json.gz")
@pytest.mark.parametrize("file", SEVERAL)
def test_gaps_add_up_to_idle_time(file):
    result = detailed(file)
    for row in records(result.idle):
        here = result.gaps[result.gaps["device"] == row["device"]]
        assert {part: here[f"{part}_ns"].sum() for part in SUMMED} == {part: row[f"{part}_ns"] for part in SUMMED}
    first = result.idle_steps["step"].min()  # which may begin before anything ran
    for row in [row for row in records(result.idle_steps) if row["step"] > first]:
        here = result.gaps[(result.gaps["device"] == row["device"]) & (result.gaps["step"] == row["step"])]
        assert {part: here[f"{part}_ns"].sum() for part in SUMMED} == {part: row[f"{part}_ns"] for part in SUMMED}


def holding(operators: list[Event], begin: int, end: int) -> set[str]:
    """The operators that may be named for the time between these moments: alike to 2 ns each."""

    def times(within: list[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for o in sorted(operators, key=lambda o: (o.start, -o.end)):
            parts = found.setdefault(o.name, [])
            for first, last in within:
                start = max(o.start, first, parts[-1][1] if parts else first)
                if start < min(o.end, last):
                    parts.append((start, min(o.end, last)))
        return found

    def length(parts: list[tuple[int, int]]) -> int:
        return sum(last - first for first, last in parts)

    whole = times([(begin, end)])
    longest = max(map(length, whole.values()), default=0)
    named = set()
    for outer in (parts for parts in whole.values() if length(parts) >= longest - 2):
        lengths = {name: length(parts) for name, parts in times(outer).items()}
        enough = {name: ns for name, ns in lengths.items() if ns >= 0.75 * length(outer) - 2}
        named |= {name for name, ns in enough.items() if ns <= min(enough.values()) + 2}
    return named


@pytest.mark.slow_cases("hta-negq-r0of16/rank0.json.gz", "vllm-b200-r0of8/eager_trace.json.gz")
@pytest.mark.parametrize("file", SEVERAL)
def test_the_operator_behind_the_longest_gaps(file):
    events = raw(file)
    zero = int(detailed(file).run.activities["start_ns"].min())
    checked = records(detailed(file).gaps[detailed(file).gaps["cause"] == "operator"].head(100))
    for row in checked:
        # As in the table, operators that only record a call's arguments do not count.
        here = [o for o in events.operators if o.thread == row["thread"] and o.name != "record_param_comms"]
        begin = row["start_ns"] - zero
        assert row["operator"] in holding(here, begin, begin + row["starved_ns"])
