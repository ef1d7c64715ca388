"""What the links of a GPU can carry at most, by its name: a yardstick for bus bandwidth where no ceiling was measured.

Sources: NVIDIA's data sheets of V100 (2017), A100 (2020), H100 (2022), H200 (2023) and B200 (2024): NVLink, total of
all links of a GPU, half of it in each direction; AMD's of MI300X (2023): Infinity Fabric, seven links of 64 GB/s in
each direction. PCI Express Base Specification 3.0 to 5.0: 16 lanes in one direction. What NCCL reaches is less, for a
ring on one host some 70 to 80 %; an all_reduce with NVLink SHARP can exceed it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Yardstick(NamedTuple):
    """The fastest way between GPUs of one host: its name, and GB/s of one GPU in one direction."""

    name: str
    gb_per_s: float


_PCIE_3, _PCIE_4, _PCIE_5 = Yardstick("PCIe 3", 15.8), Yardstick("PCIe 4", 31.5), Yardstick("PCIe 5", 63.0)
_OF_GPUS: tuple[tuple[str, Yardstick], ...] = (
    (r"\bG?B[23]00\b", Yardstick("NVLink 5", 900.0)),
    (r"\bH100 NVL\b|\bH200 NVL\b", Yardstick("NVLink 4", 450.0)),
    (r"\bH100 PCIe\b", _PCIE_5),
    (r"\bG?H[12]00\b", Yardstick("NVLink 4", 450.0)),
    (r"\bH800 PCIe\b", _PCIE_5),
    (r"\bH800\b", Yardstick("NVLink 4, cut to", 200.0)),
    (r"\bH20\b", Yardstick("NVLink 4", 450.0)),
    (r"\bA100[- ]PCIE?\b", _PCIE_4),
    (r"\bA100\b", Yardstick("NVLink 3", 300.0)),
    (r"\bA800\b", Yardstick("NVLink 3, cut to", 200.0)),
    (r"\bV100[- ]PCIE?\b", _PCIE_3),
    (r"\bV100\b", Yardstick("NVLink 2", 150.0)),
    (r"\bMI300X\b|\bMI325X\b", Yardstick("Infinity Fabric", 448.0)),
    (r"\b(L4|L40S?|A10G?|A16|A30|A40|RTX A\d000|RTX [34]0\d\d)\b", _PCIE_4),
    (r"\bRTX 50\d\d\b", _PCIE_5),
    (r"\b(T4|P100[- ]PCIE?|RTX 20\d\d)\b", _PCIE_3),
)


def yardstick(device_name: str | None) -> Yardstick | None:
    """The fastest link of a GPU of this name, as torch gives it; None for a device that is not known."""
    if device_name is None:
        return None
    return next((each for pattern, each in _OF_GPUS if re.search(pattern, device_name, re.IGNORECASE)), None)
