"""Peaks by the names that real traces and torch give to devices."""

from __future__ import annotations

import pytest

from commtrace.analysis.metrics.compute.peaks import DTYPES, peak


@pytest.mark.parametrize(
    ("device", "bfloat16", "tb_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3.35),
        ("NVIDIA H100 PCIe", 756, 2.0),
        ("NVIDIA H100 NVL", 835.5, 3.9),
        ("NVIDIA H200", 989.4, 4.8),
        ("NVIDIA GH200 480GB", 989.4, 4.0),
        ("NVIDIA B200", 2250, 8.0),
        ("NVIDIA GB200", 2500, 8.0),
        ("NVIDIA A100-SXM4-80GB", 312, 2.039),
        ("A100-SXM4-40GB", 312, 1.555),  # as older drivers say it
        ("NVIDIA A100 80GB PCIe", 312, 1.935),
        ("NVIDIA L4", 121, 0.3),
        ("Tesla V100-SXM2-16GB", None, 0.9),
        ("Tesla V100-PCIE-32GB", None, 0.9),
        ("Tesla T4", None, 0.3),
        ("AMD Instinct MI300X", 1307.4, 5.3),
        ("AMD Instinct MI300X VF", 1307.4, 5.3),
        ("AMD Instinct MI325X", 1307.4, 6.0),
        ("AMD Instinct MI250X", 191.5, 1.6),  # a die
        ("  nvidia h200 ", 989.4, 4.8),
    ],
)
def test_peaks(device: str, bfloat16: float | None, tb_per_s: float) -> None:
    found = peak(device)
    assert found is not None
    assert found.of("bfloat16") == bfloat16
    assert found.tb_per_s == tb_per_s


@pytest.mark.parametrize(
    "device",
    [
        "",
        "cpu",
        "NVIDIA H100",  # which of them
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-PG509-200",
        "NVIDIA H20",
        "NVIDIA A100-SXM4-80GB-LC",
        "AMD Radeon Graphics",
        "Tesla V100-DGXS-32GB",
        "NVIDIA L40SX",
    ],
)
def test_no_peak_is_guessed(device: str) -> None:
    assert peak(device) is None


def test_dtypes_are_named_as_in_torch() -> None:
    h100, a100 = peak("NVIDIA H100 80GB HBM3"), peak("NVIDIA A100-SXM4-80GB")
    assert h100 is not None
    assert a100 is not None
    assert h100.of("float8_e4m3fn") == h100.of("float8_e5m2") == 1978.9
    assert h100.of("tf32") == 494.7
    assert h100.of("float32") == 66.9
    assert h100.of("int64") is h100.of(None) is None
    assert a100.of("float8_e4m3fn") is None


@pytest.mark.parametrize(
    ("whole", "cut"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200 NVL"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB"),
    ],
)
def test_a_card_is_slower_than_a_module(whole: str, cut: str) -> None:
    faster, slower = peak(whole), peak(cut)
    assert faster is not None
    assert slower is not None
    assert all(faster.tflop_per_s[dtype] > value for dtype, value in slower.tflop_per_s.items())


@pytest.mark.parametrize(
    "device", ["H100 80GB HBM3", "B200", "A100-SXM4-80GB", "L4", "L40S", "MI300X", "MI355X", "A30"]
)
def test_figures_are_dense(device: str) -> None:
    """Half the width is twice as fast, to a rounding; a figure with sparsity among them would be twice that."""
    found = peak(device)
    assert found is not None
    assert set(found.tflop_per_s) <= set(DTYPES)
    rates = found.tflop_per_s
    assert rates["int8"] == pytest.approx(2 * rates["float16"], rel=0.02)
    if "tf32" in rates:
        assert rates["float16"] == pytest.approx(2 * rates["tf32"], rel=0.03)
    assert found.source
