"""A second opinion: HolisticTraceAnalysis on a trace where its numbers are exact (whole microseconds)."""

import pytest
from beside_checkout import TRACES, needs_shared
from second_opinion import trace_analysis

from commtrace.analysis.results.opening import analyse

DLRM = TRACES / "dlrm-v100-w8"
pytestmark = [needs_shared, pytest.mark.slow]


@pytest.fixture(scope="module")
def second_opinion(tmp_path_factory):
    return trace_analysis(DLRM, tmp_path_factory.mktemp("dlrm"))


@pytest.mark.filterwarnings("ignore")
def test_temporal_breakdown(second_opinion):
    theirs = second_opinion.get_temporal_breakdown(visualize=False).sort_values("rank")
    ours = analyse(DLRM, whole=True).breakdown
    # They count every kernel that is no computation, copies included, and call the time only those take non-compute.
    other = ours["exposed_comm_ns"] + ours["exposed_memory_ns"]
    assert theirs["rank"].tolist() == ours["rank"].tolist()
    assert (theirs["kernel_time(us)"] * 1000).astype("int64").tolist() == ours["window_ns"].tolist()
    assert (theirs["compute_time(us)"] * 1000).astype("int64").tolist() == ours["compute_ns"].tolist()
    assert (theirs["idle_time(us)"] * 1000).astype("int64").tolist() == ours["idle_ns"].tolist()
    assert (theirs["non_compute_time(us)"] * 1000).astype("int64").tolist() == other.tolist()


@pytest.mark.filterwarnings("ignore")
def test_overlap(second_opinion):
    theirs = second_opinion.get_comm_comp_overlap(visualize=False).sort_values("rank")
    ours = analyse(DLRM, whole=True).breakdown
    percent = [round(float(share) * 100, 2) for share in ours["hidden_comm_frac"]]
    assert theirs["rank"].tolist() == ours["rank"].tolist()
    assert [round(float(share), 2) for share in theirs["comp_comm_overlap_pctg"]] == percent
