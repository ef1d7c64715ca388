"""Speedups and efficiencies: each where its assumption holds, NA with the reason where it does not."""

import pytest
from sweep_builders import Cell, write_sweep

from commtrace import analyse_sweep
from commtrace.analysis.core.schema import records
from commtrace.analysis.core.tables.sweeps import SCALING, TIMINGS
from commtrace.analysis.sweeps.scaling import scaling, scaling_verdict


def cell(workers=1, batch=32, epoch_ns=1000, samples=6400, parallel="ddp", steps="own", **more):
    """A row of TIMINGS; `steps` of an epoch follow from the batches unless they are given."""
    if steps == "own":
        steps = -(-samples // (workers * batch)) if samples else None
    return {
        "run": f"{parallel}-w{workers}-b{batch}", "model": "m", "parallel": parallel, "workers": workers,
        "batch_size_per_worker": batch, "status": "done", "epoch_ns": epoch_ns, "timed_steps": steps,
        "epoch_steps": steps, "dataset_samples": samples, **more,
    }  # fmt: skip


def failed(status, reason=None, **place):
    return cell(**place) | {
        "status": status, "reason": reason, "epoch_ns": None, "timed_steps": None, "epoch_steps": None,
        "dataset_samples": None,
    }  # fmt: skip


def scaled(*cells):
    """The rows of the table for these cells."""
    return records(scaling(TIMINGS.frame({**row, "cell": number} for number, row in enumerate(cells))))


def test_workers_that_share_an_epoch():
    one, two = scaled(cell(1, epoch_ns=1000), cell(2, epoch_ns=625))
    assert (two["speedup_fixed_work"], two["speedup_scaled_work"]) == (1.6, 3.2)
    assert (two["strong_efficiency_frac"], two["weak_efficiency_frac"]) == (0.8, 0.8)
    assert (two["epoch_work"], two["baseline"]) == ("shared", "ddp-w1-b32")
    assert two["samples_per_s"] == 6400 / 625e-9
    assert [one[c] for c in ("speedup_fixed_work", "speedup_scaled_work", "strong_efficiency_frac")] == [1, 1, 1]
    assert (one["speedup_same_batch"], one["note"]) == (1, None)


def test_workers_that_each_do_a_whole_epoch():
    _, two = scaled(cell(1, epoch_ns=1000), cell(2, epoch_ns=1250, samples=12800))
    assert (two["epoch_work"], two["speedup_fixed_work"], two["speedup_scaled_work"]) == ("repeated", 0.8, 1.6)
    assert (two["strong_efficiency_frac"], two["weak_efficiency_frac"]) == (None, 0.8)
    assert "each worker does a whole epoch, so there is no strong scaling" in two["note"]


def test_epochs_that_cannot_be_compared():
    _, two = scaled(cell(1), cell(2, samples=6000))
    assert two["epoch_work"] == "different"
    assert [two[c] for c in ("speedup_fixed_work", "speedup_scaled_work", "weak_efficiency_frac")] == [None] * 3
    assert "its epoch has 6,000 samples, that of ddp-w1-b32 6,400" in two["note"]


def test_the_weak_efficiency_compares_steps_not_epochs():
    # 6410 samples are 201 steps of one worker, 101 of two: half a step more than half as many.
    one, two = cell(1, epoch_ns=201_000, samples=6410), cell(2, epoch_ns=101_000, samples=6410)
    _, two = scaled(one, two)
    assert two["weak_efficiency_frac"] == pytest.approx(1)
    assert two["strong_efficiency_frac"] == pytest.approx(201 / 202)


def test_the_same_global_batch_has_a_baseline_of_its_own():
    _, _, two = scaled(cell(1, 32, 1000), cell(1, 64, 900), cell(2, 32, 600))
    assert two["speedup_same_batch"] == 1.5
    assert two["speedup_fixed_work"] == pytest.approx(1000 / 600)
    _, two = scaled(cell(1, 32), cell(2, 32))
    assert (two["speedup_same_batch"], two["note"]) == (
        None, "same batch: no cell with 1 worker at batch size 64",
    )  # fmt: skip


def test_workers_that_share_each_batch():
    # As of a pipeline: as many steps with two workers as with one.
    _, two = scaled(cell(1, parallel="single"), cell(2, parallel="pipeline", epoch_ns=800, steps=200))
    assert two["baseline"] == "single-w1-b32"
    assert (two["speedup_fixed_work"], two["speedup_same_batch"]) == (1.25, 1.25)
    assert (two["weak_efficiency_frac"], two["note"]) == (None, "weak efficiency: the workers share each batch")


def test_steps_that_fit_no_batch_size():
    _, two = scaled(cell(1), cell(2, steps=150))
    assert two["speedup_same_batch"] is None
    assert "same batch: the steps of an epoch" in two["note"]


def test_without_samples_only_times_are_compared():
    _, two = scaled(cell(1, samples=None), cell(2, samples=None, epoch_ns=500))
    assert (two["speedup_fixed_work"], two["strong_efficiency_frac"]) == (2, 1)
    assert [two[c] for c in ("epoch_work", "samples_per_s", "weak_efficiency_frac")] == [None] * 3
    assert "weak efficiency: the steps of an epoch are not known (dataset_samples)" in two["note"]


def test_the_baseline_is_of_the_same_mode_else_single():
    rows = scaled(
        cell(1, parallel="single", epoch_ns=1000), cell(1, parallel="dp", epoch_ns=1100),
        cell(2, parallel="ddp", epoch_ns=500), cell(2, parallel="dp", epoch_ns=550),
    )  # fmt: skip
    assert [r["baseline"] for r in rows] == ["single-w1-b32", "dp-w1-b32", "single-w1-b32", "dp-w1-b32"]
    assert [r["speedup_fixed_work"] for r in rows] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([cell(2)], "no baseline: no cell with 1 worker at batch size 32"),
        ([cell(2), cell(1, batch=64)], "no baseline: no cell with 1 worker at batch size 32"),
        ([cell(2), cell(1) | {"model": "other"}], "no baseline: no cell with 1 worker at batch size 32"),
        ([cell(2), cell(1, parallel="fsdp")], "no baseline: no cell with 1 worker at batch size 32"),
        ([cell(2), failed("out_of_memory")], "no baseline: ddp-w1-b32 is out of memory"),
        ([cell(2), failed("open")], "no baseline: ddp-w1-b32 is not run yet"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_missing_baseline_is_named(cells, reason):
    two = next(r for r in scaled(*cells) if r["workers"] == 2)
    assert two["speedup_fixed_work"] is two["strong_efficiency_frac"] is two["weak_efficiency_frac"] is None
    assert reason in two["note"]
    assert two["samples_per_s"] is not None


def test_a_failed_baseline_gives_way_to_a_single_one():
    rows = scaled(failed("failed"), cell(1, parallel="single", epoch_ns=900), cell(2, epoch_ns=450))
    assert (rows[2]["baseline"], rows[2]["speedup_fixed_work"]) == ("single-w1-b32", 2)


@pytest.mark.parametrize(
    ("status", "reason", "note"),
    [("out_of_memory", "tried to allocate 9 GiB", "tried to allocate 9 GiB"), ("out_of_data", None, "out of data"),
     ("failed", None, "failed"), ("open", None, "not run yet"), ("skipped", None, "skipped")],
)  # fmt: skip
def test_a_cell_that_failed_stays_with_its_reason(status, reason, note):
    _, row = scaled(cell(1), failed(status, reason, workers=2))
    assert (row["status"], row["note"], row["epoch_ns"], row["speedup_fixed_work"]) == (status, note, None, None)


def test_a_bounded_epoch_is_said():
    (row,) = scaled(cell(1) | {"timed_steps": 20})
    assert row["note"] == "timed 20 of 200 steps, scaled to a whole epoch"


def test_workers_that_share_cores_are_said():
    alone, two = scaled(cell(), cell(workers=2, epoch_ns=800, shared_cores=16))
    assert alone["note"] is None
    assert two["note"].startswith("its 2 workers share the 16 cores that one worker has for itself; ")


@pytest.mark.parametrize(("epoch_ns", "said"), [(480, False), (470, True)])
def test_an_efficiency_that_cannot_be_is_said(epoch_ns, said):
    _, two = scaled(cell(), cell(workers=2, epoch_ns=epoch_ns))
    why = "106% is more than workers can have: the baseline is too slow"
    assert (why in (two["note"] or "")) == said
    verdict = scaling_verdict(SCALING.frame([two | {"weak_efficiency_frac": 1.0}]))
    assert verdict.startswith("NA: ") == (why in verdict) == said


def test_no_cells():
    assert scaling(TIMINGS.empty()).equals(SCALING.empty())


def test_a_sweep_becomes_the_table(tmp_path):
    write_sweep(tmp_path, [Cell(1, epoch_s=10), Cell(2, epoch_s=(6, 8), steps=10), Cell(4, status="failed")])
    found = analyse_sweep(tmp_path)
    assert [r["status"] for r in records(found.scaling)] == ["done", "done", "failed"]
    two = records(found.scaling)[1]
    assert two["speedup_fixed_work"] == pytest.approx(1.25)
    assert two["note"].startswith("timed 10 of 782 steps, scaled to a whole epoch; ")
    before = found.timings.copy()
    scaling(found.timings)
    assert found.timings.equals(before)
