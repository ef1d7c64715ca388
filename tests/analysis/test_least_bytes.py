"""The least that a step of serving takes: reading weights and cached keys and values."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.compute.least_bytes import Read, least_read
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

BF16 = "c10::BFloat16"


def inputs(*shapes: list[int], dtype: str = BF16) -> str:
    return json.dumps([list(shapes), [dtype] * len(shapes), [""] * len(shapes)])


@pytest.mark.parametrize(
    ("name", "shapes", "read"),
    [
        ("aten::mm", [[8, 64], [64, 32]], Read(64 * 32 * 2, None)),
        ("aten::addmm", [[32], [8, 64], [64, 32]], Read(64 * 32 * 2, None)),
        ("aten::bmm", [[8, 4, 64], [8, 64, 32]], Read(None, None)),
        ("aten::add", [[8, 64], [8, 64]], Read(None, None)),
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 1, 16], [2, 4, 99, 16], [2, 4, 99, 16]],
         Read(None, 2 * 2 * 4 * 99 * 16 * 2)),
    ],
)  # fmt: skip
def test_what_an_operator_must_read(name: str, shapes: list[list[int]], read: Read) -> None:
    assert least_read(name, inputs(*shapes)) == read


def decoding(rng: random.Random, steps: int, *, paged: bool = False) -> tuple[Trace, int]:
    """Decode steps of products that are drawn, and what their weights are in bytes."""
    trace, now = Trace(device_names=["NVIDIA H100 80GB HBM3"]), 0
    layers = [(rng.randint(1, 64) * 64, rng.randint(1, 64) * 64) for _ in range(rng.randint(2, 8))]
    for _ in range(steps):
        begin = now
        for rows, columns in layers:
            trace.event("cpu_op", "aten::mm", now, 20 * US, **{
                "Input Dims": [[4, rows], [rows, columns]], "Input type": [BF16] * 2, "Concrete Inputs": ["", ""],
            })  # fmt: skip
            trace.kernel("gemm", now + 10 * US, 100 * US, launch=now + 5 * US)
            now += 120 * US
        if paged:
            trace.op("vllm::unified_attention", now, 20 * US)
            trace.kernel("paged_attention_v2_kernel", now + 10 * US, 100 * US, launch=now + 5 * US)
            now += 120 * US
        trace.annotation("step[DECODE bs=4]", begin, now - begin)
    return trace, sum(rows * columns * 2 for rows, columns in layers)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_takes_at_least_what_reading_its_weights_takes(tmp_path: Path, seed: int, paged: bool) -> None:
    trace, weights = decoding(random.Random(seed), 4, paged=paged)
    trace.write(tmp_path)
    [row] = records(analyse(tmp_path, details=True).serving_floors)
    assert row["weights_bytes"] == weights
    assert row["floor_ns"] == pytest.approx(weights / 3.35e12 * 1e9, abs=1)
    assert row["floor_frac"] == pytest.approx(row["floor_ns"] / row["window_ns"])
    assert (row["cache_bytes"], row["note"] is None) == ((None, False) if paged else (0, True))


def test_without_shapes_nothing_is_known_and_a_note_says_why(tmp_path: Path) -> None:
    Trace().annotation("step[DECODE bs=4]", 0, 5 * MS).kernel("gemm", 0, 5 * MS).write(tmp_path)
    [row] = records(analyse(tmp_path, details=True).serving_floors)
    assert (row["weights_bytes"], row["floor_ns"], row["floor_frac"]) == (None, None, None)
    assert row["note"].startswith("no product with shapes is known")


def test_the_bandwidth_of_an_unknown_device_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, weights = decoding(random.Random(9), 2)
    trace.device_names = ["A device"]
    trace.write(tmp_path)
    for given, floor in (([], None), (["--peak", "memory=2"], weights / 2e12 * 1e9)):
        assert main(["serving", "--by", "floor", "--no-cache", "--format", "json", *given, str(tmp_path)]) == 0
        [row] = json.loads(capsys.readouterr().out)["rows"]
        assert row["floor_ns"] == (None if floor is None else pytest.approx(floor, abs=1))
