"""The largest batch that fits, foreseen from two runs, against an allocator that is played until it runs out."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import pytest
from allocator import MIB, Allocator, OutOfMemory, snapshot, write

from commtrace import analyse_snapshots, fit_batches
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import NothingMeasured
from commtrace.analysis.metrics.memory.batches import BatchPeak, largest_batch
from commtrace.cli import main
from commtrace.profiling.capacity.search import largest_fitting

STEPS = 3


def trained(batch: int, capacity: int, seed: int) -> Allocator:
    """Some steps of training with this batch; steps are marked. Raises OutOfMemory."""
    draw = random.Random(seed)
    layers = [(draw.randrange(1, 40) * MIB // 2, draw.randrange(50, 3_000) * 1024) for _ in range(draw.randrange(2, 7))]
    one = Allocator(capacity=capacity)
    one.malloc(MIB)
    one.pause(10)
    for weights, _ in layers:
        one.malloc(weights)
    gradients: list[int] = []
    for step in range(STEPS):
        one.mark(f"ProfilerStep#{step}", "START")
        for address in gradients:
            one.free(address)
        held = [(one.malloc(each * batch), one.malloc(each * batch // 3)) for _, each in layers]
        gradients = []
        for (first, second), (weights, _) in zip(reversed(held), reversed(layers), strict=True):
            temporary = one.malloc(weights // 2)
            gradients.append(one.malloc(weights))
            for address in (first, second, temporary):
                one.free(address)
        if not step:
            for weights, _ in layers:
                one.malloc(2 * weights)
        one.pause(10)
        one.mark(f"ProfilerStep#{step}", "END")
    return one


def largest(capacity: int, seed: int) -> int:
    """Found by trying, as `commtrace capacity` does."""

    def fits(batch: int) -> bool:
        try:
            trained(batch, capacity, seed)
        except OutOfMemory:
            return False
        return True

    return largest_fitting(fits, max_tries=60).fits


def written(folder: Path, batch: int, capacity: int, seed: int) -> Path:
    folder.mkdir()
    return write(snapshot(trained(batch, capacity, seed)), folder / "memory_rank_0.pickle")


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_batch_is_in_the_interval(tmp_path, capsys, seed):
    capacity = (2 + seed % 3) << 30
    found = largest(capacity, seed)
    batches = [max(1, found // 3), max(2, 2 * found // 3)]
    runs = [written(tmp_path / str(batch), batch, capacity, seed) for batch in batches]
    fits = fit_batches(*[analyse_snapshots([run]) for run in runs], batches=batches, limit_bytes=capacity)
    [row] = records(fits.batch_memory)
    assert row["low_samples"] <= found <= row["high_samples"]
    assert row["high_samples"] < 2 * found
    given = ["--batch", ",".join(map(str, batches)), "--limit", str(capacity / 1e9), "-f", "csv"]
    assert main(["memory", "--by", "batch", *given, *map(str, runs)]) == 0
    [printed] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert printed["low_samples"] == str(row["low_samples"])


def test_without_what_is_outside_of_torch_nothing_is_said_to_fit(tmp_path):
    runs = [written(tmp_path / str(batch), batch, 8 << 30, 1) for batch in (4, 8)]
    analyses = [analyse_snapshots([run]) for run in runs]
    [row] = records(fit_batches(*analyses, batches=(4, 8)).batch_memory)
    assert (row["low_samples"], row["high_samples"]) == (None, None)
    assert "--limit" in row["note"]
    for one in analyses:
        one.memory["device_bytes"] = 8 << 30
    [row] = records(fit_batches(*analyses, batches=(4, 8)).batch_memory)
    assert row["low_samples"] is None
    assert row["high_samples"] > 8
    assert "outside of torch is not known" in row["note"]
    for one in analyses:
        one.memory["outside_bytes"] = 1 << 30
    [row] = records(fit_batches(*analyses, batches=(4, 8)).batch_memory)
    assert row["limit_bytes"] == 7 << 30
    assert 8 <= row["low_samples"] <= row["high_samples"]


def test_a_line_is_exact_and_what_is_none_makes_the_interval_wide():
    exact = largest_batch([BatchPeak(10, 1_100, 1_100, 1_100), BatchPeak(20, 1_200, 1_200, 1_200)], 2_000)
    assert (exact.line, exact.high) == ((1_000.0, 10.0), 100)
    curved = [
        BatchPeak(10, 1_100, 1_100, 1_100),
        BatchPeak(20, 1_200, 1_200, 1_200),
        BatchPeak(30, 1_500, 1_500, 1_500),
    ]
    wide = largest_batch(curved, 2_000)
    assert wide.low < 50 < wide.high
    assert wide.note == (
        "the peaks are not on one line: that of batch 20 is 8% below it; the interval holds what every two runs tell"
    )
    straight = [one._replace(least_bytes=1_480, most_bytes=1_500) if one.batch == 30 else one for one in curved]
    assert exact.note is None
    unused = [BatchPeak(batch, peak, peak, 1_100 + peak) for batch, peak in ((10, 0), (20, 1_200), (30, 2_400))]
    assert largest_batch(unused, 9_000).note is None
    assert largest_batch([*straight[::2], BatchPeak(20, 1_270, 1_290, 1_300)], 2_000).note is None
    flat = largest_batch([BatchPeak(10, 900, 1_100, 1_200), BatchPeak(20, 900, 1_100, 1_200)], 2_000)
    assert (flat.low, flat.high, flat.note) == (None, None, "the peak does not grow with the batch")
    assert (
        largest_batch([BatchPeak(10, 1, 1, 1), BatchPeak(10, 2, 2, 2)], 9).note
        == "needs runs with two different batches"
    )


def test_what_ran_fits_and_what_did_not_fit_does_not():
    fit = largest_batch([BatchPeak(10, 1_000, 1_000, 1_500), BatchPeak(20, 2_000, 2_000, 2_500)], 1_900)
    assert 10 <= fit.low <= fit.high <= 19


def test_mistakes_are_told(tmp_path, capsys):
    run = str(written(tmp_path / "a", 4, 8 << 30, 1))
    for wrong in (["--by", "batch"], ["--by", "batch", "--batch", "4,8"], ["--batch", "4"], ["--limit", "4"]):
        assert main(["memory", *wrong, run]) == 2
    assert "--by batch" in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected one for each"):
        fit_batches(analyse_snapshots([Path(run)]), batches=(4, 8))
    with pytest.raises(NothingMeasured):
        fit_batches(batches=())


def test_side_files_tell_the_batches(tmp_path, capsys):
    runs = [written(tmp_path / str(batch), batch, 8 << 30, 1).parent for batch in (4, 8)]
    for run in runs:
        side = {"schema_version": 1, "rank": 0, "batch_size_per_rank": int(run.name)}
        (run / "node_0.meta.json").write_text(json.dumps(side))
    assert main(["memory", "--by", "batch", "--limit", "9", "-f", "csv", *map(str, runs)]) == 0
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["batches"] == "4, 8"
