"""Counters of links beside sizes of calls, and GPUs that were slowed down."""

import json

import pytest
from builders import MS, Collective, traces_of

from commtrace import analyse
from commtrace.analysis.metrics.device.link_bytes import sent_bytes_by_step
from commtrace.cli import main

SIZE_BYTES = 8_000_000


@pytest.fixture
def run(tmp_path):
    """Two ranks, two steps with an all_reduce each; the capture has ten steps."""
    truth = [Collective((k * 10 * MS, k * 10 * MS), elems=SIZE_BYTES // 4, transfer=5 * MS) for k in range(2)]
    for rank, trace in enumerate(traces_of(2, truth)):
        for step in range(2):
            trace.step(step, step * 10 * MS - MS, step * 10 * MS + 8 * MS)
        trace.write(tmp_path)
        state = {"sm_clock_mhz": 1155, "temperature_c": 87}
        side = {
            "rank": rank,
            "steps": [{"step": step, "phase": "idle", "dur_ns": 10} for step in range(10)],
            "gpu_states": [
                state | {"at": "start", "nvlink_sent_bytes": 5_000, "slowed_by": []},
                state | {"at": "end", "nvlink_sent_bytes": 5_000 + 10 * 8_400_000, "slowed_by": ["power cap"] * rank},
            ],
        }
        (tmp_path / f"node_{rank}.meta.json").write_text(json.dumps(side))
    return tmp_path


def test_what_a_rank_sends_in_a_step(run):
    found = analyse(run)
    assert sent_bytes_by_step(found.calls) == {0: SIZE_BYTES, 1: SIZE_BYTES}  # 2 (n - 1) / n of it, n = 2
    unknown = found.calls.assign(size_bytes=found.calls["size_bytes"].where(found.calls["rank"] == 1))
    assert sent_bytes_by_step(unknown) == {1: SIZE_BYTES}


@pytest.mark.slow
def test_counters_stand_beside_sizes(run, capsys):
    told = "sent 8.4 MB a step and GPU by their counters, over the whole capture; 8.0 MB by the sizes of traced calls"
    assert analyse(run).link_counters.startswith(told)
    assert main(["bandwidth", str(run)]) == 0
    assert f"note: NVLinks {told}" in capsys.readouterr().err
    assert main(["summary", "--all", str(run)]) == 0
    assert "NVLinks" in capsys.readouterr().out


def test_a_gpu_that_was_slowed_down_is_named(run):
    (note,) = [note for note in analyse(run).run.notes if "slowed" in note]
    assert note == "rank 1: its GPU was slowed down at the end of the capture: power cap, 1,155 MHz, 87 °C"


@pytest.mark.parametrize("sent", [[None, 7], [9, 7], ["x", 7]])
def test_counters_that_make_no_sense_are_none(run, sent):
    path = run / "node_0.meta.json"
    side = json.loads(path.read_text())
    for state, count in zip(side["gpu_states"], sent, strict=True):
        state["nvlink_sent_bytes"] = count
    path.write_text(json.dumps(side))
    assert list(analyse(run).run.nvlink) == [1]
