"""Is a device slow at everything, at products or at a shape, or does it run another kernel: runs of known truth."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import MS, US, Collective, traces_of

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis

STEPS, GAP = 4, 5 * US
SIZES = (1024, 1536, 2048, 3072, 4096)
Shape = tuple[str, int]
SHAPES: list[Shape] = [(name, size) for name in ("aten::mm", "aten::mul") for size in SIZES]
KERNELS = {"aten::mm": "sm90_xmma_gemm_bf16bf16", "aten::mul": "vectorized_elementwise_kernel"}
Slower = Callable[[int, str, int], float]
"""By which factor a rank is slower at an operator and size."""


def usual(name: str, size: int) -> int:
    return (size if name == "aten::mm" else size // 4) * 1000


def run(
    folder: Path,
    slower: Slower,
    *,
    ranks: int = 4,
    other_kernel: tuple[int, Shape] | None = None,
    noise: float = 0.01,
    models: Mapping[int, str] = {},
    times: Mapping[int, int] = {},
) -> Analysis:
    """Ranks that compute in each step, each so many `times` as long as usual, and then reduce together."""
    draw = random.Random(7)
    took = {
        (rank, step, name, size): round(
            usual(name, size) * times.get(rank, 1) * slower(rank, name, size) * draw.uniform(1 - noise, 1 + noise)
        )
        for rank in range(ranks) for step in range(STEPS) for name, size in SHAPES
    }  # fmt: skip
    lengths = {
        (rank, step): sum(took[rank, step, name, size] + GAP for name, size in SHAPES)
        for rank in range(ranks) for step in range(STEPS)
    }  # fmt: skip
    begins, synchronized = [MS], []
    for step in range(STEPS):
        synchronized.append(begins[-1] + max(lengths[rank, step] for rank in range(ranks)) + MS + US)
        begins.append(synchronized[-1] + 60 * US)
    reduces = [
        Collective(
            {rank: begins[step] + lengths[rank, step] for rank in range(ranks)},
            MS,
            args={"launch": begins[step] - 2 * US},
        )
        for step in range(STEPS)
    ]
    for rank, made in enumerate(traces_of(ranks, reduces)):
        for step in range(STEPS):
            at = begins[step]
            made.step(step, at - 50 * US, begins[step + 1] - 51 * US)
            for number, (name, size) in enumerate(SHAPES):
                called = begins[step] - (45 - 4 * number) * US
                inputs: dict[str, Any] = {
                    "Input Dims": [[size * times.get(rank, 1), size], [size, size]],
                    "Input type": ["c10::BFloat16"] * 2,
                }
                made.event("cpu_op", name, called, 3 * US, **inputs)
                is_other = other_kernel == (rank, (name, size))
                kernel = "a_kernel_of_its_own" if is_other else KERNELS[name]
                made.kernel(kernel, at, took[rank, step, name, size], launch=called + 1 * US)
                at += took[rank, step, name, size] + GAP
            waits = synchronized[step] - begins[step]
            made.event("cuda_runtime", "cudaDeviceSynchronize", begins[step], waits, correlation=10_000 + step)
        made.device_names = [models.get(rank, "NVIDIA H100 80GB HBM3")] * ranks
        made.write(folder)
    return analyse(folder, details=True, cache=False)


def at_everything(rank: int, name: str, size: int) -> float:
    return 1.12 if rank == 2 else 1.0


def at_products(rank: int, name: str, size: int) -> float:
    return 1.2 if rank == 2 and name == "aten::mm" else 1.0


def at_one_shape(rank: int, name: str, size: int) -> float:
    return 2.0 if rank == 2 and (name, size) == ("aten::mm", 4096) else 1.0


def slow_rows(found: Analysis) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in records(found.shapes_ranks) if row["slow_at"] is not None}


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_device_that_is_slow_at_everything_is_throttled_or_shared(tmp_path: Path, ranks: int) -> None:
    found = run(tmp_path, lambda rank, *_: 1.12 if rank == ranks - 1 else 1.0, ranks=ranks)
    (rank,) = slow_rows(found)
    row = slow_rows(found)[rank]
    assert rank == ranks - 1
    assert (row["slow_at"], row["shapes"], row["agreeing_frac"], row["operator"]) == ("everything", 10, 1.0, None)
    assert row["typical_over_frac"] == pytest.approx(0.12, abs=0.015)
    assert row["over_frac"] == pytest.approx(0.12, abs=0.015)
    said = f"longer than the others, mostly in sm90_xmma_gemm_bf16bf16; its GPU is {row['typical_over_frac']:.0%} "
    assert f"{said}slower at every operator: throttled or shared" in found.verdict


@pytest.mark.slow
def test_clocks_say_more(tmp_path: Path) -> None:
    for rank in range(4):
        end = {"at": "end", "sm_clock_mhz": 1980 - 480 * (rank == 2), "slowed_by": ["power cap"] * (rank == 2)}
        (tmp_path / f"node_{rank}.meta.json").write_text(json.dumps({"rank": rank, "gpu_states": [end]}))
    found = run(tmp_path, at_products)
    row = slow_rows(found)[2]
    assert (row["slow_at"], row["clock_mhz"], row["usual_clock_mhz"]) == ("products of matrices", 1500, 1980)
    assert row["slow_over_frac"] == pytest.approx(0.2, abs=0.02)
    assert (
        "slower at products of matrices, and not at what memory bounds: its clock is lower "
        "(1,500 MHz, others 1,980 MHz: power cap)" in found.verdict
    )


@pytest.mark.slow
def test_another_kernel_at_one_shape(tmp_path: Path) -> None:
    found = run(tmp_path / "other", at_one_shape, other_kernel=(2, ("aten::mm", 4096)))
    row = slow_rows(found)[2]
    assert (row["slow_at"], row["operator"], row["inputs"]) == (
        "a shape, by another kernel", "aten::mm", "4096x4096 4096x4096",
    )  # fmt: skip
    assert (row["kernel"], row["usual_kernel"]) == ("a_kernel_of_its_own", KERNELS["aten::mm"])
    assert row["slow_over_frac"] == pytest.approx(1.0, abs=0.05)
    assert "it runs another kernel for `aten::mm` [4096x4096 4096x4096]" in found.verdict
    same = run(tmp_path / "same", at_one_shape)
    row = slow_rows(same)[2]
    assert (row["slow_at"], row["usual_kernel"]) == ("a shape", None)
    assert "by the same kernel" in same.verdict


@pytest.mark.slow
def test_a_rank_that_has_more_to_compute_is_not_slow(tmp_path: Path) -> None:
    uneven = run(tmp_path / "uneven", lambda *_: 1.0, times={2: 3})
    assert slow_rows(uneven) == {}
    said = "mostly in sm90_xmma_gemm_bf16bf16; it has 3.0 times the FLOPs of the others; with equal shares a step"
    evened_ms = uneven.remedies.set_index("remedy").loc["no_jitter", "gain_ns"] / 1e6
    assert f"{said} gains at most {evened_ms:.1f} ms" in uneven.verdict
    two = run(tmp_path / "two", lambda rank, *_: 4.0 if rank == 1 else 1.0, ranks=2, times={1: 2})
    assert "FLOPs" not in two.verdict, "it computes eight times as long, and would twice as long by them"


@pytest.mark.slow
def test_what_differs_no_more_than_usual_is_nothing(tmp_path: Path) -> None:
    # Each rank is fast at some shapes and slow at others; another is 12 % slower than two, which differ by as much.
    turns = run(tmp_path / "turns", lambda rank, _, size: 1.0 + 0.1 * ((rank + SIZES.index(size)) % 4))
    assert slow_rows(turns) == {}
    spread = run(tmp_path / "spread", lambda rank, *_: (1.0, 1.12, 1.24, 1.3)[rank])
    assert slow_rows(spread) == {}
    # One call that was disturbed is not the shape.
    steady = run(tmp_path / "steady", lambda *_: 1.0, noise=0.03)
    assert slow_rows(steady) == {}


@pytest.mark.slow
def test_other_models_are_named(tmp_path: Path) -> None:
    found = run(tmp_path, at_everything, models={2: "NVIDIA A100-SXM4-80GB"})
    assert slow_rows(found)[2]["note"] == "its device is NVIDIA A100-SXM4-80GB, most others are NVIDIA H100 80GB HBM3"
    assert "at every operator: it is NVIDIA A100-SXM4-80GB, most others are NVIDIA H100 80GB HBM3" in found.verdict
