"""Timelines of real traces, and offsets in bundles against runs whose clocks are known."""

import gzip
import json
from collections import Counter

import pytest
from beside_checkout import SHARED, TRACES
from perfetto_reading import tracks_of
from samples import with_slow

from commtrace.analysis.results.opening import analyse
from commtrace.analysis.timeline.bundle import bundle
from commtrace.analysis.timeline.drawing import run_timeline

TRUTH = SHARED / "truth"
pytestmark = pytest.mark.skipif(
    not (TRACES.is_dir() and TRUTH.is_dir()),
    reason="no shared traces, or runs whose truth is known, beside the checkout",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["torchrec-v100-w4"], ["nanogpt-h100-w8", "rccl-mi300x-r0of8"]))
def test_nothing_of_a_real_run_is_lost(name):
    found = analyse(TRACES / name)
    drawn = Counter()
    for track in tracks_of(found.timeline()):
        for slice_ in track.slices:
            kind = track.name.split(" ")[0]
            drawn[kind] += kind != "communication" or "call_id" in slice_.notes
    ran = found.run.activities["kind"].value_counts()
    assert drawn["compute"] == ran.get("compute", 0)
    assert drawn["copies"] == ran.get("memory", 0)
    assert drawn["communication"] == len(found.calls)


@pytest.mark.slow
@pytest.mark.parametrize("case", with_slow(["min_wc2_1000us_seq"], ["d2_100000ms_100ppm", "d_us_seq", "g_fsdp_2h"]))
def test_bundled_files_of_one_moment_meet(case):
    """Shifted by their offsets, what happened at one moment stands at one time in all files, whatever their clocks."""
    found = analyse(TRUTH / case)
    made = bundle(found.run.traces, found.run.tables.ran, found.clocks, run_timeline(found).zero_ns)
    base = found.run.traces.set_index("rank")["base_ns"]
    later = {file.rank: file.offset_ns for file in made.files}
    uncertain = int(found.clocks["uncertainty_ns"].max()) + made.drift_ns
    with gzip.open(TRUTH / f"{case}.truth.json.gz", "rt") as file:
        truth = json.load(file)
    ahead = [
        call["start_ns"] - int(base[call["rank"]]) + later[call["rank"]] - call["true_start"] * 1000
        for call in truth["calls"]
    ]
    true_spread = 1e3 * max(abs(clock["offset_us"]) for clock in truth["clocks"].values())
    assert max(ahead) - min(ahead) <= 2 * uncertain + spread_of_drift(truth)
    assert true_spread == 0 or max(ahead) - min(ahead) < true_spread / 10


def spread_of_drift(truth: dict) -> float:
    """How far true clocks drift apart over the run, in ns."""
    ppm = [clock["ppm"] for clock in truth["clocks"].values()]
    times_us = [call["true_start"] for call in truth["calls"]]
    return max(map(abs, ppm)) * 1e-3 * (max(times_us) - min(times_us))
