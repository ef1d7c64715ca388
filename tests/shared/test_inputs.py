"""Real traces of devices and versions that others take for something else."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from beside_checkout import SHARED, TRACES, needs_shared
from builders import write_bytes

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import load_run

pytestmark = needs_shared


def the_run(path: Path, **options: bool) -> Analysis:
    return Analysis(load_run([path], **options))


@pytest.mark.slow
@pytest.mark.parametrize("verify", [False, True])
def test_an_mtia_was_busy_58_percent_of_the_time(verify):
    found = the_run(TRACES / "hta-mtia", verify=verify)
    (row,) = records(replace(found, whole=True).breakdown)
    assert (row["device"], row["window_ns"] - row["idle_ns"]) == ("9", 7_701_827_312)
    assert row["window_ns"] == 13_335_836_440
    assert (row["comm_ns"], row["exposed_comm_ns"]) == (0, 0)
    assert found.run.activities.groupby("kind", observed=True).size().to_dict() == {"compute": 3_453, "memory": 22_361}
    assert found.run.steps == [1]


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("verify", [False, True])
def test_steps_of_torch_1_9(verify):
    assert the_run(TRACES / "kineto-resnet", verify=verify).run.steps == [5, 6, 7, 8, 9, 10]


def test_sizes_that_stand_in_operators():
    calls = the_run(TRACES / "hta-negq-r0of16").calls
    unknown = calls[calls["size_bytes"].isna()]
    assert unknown["metadata_from"].tolist() == ["none"] * 5  # launched before the window
    shared_out = calls[calls["collective"].isin(["all_gather", "reduce_scatter"])]
    assert shared_out["group_size"].tolist() == [8] * 20
    assert sorted(shared_out["size_bytes"].unique()) == [65536 * 64 * 4, 65536 * 384 * 4]


@pytest.mark.quick_cases("moe-b200-r0of2")
@pytest.mark.parametrize("traces", ["nanogpt-h100-w8", "moe-b200-r0of2"])
def test_collectives_say_the_rank_that_the_header_says(tmp_path, traces):
    """As files of dynolog are: without distributedInfo, and of names that tell nothing."""
    told = {}
    for number, path in enumerate(sorted((TRACES / traces).glob("*.json.gz"))):
        content = gzip.decompress(path.read_bytes())
        told[f"{chr(97 + number)}.json"] = json.loads(content)["distributedInfo"]["rank"]
        renamed = content.replace(b'"distributedInfo"', b'"somethingElse12"')
        assert renamed != content
        write_bytes(tmp_path / f"{chr(97 + number)}.json", renamed)
    found = load_run([tmp_path]).traces
    assert dict(zip(found["trace"], found["rank"], strict=True)) == told
    assert set(found["rank_from"]) == {"collectives"}


def test_two_kernels_without_a_time_do_not_make_a_step_of_26_years():
    found = the_run(SHARED / "field" / "ts-zero-kernels")
    assert [row["window_ns"] for row in records(found.breakdown_steps)] == [10_000_000, 10_000_000, 9_300_000]
    assert sum("left out 2 GPU events with an impossible time" in note for note in found.run.notes) == 1


def test_messages_that_name_both_ends_are_matched():
    found = the_run(SHARED / "field" / "p2p-src-and-dst").collectives
    assert found[["collective", "ranks", "certain"]].to_numpy().tolist() == [["send_recv", "0 1", True]] * 3
    assert (found["last_rank"] == 0).all()
    assert (found["arrival_skew_ns"] == 3_000_000).all()


@pytest.mark.slow_cases("ends-differ-once-2")
@pytest.mark.parametrize(("name", "times"), [("ends-differ-once", 2), ("ends-differ-always", 10)])
def test_a_rank_that_ends_late_on_its_host_is_named(name, times):
    found = the_run(SHARED / "field" / name)
    said = f"rank 1 ended {times} of 10 collectives 5.000 ms after other ranks of its host"
    assert [text for text in found.warnings if text.startswith(said)]
    assert found.bandwidth["busbw_gb_per_s"].round(1).tolist() == [24.2]


@pytest.mark.slow_cases("path12", "path1", "path4", "path7")
@pytest.mark.parametrize("path", sorted(path for path in TRACES.iterdir() if path.is_dir()) if SHARED.is_dir() else [])
def test_no_kernels_of_real_traces_contradict_each_other(path):
    notes = the_run(path).run.notes
    assert not [note for note in notes if "stream was free" in note or "another one, with the same" in note]
