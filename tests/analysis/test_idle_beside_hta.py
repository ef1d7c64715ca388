"""Idle time of one stream as HolisticTraceAnalysis divides it, and as `idle` does: the same gaps, other parts.

HTA calls a whole gap host_wait if the call that launched what ended it began after the kernel before had ended; of the
others those below 30 us kernel_wait, and those above other. `idle` divides every gap where that call began and ended.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from host_bound import AFTER_NS, trace
from second_opinion import gaps_of_one_stream, idle_by_category, to_the_ns, trace_analysis

from commtrace import analyse

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WORLDS = {
    "host-bound": (1, AFTER_NS),
    "in between": (3, AFTER_NS),
    "gpu-bound": (20, AFTER_NS),
    "slow to begin": (4, 41_000),
}
_CENT_NS = 10
"""HTA shows hundredths of a microsecond, three of them."""


@pytest.fixture(params=WORLDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    trace(*WORLDS[request.param]).write(tmp_path / "run")
    return tmp_path / "run"


def test_both_find_the_same_gaps_and_divide_them_as_they_say(run: Path, tmp_path: Path) -> None:
    (ours,) = analyse(run, details=True, cache=False, whole=True).idle.to_dict("records")
    with to_the_ns():
        theirs = idle_by_category(trace_analysis(run, tmp_path / "copy"))
    gaps, overlapped = gaps_of_one_stream(next(run.iterdir()))
    known = [(gap, gap.launch) for gap in gaps if gap.launch]
    late = [(gap, launch) for gap, launch in known if launch[0] > gap.start]
    in_time = [gap.end - gap.start for gap, launch in known if launch[0] <= gap.start]
    assert len(known) == len(gaps)
    assert overlapped == 0
    assert sum(theirs.values()) == pytest.approx(ours["idle_ns"], abs=3 * _CENT_NS)
    assert theirs["host_wait"] == pytest.approx(sum(gap.end - gap.start for gap, _ in late), abs=_CENT_NS)
    assert theirs.get("kernel_wait", 0) == pytest.approx(sum(ns for ns in in_time if ns < 30_000), abs=_CENT_NS)
    assert theirs["other"] == pytest.approx(sum(ns for ns in in_time if ns >= 30_000), abs=_CENT_NS)
    assert ours["starved_ns"] == sum(min(launch[0], gap.end) - gap.start for gap, launch in late)
    assert ours["starved_ns"] <= theirs["host_wait"] + _CENT_NS
    assert theirs["host_wait"] - ours["starved_ns"] <= ours["launching_ns"] + ours["queued_ns"] + _CENT_NS


def test_rounding_makes_every_gap_longer(run: Path, tmp_path: Path) -> None:
    (ours,) = analyse(run, details=True, cache=False, whole=True).idle.to_dict("records")
    gaps, _ = gaps_of_one_stream(next(run.iterdir()))
    rounded = sum(idle_by_category(trace_analysis(run, tmp_path / "copy")).values())
    assert ours["idle_ns"] < rounded < ours["idle_ns"] + 2_000 * len(gaps)


def test_this_host_does_not_wait_for_its_gpu() -> None:
    """So its CPU is the critical path, of which HTA says that most is compute: docs/coming-from-hta.md."""

    def begins_us(slower: int) -> list[float]:
        return [event["ts"] for event in trace(slower).events if event["name"].startswith("ProfilerStep")]

    assert begins_us(0) == pytest.approx(begins_us(1), abs=2)
