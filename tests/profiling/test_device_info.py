"""Peaks of devices against torch's own table."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.analysis.device_info import lookup_device_info

from commtrace.analysis.metrics.compute.peaks import peak

OF_TORCH = {
    "float32": torch.float32,
    "tf32": "torch.tf32",
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e5m2,
    "int8": torch.int8,
}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        ("AMD Instinct MI350X", "AMD MI350X"),
        ("AMD Instinct MI300X", "AMD MI300X"),
        ("AMD Instinct MI300A", "AMD MI300A"),
        ("AMD Instinct MI210", "AMD MI210X"),
    ],
)
def test_peaks_are_those_of_torch(ours: str, theirs: str) -> None:
    info, found = lookup_device_info(theirs), peak(ours)
    assert info is not None
    assert found is not None
    compared = 0
    for name, dtype in OF_TORCH.items():
        value, expected = found.of(name), info.tops.get(dtype)
        if value is not None and expected is not None:
            # Its sheet marks sparsity for tensor cores only: float32 of an H100 is dense already.
            sparse = getattr(info, "tops_sparsity_factor", 1) if name != "float32" else 1
            assert value == pytest.approx(expected / sparse, rel=0.01), name
            compared += 1
    assert compared >= 4
    assert found.tb_per_s == pytest.approx(info.dram_bw_gbs / 1000, rel=0.001)
