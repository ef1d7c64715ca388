"""Launches that wait on streams of real traces, against what their JSON says."""

import pytest
from beside_checkout import TRACES, needs_shared
from raw_traces import SEVERAL, Event, raw

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared


def waits_of(file: str) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """When each call began, and the first activity that it launched on that stream."""
    events = raw(file)
    launches = events.launches()
    firsts: dict[tuple[str, int], dict[int, Event]] = {}
    for event in sorted(events.activities, key=lambda event: event.start):
        if event.correlation in launches:
            firsts.setdefault((event.device, event.thread), {}).setdefault(event.correlation, event)
    return {
        where: [(launches[number].start, first.start) for number, first in begun.items()]
        for where, begun in firsts.items()
    }


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("torchrec-a2a3", {7: 88, 20: 6, 25: 5, 44: 1, 48: 2, 52: 2}),
        ("ddp-a100-r0of2", {7: 10, 40: 1}),
    ],
)
def test_the_most_that_wait_as_hta_counts(name, most):
    """The maxima of HTA 0.6.1's get_queue_length_summary with include_last_profiler_step=True."""
    rows = [row for row in records(analyse(TRACES / name).queue) if row["rank"] == 0]
    assert {row["stream"]: row["max_depth"] for row in rows} == most


@pytest.mark.slow_cases("hta-negq-r0of16/rank0.json.gz")
@pytest.mark.parametrize("file", SEVERAL)
def test_queues_as_the_json_has_them(file):
    result = analyse(TRACES / file, workers=1)
    zero = int(result.run.activities["start_ns"].min())
    windows = {d: (here[0].start, max(e.end for e in here)) for d, here in raw(file).devices().items()}
    rows = {(row["device"], row["stream"]): row for row in records(result.queue)}
    points: dict[tuple[str, int], dict[int, int]] = {}
    for row in records(result.queue_times):
        points.setdefault((row["device"], row["stream"]), {})[row["time_ns"] - zero] = row["depth"]
    wanted = waits_of(file)
    assert points.keys() == wanted.keys()
    for where, waits in wanted.items():
        start, end = windows[where[0]]
        changes = sorted([(call, 1) for call, begin in waits if begin > call]
                         + [(begin, -1) for call, begin in waits if begin > call])  # fmt: skip
        depth, last, summed, empty, most, seen = 0, start, 0, 0, 0, {start: 0}
        for moment, step in changes:
            if moment > last:
                empty += moment - last if depth == 0 else 0
                summed += depth * (moment - last)
                most, last = max(most, depth), moment
            depth += step
            seen[max(moment, start)] = depth
        empty += end - last if depth == 0 else 0
        row = rows[where]
        assert (row["launches"], row["window_ns"]) == (len(waits), end - start)
        assert (row["max_depth"], row["empty_ns"]) == (most, empty)
        assert row["mean_depth"] == pytest.approx(summed / (end - start))
        assert points[where] == {moment: value for moment, value in seen.items() if moment < end}
