"""Peaks by the names that real traces and torch give to devices."""

from __future__ import annotations

import pickle

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
        ("NVIDIA H20", 148, 4.0),
        ("NVIDIA H20-3e", 148, 4.8),
        ("NVIDIA H800", 989.4, 3.35),
        ("NVIDIA H800 PCIe", 756, 2.0),
        ("NVIDIA A800-SXM4-80GB", 312, 2.039),
        ("NVIDIA A800 80GB PCIe", 312, 1.935),
        ("NVIDIA A10G", 70, 0.6),
        ("NVIDIA RTX A6000", 154.8, 0.768),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 0.96),
        ("NVIDIA GeForce RTX 5090", 209.5, 1.792),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 1.792),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 1.792),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 500, 1.597),
        ("NVIDIA GH200 144G HBM3e", 989.4, 4.9),
        ("NVIDIA GB10", 125, 0.273),
        ("NVIDIA A100-SXM-64GB", 358, 1.64),
        ("Tesla V100-SXM3-32GB", None, 0.9),
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
        "NVIDIA A100-SXM4-80GB-LC",
        "AMD Radeon Graphics",
        "Tesla V100-DGXS-32GB",
        "NVIDIA L40SX",
        "NVIDIA RTX PRO 6000 Blackwell",  # which of them
        "Tesla V100-SXM3-32GB-H",  # more power
        "AMD Instinct MI308X",  # AMD publishes no figures, and those of others differ by a factor of two
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
    assert h100.of("float64") == 66.9
    assert h100.of("int64") is h100.of(None) is None
    assert a100.of("float8_e4m3fn") is a100.of("float4_e2m1fn_x2") is None
    b200 = peak("NVIDIA B200")
    assert b200 is not None
    assert b200.of("float4_e2m1fn_x2") == 9000


@pytest.mark.parametrize(
    ("whole", "cut"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200 NVL"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    ],
)
def test_a_card_is_slower_than_a_module(whole: str, cut: str) -> None:
    faster, slower = peak(whole), peak(cut)
    assert faster is not None
    assert slower is not None
    assert all(faster.tflop_per_s[dtype] > value for dtype, value in slower.tflop_per_s.items())


@pytest.mark.parametrize(
    "device",
    [
        "H100 80GB HBM3",
        "H20",
        "B200",
        "A100-SXM4-80GB",
        "A100-SXM-64GB",
        "A10G",
        "L4",
        "L40S",
        "RTX A6000",
        "RTX 6000 Ada Generation",
        "RTX PRO 6000 Blackwell Workstation Edition",
        "GB10",
        "MI300X",
        "MI355X",
        "A30",
    ],
)
def test_figures_are_dense(device: str) -> None:
    """Half the width is twice as fast, to a rounding; a figure with sparsity among them would be twice that."""
    found = peak(device)
    assert found is not None
    assert set(found.tflop_per_s) <= set(DTYPES)
    rates = found.tflop_per_s
    halves = [("tf32", "float16"), ("float16", "int8"), ("float16", "float8"), ("float8", "float4")]
    for wide, narrow in halves:
        if wide in rates and narrow in rates:
            assert rates[narrow] == pytest.approx(2 * rates[wide], rel=0.03), (wide, narrow)
    assert found.source


def test_they_travel_to_the_processes_that_have_the_ranks() -> None:
    known = peak("NVIDIA H200")
    assert pickle.loads(pickle.dumps(known)) == known
