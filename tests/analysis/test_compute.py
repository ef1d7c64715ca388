"""Which operator a kernel belongs to, how fast it was, and how much of the peak a step reached, on made-up traces."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MS, US, Trace

from commtrace import analyse
from commtrace.analysis.core.schema import records
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.show.first_screen import first_screen
from commtrace.cli import main

BF16_PEAK_TFLOP_PER_S = 989.4


def matrices(m: int, k: int, n: int, dtype: str = "c10::BFloat16") -> dict[str, Any]:
    return {"Input Dims": [[m, k], [k, n]], "Input type": [dtype, dtype], "Concrete Inputs": ["", ""]}


def product(
    made: Trace,
    at: int,
    took: int,
    *,
    size: int = 4096,
    name: str = "sm90_xmma_gemm_bf16bf16",
    dtype: str = "c10::BFloat16",
    device: int | None = None,
) -> Trace:
    """A product of matrices, launched at `at`, which runs 50 us later."""
    made.event("cpu_op", "aten::mm", at, 20 * US, **matrices(size, size, size, dtype))
    return made.kernel(name, at + 50 * US, took, launch=at + 5 * US, device=device)


def read(folder: Path, *traces: Trace) -> Analysis:
    for made in traces:
        made.write(folder)
    return analyse(folder, details=True, cache=False)


def test_speed_and_share_of_the_peak(tmp_path: Path) -> None:
    made = Trace(0, 1)
    for number in range(4):
        product(made, number * MS, 200 * US)
    (row,) = records(read(tmp_path, made).shapes)
    assert (row["operator"], row["category"], row["inputs"]) == ("aten::mm", "GEMM", "4096x4096 4096x4096")
    assert (row["calls"], row["kernels"], row["total_ns"], row["mean_us"]) == (4, 4, 800 * US, 200.0)
    assert row["gflop_per_call"] == 2 * 4096**3 / 1e9
    assert row["mb_per_call"] == 3 * 4096**2 * 2 / 1e6
    assert row["tflop_per_s"] == pytest.approx(2 * 4096**3 / 200e-6 / 1e12)
    assert row["peak_frac"] == pytest.approx(row["tflop_per_s"] / BF16_PEAK_TFLOP_PER_S)
    assert (row["bound"], row["tensor_core_frac"], row["note"]) == ("compute", 1.0, None)


def test_parts_add_up_to_the_window(tmp_path: Path) -> None:
    analysis = read(tmp_path, product(product(Trace(0, 1), 0, 300 * US), MS, 500 * US))
    (row,) = records(analysis.mfu)
    flop = 2 * 2 * 4096**3
    assert row["tflop"] == flop / 1e12
    assert row["at_peak_ns"] == round(flop / BF16_PEAK_TFLOP_PER_S / 1e3)
    assert row["mfu_frac"] == pytest.approx(row["at_peak_ns"] / row["window_ns"])
    parts = ("at_peak", "below_peak", "exposed_transfer", "exposed_wait", "exposed_unsplit", "exposed_memory", "idle")
    assert sum(row[f"{part}_ns"] or 0 for part in parts) == row["window_ns"]
    assert row["note"] is None


def test_the_outermost_operator_with_a_formula_counts_once(tmp_path: Path) -> None:
    convolved = {
        "Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []],
        "Input type": ["float", "float", "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    made = Trace(0, 1)
    for depth, name in enumerate(("aten::conv2d", "aten::convolution", "aten::_convolution")):
        made.event("cpu_op", name, depth * US, (40 - 2 * depth) * US, **convolved)
    made.kernel("fprop", 60 * US, 30 * US, launch=10 * US)
    (row,) = records(read(tmp_path, made).shapes)
    assert (row["operator"], row["calls"]) == ("aten::convolution", 1)
    assert row["gflop_per_call"] == 2 * (2 * 4 * 8 * 8) * 3 * 3 * 3 / 1e9


def test_a_product_of_a_dtensor_is_that_of_its_rank(tmp_path: Path) -> None:
    made = Trace(0, 1).event("cpu_op", "aten::mm", 0, 90 * US, **matrices(1024, 1024, 4096))
    made.event("cpu_op", "aten::add", 10 * US, 10 * US).kernel("elementwise_kernel", 95 * US, US, launch=12 * US)
    made.event("cpu_op", "aten::mm", 30 * US, 40 * US, **matrices(1024, 1024, 512))
    made.kernel("sm90_xmma_gemm", 100 * US, 30 * US, launch=40 * US)
    made.kernel("redistribute_kernel", 140 * US, US, launch=80 * US)  # by the outer one
    analysis = read(tmp_path, made)
    (row,) = records(analysis.mfu)
    assert row["tflop"] == 2 * 1024 * 1024 * 512 / 1e12
    shapes = {row["inputs"]: row["calls"] for row in records(analysis.shapes) if row["operator"] == "aten::mm"}
    assert shapes == {"1024x1024 1024x512": 1}


FLASH, EFFICIENT = "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention"
"""Masks of the first are aligned to the last query and key, those of the second to the first ones."""


@pytest.mark.parametrize(
    ("name", "causal", "keys", "left"),
    [
        (FLASH, "False", 512, None),
        (FLASH, "True", 512, "half"),
        (FLASH, "True", 1024, "75%"),
        (FLASH, "True", 128, "12%"),
        (EFFICIENT, "True", 512, "half"),
        (EFFICIENT, "True", 1024, "25%"),
        (EFFICIENT, "True", 128, "88%"),
    ],
)
def test_of_attention_it_is_known_what_a_causal_mask_leaves(
    tmp_path: Path, name: str, causal: str, keys: int, left: str | None
) -> None:
    made, b, h, s, d = product(Trace(0, 1), 0, 300 * US), 4, 16, 512, 128
    heads = [[b, h, s, d], [b, h, keys, d], [b, h, keys, d]]
    values = ["", "", "", "0.", causal] if name == FLASH else ["", "", "", "", "True", "0.", causal]
    rest = len(values) - 3
    inputs = {
        "Input Dims": heads + [[]] * rest,
        "Input type": ["c10::BFloat16"] * 3 + ["Scalar"] * rest,
        "Concrete Inputs": values,
    }
    made.event("cpu_op", name, MS, 20 * US, **inputs)
    made.kernel("fmha_kernel", MS + 50 * US, 100 * US, launch=MS + 5 * US)
    analysis = read(tmp_path, made)
    (row,) = records(analysis.mfu)
    of_attention = 4 * b * h * s * keys * d
    assert row["tflop"] == (2 * 4096**3 + of_attention) / 1e12
    mask = np.tri(s, keys, keys - s if name == FLASH else 0) if causal == "True" else np.ones((s, keys))
    left_out = (1 - mask.mean()) * of_attention / BF16_PEAK_TFLOP_PER_S / 1e3
    assert (row["mfu_frac"] - row["mfu_causal_frac"]) * row["window_ns"] == pytest.approx(left_out, rel=1e-2, abs=1)
    notes = {row["operator"]: row["note"] for row in records(analysis.shapes)}
    assert notes[name] == (left and f"counted in full, of which its causal mask leaves {left}")


def test_a_rank_that_is_slow_at_a_shape_is_named(tmp_path: Path) -> None:
    traces = [product(Trace(rank, 4), 0, (300 if rank == 2 else 200) * US) for rank in range(4)]
    (row,) = records(read(tmp_path, *traces).shapes)
    assert (row["ranks"], row["slowest_rank"], row["slowest_over_frac"]) == (4, 2, pytest.approx(0.5))


@pytest.mark.slow
def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    without = Trace(0, 1).op("aten::mm", 0, 20 * US).kernel("gemm", 50 * US, 100 * US, launch=5 * US)
    (row,) = records(read(tmp_path / "shapes", without).mfu)
    assert (row["mfu_frac"], row["tflop"]) == (None, None)
    assert row["note"] == "no shapes were recorded; capture with record_shapes=True"

    unlisted = product(Trace(0, 1), 0, 200 * US)
    unlisted.device_names = ["Some GPU"]
    (row,) = records(read(tmp_path / "device", unlisted).mfu)
    assert (row["mfu_frac"], row["note"]) == (None, "the peak of this device is not listed; give it with --peak")
    assert row["tflop"] == 2 * 4096**3 / 1e12
    assert row["below_peak_ns"] == 200 * US

    faster = product(Trace(0, 1), 0, 10 * US)
    (row,) = records(read(tmp_path / "faster", faster).mfu)
    assert row["mfu_frac"] is None
    assert "faster than the peak" in str(row["note"])

    graph = product(Trace(0, 1), 0, 300 * US).kernel(
        "sm90_xmma_gemm_bf16bf16", 2 * MS, 100 * US, launch=2 * MS - 10 * US
    )
    (row,) = records(read(tmp_path / "graph", graph).mfu)
    assert row["without_flop_frac"] == pytest.approx(0.25)
    assert row["note"] == (
        "FLOPs of 25% of the time of kernels that multiply, or may, are not known: "
        "no operator with shapes launched them"
    )
    assert row["mfu_most_frac"] * row["window_ns"] == pytest.approx(row["at_peak_ns"] + 100 * US)


@pytest.mark.parametrize("seed", range(5))
def test_time_of_kernels_that_may_multiply_makes_mfu_a_lower_bound(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    made, at, unknown = product(Trace(0, 1), 0, 400 * US), MS, 0
    for _ in range(12):
        took = draw.randint(1, 300) * US
        name, may = draw.choice([
            ("linear_relu_square_kernel", True),
            ("_ZN7cutlass13device_kernelI4gemm6kernel13GemmUniversal", True),
            ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >()", False),
            ("triton_poi_fused_add_addmm_0", False),
            ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>()", False),
        ])  # fmt: skip
        unknown += took if may else 0
        made.op(draw.choice(["my::operator", "aten::_index_put_impl_"]), at, 20 * US)
        made.kernel(name, at + 50 * US, took, launch=at + 5 * US)
        at += MS
    (row,) = records(read(tmp_path, made).mfu)
    assert (row["without_flop_frac"] or 0) == pytest.approx(unknown / (unknown + 400 * US))
    assert row["mfu_most_frac"] * row["window_ns"] == pytest.approx(row["at_peak_ns"] + unknown)
    assert (row["mfu_frac"] < row["mfu_most_frac"]) == (row["note"] is not None) == (unknown > 0)


@pytest.mark.parametrize("seed", range(5))
def test_mfu_is_what_calls_add_up_to_one_by_one(tmp_path: Path, seed: int) -> None:
    """Calls of drawn sizes, types and kernels, some of several kernels; each counts in the step of its first kernel."""
    draw, ranks, steps, length = random.Random(seed), 3, 3, 20 * MS
    flop: Counter[tuple[int, int]] = Counter()
    at_peak_ns, known_ns, unknown_ns = (Counter[tuple[int, int]]() for _ in range(3))
    peaks = {"tf32": 500, "float32": 60, "bfloat16": 1000}
    traces = []
    for rank in range(ranks):
        made = Trace(rank, ranks)
        for step in range(steps):
            made.step(step, step * length, (step + 1) * length)
            for number in range(draw.randint(4, 8)):
                at, took = step * length + (1 + 2 * number) * MS, draw.randint(50, 300) * US
                key = rank, step
                if number and draw.random() < 0.2:
                    made.kernel("linear_relu_square_kernel", at, took, launch=at - 10 * US)
                    unknown_ns[key] += took
                    continue
                size, more = draw.choice([512, 1024, 2048]), draw.choice([0, 0, 30 * US])
                dtype, name, peak = draw.choice([
                    ("c10::BFloat16", "sm90_xmma_gemm_bf16bf16", "bfloat16"),
                    ("float", "sm80_xmma_gemm_f32f32_tf32f32_f32", "tf32"),
                    ("float", "ampere_sgemm_128x64_nn", "float32"),
                ])  # fmt: skip
                product(made, at, took, size=size, name=name, dtype=dtype)
                if more:
                    made.kernel("splitKreduce_kernel", at + MS, more, launch=at + 10 * US)
                flop[key] += 2 * size**3
                at_peak_ns[key] += 2 * size**3 / peaks[peak] / 1e3
                known_ns[key] += took + more
        traces.append(made)
    for made in traces:
        made.write(tmp_path)
    found = analyse(tmp_path, details=True, cache=False, peaks=peaks)
    for row in records(found.mfu_steps):
        key = row["rank"], row["step"]
        assert row["tflop"] == flop[key] / 1e12
        assert row["at_peak_ns"] == pytest.approx(at_peak_ns[key], abs=1)
        assert row["without_flop_frac"] == pytest.approx(unknown_ns[key] / (known_ns[key] + unknown_ns[key]))
    assert len(found.mfu_steps) == ranks * steps
    for row in records(found.mfu):
        assert row["tflop"] == pytest.approx(sum(flop[row["rank"], step] for step in found.counted_steps) / 1e12)


@pytest.mark.parametrize("took", [100 * US, 400 * US])
def test_rows_bound_what_a_grouped_product_computes(tmp_path: Path, took: int) -> None:
    made, m, k, n = product(Trace(0, 1), 0, 300 * US), 8192, 2048, 4096
    grouped = {"Input Dims": [[m, k], [4, k, n], [4]], "Input type": ["c10::BFloat16", "c10::BFloat16", "int"]}
    made.event("cpu_op", "aten::_grouped_mm", MS, 20 * US, **grouped, **{"Concrete Inputs": ["", "", ""]})
    made.kernel("_ZN7cutlass13device_kernelI4gemm6kernel13GemmUniversal", MS + 50 * US, took, launch=MS + 5 * US)
    (row,) = records(read(tmp_path, made).mfu)
    at_most = min(took, 2 * m * k * n / BF16_PEAK_TFLOP_PER_S / 1e3)
    assert row["mfu_most_frac"] * row["window_ns"] == pytest.approx(row["at_peak_ns"] + at_most, abs=1)


def test_a_dtype_without_a_peak_makes_mfu_a_lower_bound(tmp_path: Path) -> None:
    made = product(product(Trace(0, 1), 0, 3 * MS), 5 * MS, 100 * US, size=64, name="volta_dgemm_64", dtype="double")
    made.device_names = ["NVIDIA L4"]
    (row,) = records(read(tmp_path / "one", made).mfu)
    assert row["at_peak_ns"] == round(2 * 4096**3 / 121 / 1e3)
    assert row["mfu_most_frac"] * row["window_ns"] == pytest.approx(row["at_peak_ns"] + 100 * US)
    assert row["note"] == "the peak of this device for float64 is not listed; give it with --peak"
    alone = product(Trace(0, 1), 0, 100 * US, size=64, name="volta_dgemm_64", dtype="double")
    alone.device_names = ["NVIDIA L4"]
    (row,) = records(read(tmp_path / "all", alone).mfu)
    assert (row["mfu_frac"], row["at_peak_ns"]) == (None, None)
    assert row["note"] == "the peak of this device for float64 is not listed; give it with --peak"


def test_what_is_possible_is_no_more_than_computing(tmp_path: Path) -> None:
    made = product(Trace(0, 1), 0, 300 * US)
    for stream in (7, 8, 9):
        made.kernel("linear_relu_square_kernel", MS, 500 * US, stream=stream, launch=900 * US)
    (row,) = records(read(tmp_path, made).mfu)
    assert row["mfu_most_frac"] * row["window_ns"] == pytest.approx(800 * US)


@pytest.mark.slow
def test_a_peak_that_is_given_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = product(Trace(0, 1), 0, 200 * US)
    made.device_names = ["Some GPU"]
    made.write(tmp_path)
    analysis = analyse(tmp_path, details=True, cache=False, peaks={"bf16": 1000, "memory": 4})
    (row,) = records(analysis.mfu)
    assert (row["at_peak_ns"], row["peak_from"], row["note"]) == (round(2 * 4096**3 / 1e6), "given", None)
    (row,) = records(analysis.shapes)
    assert row["peak_frac"] == pytest.approx(2 * 4096**3 / 200e-6 / 1000e12)
    assert row["memory_frac"] == pytest.approx(3 * 4096**2 * 2 / 200e-6 / 4e12)
    assert (row["bound"], row["peak_from"]) == ("compute", "given")
    # half of it is the data sheet's where that has the device
    product(Trace(0, 1), 0, 200 * US).write(tmp_path / "known")
    given = ["compute", "--by", "shape", "--no-cache", str(tmp_path / "known"), "--format", "json", "--peak"]
    assert main([*given, "bfloat16=900"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["rows"]
    assert row["peak_frac"] == pytest.approx(2 * 4096**3 / 200e-6 / 900e12)
    assert (row["memory_frac"] is not None, row["peak_from"]) == (True, "given and table")
    assert "bfloat16 900 TFLOP/s as given; the rest by NVIDIA H100" in err
    assert main(["summary", "--no-cache", str(tmp_path / "known"), "--peak", "bf16=900"]) == 0
    assert "of the given peak" in capsys.readouterr().out
    for wrong in ("bf16=fast", "bf17=1", "bf16=0", "memory=nan"):
        assert main([*given, wrong]) == 2
        assert "--peak" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "kernel", "took", "dtype", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere_s1688gemm_128x128_ldg4_stages_32x1_tn", 1200 * US, "tf32", 156),
        ("NVIDIA A100-SXM4-80GB", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", 1200 * US, "tf32", 156),
        ("NVIDIA A100-SXM4-80GB", "ampere_sgemm_128x128_tn", 8000 * US, "float32", 19.5),
        (
            "AMD Instinct MI300X",
            "Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_MT128x128x32_MI16x16x1_SN",
            1200 * US,
            "float32",
            163.4,
        ),
    ],
)
def test_float32_counts_against_the_peak_of_what_multiplied_it(
    tmp_path: Path, device: str, kernel: str, took: int, dtype: str, peak: float
) -> None:
    made = product(Trace(0, 1), 0, took, name=kernel, dtype="float")
    made.device_names = [device]
    analysis = read(tmp_path, made)
    (row,) = records(analysis.mfu)
    assert (row["at_peak_ns"], row["note"]) == (round(2 * 4096**3 / peak / 1e3), None)
    (row,) = records(analysis.shapes)
    assert (row["dtype"], row["peak_frac"]) == (dtype, pytest.approx(2 * 4096**3 / took / peak / 1e3))


@pytest.mark.parametrize("seed", range(4))
def test_each_precision_that_ran_counts_against_its_own_peak(tmp_path: Path, seed: int) -> None:
    """The same operator on the same shapes, as when a program sets allow_tf32 between two models."""
    draw = random.Random(seed)
    kernels = {
        "ampere_s1688gemm_128x128_ldg4_stages_32x1_tn": ("tf32", 156),
        "ampere_sgemm_128x128_tn": ("float32", 19.5),
    }
    ran = [*kernels, *draw.choices([*kernels], k=6)]
    took = [draw.randint(8000, 9000) * US for _ in ran]
    draw.shuffle(ran)
    made = Trace(0, 1)
    for place, (kernel, own) in enumerate(zip(ran, took, strict=True)):
        product(made, place * 10 * MS, own, name=kernel, dtype="float")
    made.device_names = ["NVIDIA A100-SXM4-80GB"]
    analysis = read(tmp_path, made)
    rows = {row["dtype"]: row for row in records(analysis.shapes)}
    for kernel, (dtype, peak) in kernels.items():
        of_kernel = [own for name, own in zip(ran, took, strict=True) if name == kernel]
        row = rows.pop(dtype)
        assert (row["calls"], row["total_ns"]) == (len(of_kernel), sum(of_kernel))
        assert row["peak_frac"] == pytest.approx(len(of_kernel) * 2 * 4096**3 / sum(of_kernel) / peak / 1e3)
    assert not rows
    (row,) = records(analysis.mfu)
    at_peak = sum(2 * 4096**3 / kernels[name][1] / 1e3 for name in ran)
    assert row["at_peak_ns"] == pytest.approx(at_peak, abs=1)


MODELS = {"NVIDIA H100 80GB HBM3": (989.4, 3.35), "NVIDIA L4": (121, 0.3), "NVIDIA A40": (149.7, 0.696)}
"""Their peaks in bfloat16, in TFLOP/s, and the bandwidth of their memory, in TB/s."""


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize("seed", range(4))
def test_each_device_of_a_process_has_the_peak_of_its_model(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    models = [*draw.sample([*MODELS], 2), *draw.choices([*MODELS, "Some GPU"], k=seed % 3)]
    draw.shuffle(models)
    made, took = Trace(0, 1, device_names=models), [draw.randint(1500, 3000) * US for _ in models]
    for device, own in enumerate(took):
        product(made, device * 4 * MS, own, device=device)
    analysis = read(tmp_path, made)
    flop = 2 * 4096**3
    for row in records(analysis.mfu):
        peak, _ = MODELS.get(models[int(row["device"])], (None, None))
        assert row["at_peak_ns"] == (peak and round(flop / peak / 1e3))
    (row,) = records(analysis.shapes)
    if "Some GPU" in models:
        assert (row["peak_frac"], row["memory_frac"], row["peak_from"]) == (None, None, None)
    else:  # each call beside the peak of where it ran
        assert row["peak_frac"] == pytest.approx(sum(flop / MODELS[name][0] / 1e3 for name in models) / sum(took))
        at_memory = sum(3 * 4096**2 * 2 / MODELS[name][1] / 1e3 for name in models)
        assert row["memory_frac"] == pytest.approx(at_memory / sum(took))
    named = {int(row["device"]): row["device_name"] for row in records(analysis.gpus)}
    assert named == dict(enumerate(models))
    reached = first_screen(analysis).mfu
    possible = [MODELS[name][0] * own if name in MODELS else None for name, own in zip(models, took, strict=True)]
    if None in possible:
        assert reached is None
    else:
        assert reached is not None
        assert reached.frac == pytest.approx(len(models) * flop / 1e3 / sum(possible), rel=1e-4)  # of whole ns


def test_categories_hold_what_no_operator_launched(tmp_path: Path) -> None:
    made = product(product(Trace(0, 1), 0, 300 * US), MS, 500 * US).kernel("nvjet_graph", 2 * MS, 5 * US)
    made.kernel("flash_fwd_kernel", 3 * MS, 95 * US)
    rows = {row["category"]: row for row in records(read(tmp_path, made).categories)}
    gemm, attention = rows["GEMM"], rows["attention forward"]
    assert (gemm["kernels"], gemm["operators"], gemm["total_ns"], gemm["short_kernels"]) == (3, 1, 805 * US, 1)
    assert gemm["tflop"] == 2 * 2 * 4096**3 / 1e12
    assert gemm["tflop_per_s"] == pytest.approx(2 * 2 * 4096**3 / 800e-6 / 1e12)
    assert gemm["with_flop_frac"] == pytest.approx(800 / 805)
    assert (attention["operators"], attention["tflop"], attention["with_flop_frac"]) == (0, None, 0.0)
    assert sum(row["share_frac"] for row in rows.values()) == pytest.approx(1.0)


def test_kernels_without_any_launch_have_no_operator(tmp_path: Path) -> None:
    made = Trace(0, 1).event("cpu_op", "aten::mm", 0, 20 * US, **matrices(8, 8, 8)).kernel("gemm", 0, US, launch=None)
    analysis = read(tmp_path, made)
    assert len(analysis.shapes) == 0
    (row,) = records(analysis.categories)
    assert (row["category"], row["operators"], row["tflop"]) == ("GEMM", 0, None)
    (row,) = records(analysis.mfu)
    assert row["note"] == "no shapes were recorded; capture with record_shapes=True"


def test_operators_of_cpus_are_their_own_work(tmp_path: Path) -> None:
    made = Trace(0, 1, backend="gloo", device_names=())
    made.event("cpu_op", "aten::linear", 0, 100 * US, **matrices(8, 16, 4, "float"))
    made.event("cpu_op", "aten::mm", 10 * US, 60 * US, **matrices(8, 16, 4, "float"))
    made.event("cpu_op", "aten::resize_", 20 * US, 10 * US, **matrices(8, 16, 4, "float"))
    rows = {row["operator"]: row for row in records(read(tmp_path, made).shapes)}
    assert {name: row["total_ns"] for name, row in rows.items()} == {"aten::mm": 60 * US, "aten::linear": 40 * US}
    assert rows["aten::mm"]["gflop_per_call"] == 2 * 8 * 16 * 4 / 1e9
    assert rows["aten::mm"]["kernels"] == 0
