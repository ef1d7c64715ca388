"""Communication by subtraction beside what the traces of the same cells measured, and the known mistakes."""

import shutil
from pathlib import Path

import pytest
from builders import MS, Collective, traces_of, write_bytes
from sweep_builders import RESNET18, Cell, edited, write_sweep

from commtrace import analyse, analyse_sweep
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.sweeps import SUBTRACTION, TIMINGS
from commtrace.analysis.errors import DamagedTrace
from commtrace.analysis.sweeps.by_hand import KNOWN_MISTAKES, Estimate, Facts
from commtrace.analysis.sweeps.cells import load_sweep
from commtrace.analysis.sweeps.subtraction import measured_table, mistakes, subtraction

ROOT = Path(__file__).resolve().parents[2]
STEPS = 782  # of an epoch of 50,000 samples, two workers and a batch of 32 each
SIZE = RESNET18["bytes"]


def traced(world=2):
    """Two steps of 100 ms. Per step rank 0 computes 50 ms and waits 20 ms, 10 of them hidden; the last computes 60."""
    arrivals = [(k * 100 + 40 + 20 * (rank == world - 1)) * MS for k in (0, 1) for rank in range(world)]
    truth = [Collective(arrivals[k * world : (k + 1) * world], 30 * MS, elems=SIZE // 4) for k in (0, 1)]
    traces = traces_of(world, truth)
    for rank, trace in enumerate(traces):
        for k in (0, 1):
            trace.step(k, k * 100 * MS, (k + 1) * 100 * MS)
            trace.kernel("gemm", k * 100 * MS, (50 + 10 * (rank == world - 1)) * MS)
    return traces


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path, [Cell(1, epoch_s=100), Cell(2, epoch_s=80, traced=traced(), data_s=4)])


def only(path, **options):
    (row,) = records(analyse_sweep(path, **options).subtraction)
    return row


# --- beside the measured ---------------------------------------------------------------------------------------------


def test_both_ways_stand_beside_what_was_measured(sweep):
    row = only(sweep)
    assert (row["run"], row["baseline"]) == ("resnet18-ddp-w2-b32", "resnet18-ddp-w1-b32")
    assert (row["subtracted_compute_ns"], row["subtracted_comm_ns"]) == (50_000 * MS, 30_000 * MS)
    assert (row["traced_steps"], row["epoch_steps"]) == (2, STEPS)
    assert row["window_ns"] == 95 * MS * STEPS
    assert row["compute_ns"] == 55 * MS * STEPS
    assert row["comm_ns"] == 40 * MS * STEPS
    assert row["exposed_comm_ns"] == 35 * MS * STEPS
    assert row["exposed_wait_ns"] == 5 * MS * STEPS
    assert row["exposed_transfer_ns"] == 30 * MS * STEPS
    assert row["exposed_unsplit_ns"] == 0
    assert row["not_compute_ns"] == 80_000 * MS - 55 * MS * STEPS
    assert row["loader_ns"] == 4_000 * MS
    assert row["difference_ns"] == 30_000 * MS - 35 * MS * STEPS
    assert row["note"] is None


def test_what_it_does_to_bandwidth(sweep):
    row = only(sweep)
    assert row["message_bytes"] == SIZE
    assert row["subtracted_busbw_gb_per_s"] == pytest.approx(SIZE * STEPS / 30e9)
    assert row["busbw_gb_per_s"] == pytest.approx(SIZE / (30 * MS))


def test_sums_of_measured_bandwidth_not_means(tmp_path):
    truth = [Collective((0, 0), 10 * MS, elems=1000), Collective((50 * MS, 50 * MS), 30 * MS, elems=100_000)]
    traces = [t.step(0, 0, 90 * MS) for t in traces_of(2, truth)]
    row = only(write_sweep(tmp_path, [Cell(2, epoch_s=8, traced=traces)]))
    assert row["busbw_gb_per_s"] == pytest.approx(404_000 / (40 * MS))


def test_negative_communication_is_shown_as_what_it_is(tmp_path):
    row = only(write_sweep(tmp_path, [Cell(1, epoch_s=10), Cell(2, epoch_s=4.5)]))
    assert row["subtracted_comm_ns"] == -500 * MS
    assert row["subtracted_busbw_gb_per_s"] is None
    assert "subtraction leaves no time for communication, so no bandwidth" in row["note"]


def test_a_cell_without_traces_still_has_its_times(tmp_path):
    row = only(write_sweep(tmp_path, [Cell(1, epoch_s=10), Cell(2, epoch_s=6)]))
    assert (row["subtracted_comm_ns"], row["note"]) == (1_000 * MS, "no traces")
    assert [row[c] for c in ("traced_steps", "comm_ns", "not_compute_ns", "difference_ns", "busbw_gb_per_s")] == [
        None
    ] * 5


def test_a_cell_without_a_baseline_is_still_measured(tmp_path):
    row = only(write_sweep(tmp_path, [Cell(2, epoch_s=80, traced=traced())]))
    assert (row["subtracted_comm_ns"], row["difference_ns"]) == (None, None)
    assert row["exposed_comm_ns"] == 35 * MS * STEPS
    assert row["note"] == "no baseline: no cell with 1 worker at batch size 32"


def test_a_failed_cell_stays_and_single_workers_are_left_out(tmp_path):
    write_sweep(tmp_path, [Cell(1), Cell(2, status="out_of_memory", reason="9 GiB wanted"), Cell(4, status="open")])
    found = [(r["workers"], r["status"], r["note"]) for r in records(analyse_sweep(tmp_path).subtraction)]
    assert found == [(2, "out_of_memory", "9 GiB wanted"), (4, "open", "not run yet")]


def test_workers_that_do_not_share_the_epoch_are_not_subtracted(tmp_path):
    row = only(write_sweep(tmp_path, [Cell(1), Cell(2, samples=100_000)]))
    assert row["subtracted_comm_ns"] is None
    assert "the workers do not share the epoch of resnet18-ddp-w1-b32" in row["note"]


@pytest.mark.parametrize("parallel", ["fsdp", "pipeline"])
def test_other_modes_have_no_bandwidth_by_hand(tmp_path, parallel):
    row = only(write_sweep(tmp_path, [Cell(1, parallel="single"), Cell(2, parallel=parallel)]))
    assert row["subtracted_comm_ns"] is not None
    assert row["message_bytes"] is row["subtracted_busbw_gb_per_s"] is None
    assert f"{parallel} does not reduce whole gradients in every step" in row["note"]


def test_dataparallel_is_measured_on_all_its_devices(tmp_path):
    (trace,) = traces_of(1, [Collective((0,), 20 * MS)])
    trace.step(0, 0, 100 * MS)
    for device, dur in ((0, 50), (1, 30)):
        trace.kernel("gemm", 0, dur * MS, device=device).memcpy("PtoP", 60 * MS, 10 * MS, device=device)
    row = only(write_sweep(tmp_path, [Cell(1, parallel="dp"), Cell(2, parallel="dp", traced=[trace])]))
    assert row["compute_ns"] == 40 * MS * STEPS
    assert row["busbw_gb_per_s"] is None
    assert "no all_reduce in its traces that could be measured on all ranks" in row["note"]


@pytest.mark.slow
def test_traces_without_steps_and_with_a_missing_rank(tmp_path):
    traces = traces_of(2, [Collective((0, 0))])
    row = only(write_sweep(tmp_path / "a", [Cell(2, traced=traces)]))
    assert (row["traced_steps"], row["window_ns"]) == (0, None)
    assert "no step in its traces" in row["note"]
    row = only(write_sweep(tmp_path / "b", [Cell(2, traced=traced()[:1])]))
    assert row["exposed_comm_ns"] == 40 * MS * STEPS
    assert (row["exposed_wait_ns"], row["busbw_gb_per_s"]) == (None, None)
    assert "its communication could not be split into wait and transfer" in row["note"]
    assert "no trace of rank 1" in row["note"]


def test_damaged_traces_are_an_error_or_a_reason(sweep):
    write_bytes(sweep / "resnet18-ddp-w2-b32" / "node_1.0001.pt.trace.json.gz", b"\x1f\x8b")
    with pytest.raises(DamagedTrace, match=r"node_1\.0001"):
        only(sweep)
    found = analyse_sweep(sweep, keep_going=True)
    (row,) = records(found.subtraction)
    assert (row["subtracted_comm_ns"], row["comm_ns"]) == (30_000 * MS, None)
    assert row["note"].startswith("traces cannot be used: ")
    assert len(found.failed) == 1


def test_only_cells_with_several_workers_are_traced(sweep):
    # Nothing of the baseline's traces is shown, so they need not be readable.
    write_bytes(sweep / "resnet18-ddp-w1-b32" / "node_0.0001.pt.trace.json", b"{")
    assert only(sweep)["traced_steps"] == 2


@pytest.mark.slow
def test_names_of_kernels_are_passed_on(tmp_path):
    traces = [t.kernel("my_exchange", 190 * MS, 8 * MS) for t in traced()]
    write_sweep(tmp_path, [Cell(2, traced=traces)])
    plain, named = only(tmp_path), only(tmp_path, comm_names=["^my_"])
    assert named["comm_ns"] - plain["comm_ns"] == plain["compute_ns"] - named["compute_ns"] == 4 * MS * STEPS


@pytest.mark.slow
def test_a_real_capture_with_timed_epochs(tmp_path):
    """The run in the repository, with the epochs that a sweep would have added to its side files."""
    run = tmp_path / "run"
    shutil.copytree(ROOT / "traces" / "resnet18-ddp-w2", run)
    timed = {"phase": "timed", "steps": 9, "step_ns": 5_000 * MS, "data_ns": 30 * MS}
    for side in run.glob("*.meta.json"):
        edited(side, epochs=[timed], dataset_samples=50_000, full_epoch_steps=3125)
    row = only(run)
    found = analyse(run)
    assert (row["batch_size_per_worker"], row["traced_steps"]) == (8, 2)
    for name in ("window_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns"):
        assert row[name] == pytest.approx(found.breakdown_steps[name].mean() * 3125), name
    reduced = found.bandwidth[found.bandwidth["collective"] == "all_reduce"]["busbw_gb_per_s"]
    assert reduced.min() < row["busbw_gb_per_s"] < reduced.max()
    # Half of a step and more is compute: what is not compute is no communication by far.
    assert row["not_compute_ns"] > row["exposed_comm_ns"]


def test_nothing_to_subtract():
    assert subtraction(TIMINGS.empty(), measured_table([])).equals(SUBTRACTION.empty())


# --- known mistakes --------------------------------------------------------------------------------------------------


@pytest.fixture
def timings(sweep):
    return load_sweep([sweep]).timings


def made(timings, name):
    (row,) = records(mistakes(timings, [name]))
    assert (row["mistake"], row["subtracted_comm_ns"]) == (name, 30_000 * MS)
    assert row["subtracted_busbw_gb_per_s"] == pytest.approx(SIZE * STEPS / 30e9)
    return row


@pytest.mark.parametrize(
    ("name", "reports", "mistaken", "because"),
    [
        ("one-message", "A", SIZE / 30e9, "the bytes of 1 message over the time of 782"),
        ("elements", "C", SIZE / 4 * STEPS / 30e9, "11,173,962 elements taken for bytes, which are 44,695,848"),
        ("gib", "A", SIZE * STEPS / 30 / 2**30, "a GB taken to be 1,073,741,824 bytes, not 1,000,000,000"),
        ("unshared-epoch", "C", SIZE * 1563 / 30e9, "1,563 messages, as if one worker did the whole epoch, for 782"),
        ("data-set", "D", 50_000 * 3072 / 30e9,
         "the 153,600,000 bytes of the data set taken for what is sent, 782 messages of 44,695,848 bytes"),
        ("loader-time", "D", SIZE * STEPS / 4e9,
         "4.000 s of waiting for the data loader taken for communication, which is 30.000 s"),
        ("report-a", "A", SIZE / 30 / 2**30, "1 message"),
        ("report-c", "C", SIZE / 4 * 1563 / 30e9, "elements"),
        ("report-d", "D", 50_000 * 3072 / 4e9, "data loader"),
    ],
    ids=lambda v: str(v)[:15],
)  # fmt: skip
def test_every_mistake_is_what_its_name_says(timings, name, reports, mistaken, because):
    row = made(timings, name)
    assert row["reports"] == reports
    assert row["mistaken_busbw_gb_per_s"] == pytest.approx(mistaken)
    assert row["mistaken_factor"] == pytest.approx(mistaken / row["subtracted_busbw_gb_per_s"])
    assert because in row["because"]


def test_every_known_mistake_is_tested_and_in_order(timings):
    assert len(KNOWN_MISTAKES) == 9
    assert [r["mistake"] for r in records(mistakes(timings, list(KNOWN_MISTAKES)))] == list(KNOWN_MISTAKES)


def test_a_mistake_is_known_by_its_factor_even_without_time(tmp_path):
    write_sweep(tmp_path, [Cell(1, epoch_s=10), Cell(2, epoch_s=4.5)])
    rows = {r["mistake"]: r for r in records(analyse_sweep(tmp_path).mistakes(list(KNOWN_MISTAKES)))}
    assert rows["elements"]["mistaken_factor"] == 0.25
    assert rows["elements"]["mistaken_busbw_gb_per_s"] is rows["elements"]["subtracted_busbw_gb_per_s"] is None
    # A loader's time is a time, so it makes a bandwidth out of none.
    assert rows["loader-time"]["mistaken_busbw_gb_per_s"] == pytest.approx(SIZE * STEPS / 0.5e9)
    assert rows["loader-time"]["mistaken_factor"] is None
    assert all("subtraction leaves no time" in row["note"] for row in rows.values())


def test_mistakes_that_take_what_is_not_known(tmp_path):
    write_sweep(tmp_path, [Cell(1), Cell(2, epoch_s=8)])
    run = tmp_path / "resnet18-ddp-w2-b32"
    edited(run / "run.json", config={"model": "resnet18", "parallel": "ddp"})
    for rank in (0, 1):
        edited(run / f"node_{rank}.meta.json", model={"bytes": SIZE})
    rows = {r["mistake"]: r for r in records(analyse_sweep(tmp_path).mistakes(["data-set", "elements"]))}
    assert "the size of the data set (dataset_samples, sample_bytes) is not known" in rows["data-set"]["note"]
    assert "the parameters of the model are not known" in rows["elements"]["note"]
    assert all(row["mistaken_factor"] is row["because"] is None for row in rows.values())


@pytest.mark.parametrize("name", KNOWN_MISTAKES)
def test_cells_without_a_bandwidth_have_no_mistake(tmp_path, name):
    write_sweep(tmp_path, [Cell(1), Cell(2, status="failed", reason="broke"), Cell(4, parallel="fsdp")])
    failed, other = records(analyse_sweep(tmp_path).mistakes([name]))
    assert (failed["mistaken_factor"], failed["note"]) == (None, "broke")
    assert other["mistaken_factor"] is None
    assert other["note"].startswith("no baseline")


def test_an_estimate_over_no_time_is_not_divided():
    estimate = Estimate(100, 1.0, 10, 0)
    assert estimate.gb_per_s == float("inf")
    made_with, _ = KNOWN_MISTAKES["loader-time"].make(estimate, Facts(32, loader_ns=0))
    assert made_with.over(Estimate(100, 1.0, 10, 5)) is None
