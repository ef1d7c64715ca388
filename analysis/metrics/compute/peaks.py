"""Peaks of devices by the vendors' figures: dense operations and bandwidth of memory.

Where vendors give figures with sparsity only, they are halved. Matrix or tensor cores count where they take the type;
float32 is without TF32. Real work stays below: an H100 multiplied matrices of 8192 x 8192 in bfloat16 at 798 TFLOP/s.
Names are those of torch.cuda.get_device_name and of deviceProperties in traces. A name that is not exactly known has no
peak: an H100 PCIe is not an H100 SXM, and a slice of one (MIG) is neither.

torch's own table, torch/_inductor/analysis/device_info.py, agrees where it has a device, but for the L4: its figures
there are with sparsity, and its bandwidth is the H100's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...core.escaping import printable
from ...core.given_peaks import DTYPES, MEMORY_PEAK, NO_PEAKS, GivenPeaks

TABLE = "table"
"""Where a peak comes from that was neither given nor measured: the vendors' figures here."""


class Peak(NamedTuple):
    """Dense peaks of one device."""

    tflop_per_s: Mapping[str, float]
    """By dtype, float8 and float4 for all of their kinds; int8 counts integer operations."""
    tb_per_s: float | None
    source: str
    """Of the vendors' figures; empty if there are none."""
    given: GivenPeaks = NO_PEAKS
    """Those that do not come from the vendor."""

    def __reduce__(self) -> tuple[type[Peak], tuple[Any, ...]]:
        """As dictionaries, because views of these, such as NO_PEAKS, cannot travel to other processes."""
        return Peak, (dict(self.tflop_per_s), self.tb_per_s, self.source, dict(self.given))

    def of(self, dtype: str | None) -> float | None:
        """Dense peak for a dtype, by its name in torch or "tf32", in TFLOP/s; None where there is no figure."""
        return self.tflop_per_s.get(_family(dtype))

    def origin(self, names: Iterable[str | None]) -> str | None:
        """Where the peaks of these dtypes, or of "memory", come from: `table`, `given`, `measured`, or several."""
        found = {self.given[name].origin if name in self.given else TABLE for name in map(_family, names)}
        return " and ".join(sorted(found)) or None


DevicePeaks = Mapping[tuple[int, str], Peak | None]
"""Those of each device, by rank and device; None where they are not known."""


def peak_of(device: str | None, given: GivenPeaks) -> Peak | None:
    """Peaks of a device by its name, with those that are given in place of the vendor's; None if there are none."""
    known = None if device is None else peak(device)
    if not given:
        return known
    rates, memory, source = known[:3] if known is not None else ({}, None, "")
    values = {name: one.value for name, one in given.items()}
    memory = values.pop(MEMORY_PEAK, memory)
    return Peak({**rates, **values}, memory, source, given)


def said(device: str | None, peak: Peak) -> str:
    """`peaks of Some GPU: bfloat16 900 TFLOP/s as given; the rest by NVIDIA H100 data sheet, halved`."""
    parts = [
        f"{name} {one.value:,.4g} {'TB/s' if name == MEMORY_PEAK else 'TFLOP/s'} as {one.origin}"
        + (f" on {printable(one.device)}" if one.device is not None else "")
        for name, one in peak.given.items()
    ]
    if peak.source:
        parts.append(f"the rest by {peak.source}" if parts else peak.source)
    return f"peaks of {printable(device or 'the device')}: {'; '.join(parts)}"


def peak(device: str) -> Peak | None:
    """The vendor's peaks of a device by its name, or None if it is not known."""
    plain = _MAKERS.sub("", device.strip()).casefold()
    return next((found for pattern, found in _PEAKS if pattern.fullmatch(plain)), None)


def _family(dtype: str | None) -> str:
    """The name under which a dtype has its peak."""
    name = dtype or ""
    return next((family for family in ("float8", "float4") if name.startswith(family)), name)


def _rates(
    float32: float,
    half: float,
    *,
    float64: float | None = None,
    tf32: float | None = None,
    bfloat16: float | None = None,
    float8: float | None = None,
    float4: float | None = None,
    int8: float | None = None,
) -> dict[str, float]:
    """By dtype, without those that the device cannot do; `half` is float16."""
    values = float64, float32, tf32, half, bfloat16, float8, float4, int8
    return {dtype: value for dtype, value in zip(DTYPES, values, strict=True) if value is not None}


_MAKERS = re.compile(r"^(?:NVIDIA |AMD )?(?:Tesla |Instinct )?", re.IGNORECASE)

_HOPPER = _rates(66.9, 989.4, float64=66.9, tf32=494.7, bfloat16=989.4, float8=1978.9, int8=1978.9)
_HOPPER_NVL = _rates(60, 835.5, float64=60, tf32=417.5, bfloat16=835.5, float8=1670.5, int8=1670.5)
_HOPPER_PCIE = _rates(51.2, 756, float64=51.2, tf32=378, bfloat16=756, float8=1513, int8=1513)
# As sold to China: float64 is cut.
_H800 = {"float64": 1.0}
_H20 = _rates(44, 148, float64=1, tf32=74, bfloat16=148, float8=296, int8=296)
_AMPERE = _rates(19.5, 312, float64=19.5, tf32=156, bfloat16=312, int8=624)
_CDNA_3 = _rates(163.4, 1307.4, float64=163.4, tf32=653.7, bfloat16=1307.4, float8=2614.9, int8=2614.9)
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture white paper, table 2"
_H200_SHEET = "NVIDIA H200 data sheet, halved"
_H800_SHEET = "NVIDIA H800 data sheet, halved"
_H20_SHEET = "NVIDIA H20 data sheet"
_GH200_SHEET = "NVIDIA GH200 data sheet, halved"
_A100_SHEET = "NVIDIA A100 data sheet"
_A800_SHEET = "NVIDIA A800 data sheet"
_V100_SHEET = "NVIDIA V100 data sheet"
_BLACKWELL = "NVIDIA Blackwell data sheet, halved"
_BLACKWELL_ULTRA = "NVIDIA pages of HGX B300 and GB300 NVL72, per GPU, halved"
_GA102_PAPER = "NVIDIA Ampere GA102 white paper, appendix A"
_ADA_PAPER = "NVIDIA Ada GPU Architecture white paper, appendix A"
_RTX_PRO = "NVIDIA RTX PRO 6000 Blackwell data sheets, halved"
_MI200 = "AMD Instinct MI200 series data sheet"

_BY_NAME = {
    r"h100 80gb hbm3": Peak(_HOPPER, 3.35, _H100_PAPER),
    r"h100 pcie": Peak(_HOPPER_PCIE, 2.0, _H100_PAPER),
    r"h100 nvl": Peak(_HOPPER_NVL, 3.9, "NVIDIA H100 data sheet, halved"),
    r"h800": Peak(_HOPPER | _H800, 3.35, _H800_SHEET),
    r"h800 pcie": Peak(_HOPPER_PCIE | _H800, 2.0, _H800_SHEET),
    r"h20": Peak(_H20, 4.0, _H20_SHEET),
    r"h20-3e": Peak(_H20, 4.8, _H20_SHEET),
    r"h200": Peak(_HOPPER, 4.8, _H200_SHEET),
    r"h200 nvl": Peak(_HOPPER_NVL, 4.8, _H200_SHEET),
    # The same chip as the H100's. 120GB and 480GB are the memory of the CPU; the GPU has 96 GB of HBM3.
    r"gh200 (?:120gb|480gb)": Peak(_HOPPER, 4.0, _GH200_SHEET),
    r"gh200 144g hbm3e": Peak(_HOPPER, 4.9, _GH200_SHEET),
    # 7.7 TB/s of an HGX B200 in the data sheet; 64 TB/s of eight in that of the DGX B200.
    r"b200": Peak(
        _rates(75, 2250, float64=37, tf32=1100, bfloat16=2250, float8=4500, float4=9000, int8=4500), 8.0, _BLACKWELL
    ),
    r"gb200": Peak(
        _rates(80, 2500, float64=40, tf32=1250, bfloat16=2500, float8=5000, float4=10000, int8=5000), 8.0, _BLACKWELL
    ),
    r"b300(?: sxm6 ac)?": Peak(
        _rates(75, 2250, float64=1.25, tf32=1125, bfloat16=2250, float8=4500, float4=13500), 8.0, _BLACKWELL_ULTRA
    ),
    r"gb300": Peak(
        _rates(80, 2500, float64=1.39, tf32=1250, bfloat16=2500, float8=5000, float4=15000), 8.0, _BLACKWELL_ULTRA
    ),
    # The page has 1,000 TFLOP/s of float4 with sparsity. On the other chips of its kind each type of half the width is
    # twice as fast, and float32 accumulates: so the others follow.
    r"gb10": Peak(
        _rates(31, 125, tf32=62.5, bfloat16=125, float8=250, float4=500, int8=250),
        0.273,
        "NVIDIA DGX Spark page, halved for sparsity and again for each doubled width",
    ),
    r"a100-sxm4?-80gb": Peak(_AMPERE, 2.039, _A100_SHEET),
    r"a100-sxm4?-40gb": Peak(_AMPERE, 1.555, _A100_SHEET),
    # Made for one computer: 124 multiprocessors instead of 108, at the same clock.
    r"a100-sxm4?-64gb": Peak(
        _rates(22.4, 358, float64=22.4, tf32=179, bfloat16=358, int8=716), 1.64, "Turisini et al., LEONARDO (2023)"
    ),
    r"a100 80gb pcie": Peak(_AMPERE, 1.935, _A100_SHEET),
    r"a100-pcie-40gb": Peak(_AMPERE, 1.555, _A100_SHEET),
    r"a800-sxm4?-80gb": Peak(_AMPERE, 2.039, _A800_SHEET),
    r"a800-sxm4?-40gb": Peak(_AMPERE, 1.555, _A800_SHEET),
    r"a800 80gb pcie": Peak(_AMPERE, 1.935, _A800_SHEET),
    r"a10": Peak(_rates(31.2, 125, tf32=62.5, bfloat16=125, int8=250), 0.6, "NVIDIA A10 data sheet"),
    r"a10g": Peak(_rates(35, 70, tf32=35, bfloat16=70, int8=140), 0.6, "NVIDIA A10G data sheet"),
    r"a30": Peak(_rates(10.3, 165, float64=10.3, tf32=82, bfloat16=165, int8=330), 0.933, "NVIDIA A30 data sheet"),
    r"a40": Peak(_rates(37.4, 149.7, tf32=74.8, bfloat16=149.7, int8=299.3), 0.696, "NVIDIA A40 data sheet"),
    r"l4": Peak(
        _rates(30.3, 121, tf32=60, bfloat16=121, float8=242.5, int8=242.5), 0.3, "NVIDIA L4 data sheet, halved"
    ),
    r"l40": Peak(
        _rates(90.5, 181.05, tf32=90.5, bfloat16=181.05, float8=362, int8=362), 0.864, "NVIDIA L40 data sheet"
    ),
    r"l40s": Peak(
        _rates(91.6, 362.05, tf32=183, bfloat16=362.05, float8=733, int8=733), 0.864, "NVIDIA L40S data sheet"
    ),
    r"v100-sxm2-(?:16|32)gb": Peak(_rates(15.7, 125, float64=7.8), 0.9, _V100_SHEET),
    r"v100-sxm3-32gb": Peak(_rates(15.7, 125, float64=7.8), 0.9, "NVIDIA DGX-2 data sheet, per GPU"),
    r"v100-pcie-(?:16|32)gb": Peak(_rates(14, 112, float64=7), 0.9, _V100_SHEET),
    r"v100s-pcie-32gb": Peak(_rates(16.4, 130, float64=8.2), 1.134, _V100_SHEET),
    r"t4": Peak(_rates(8.1, 65, int8=130), 0.3, "NVIDIA T4 data sheet"),
    r"rtx a6000": Peak(_rates(38.7, 154.8, tf32=77.4, bfloat16=154.8, int8=309.7), 0.768, _GA102_PAPER),
    r"rtx 6000 ada generation": Peak(
        _rates(91.1, 364.2, tf32=182.1, bfloat16=364.2, float8=728.5, int8=728.5),
        0.96,
        "NVIDIA RTX 6000 Ada Generation data sheet, halved",
    ),
    r"rtx pro 6000 blackwell workstation edition": Peak(
        _rates(125.9, 503.8, tf32=251.9, bfloat16=503.8, float8=1007.6, float4=2015.2, int8=1007.6), 1.792, _RTX_PRO
    ),
    r"rtx pro 6000 blackwell max-q workstation edition": Peak(
        _rates(109.7, 438.9, tf32=219.4, bfloat16=438.9, float8=877.8, float4=1755.5, int8=877.8), 1.792, _RTX_PRO
    ),
    r"rtx pro 6000 blackwell server edition": Peak(
        _rates(120, 500, tf32=250, bfloat16=500, float8=1000, float4=2000, int8=1000), 1.597, _RTX_PRO
    ),
    # GeForce: with accumulation in float32, as torch multiplies by default.
    r"geforce rtx 3090": Peak(_rates(35.6, 71, tf32=35.6, bfloat16=71, int8=284), 0.936, _GA102_PAPER),
    r"geforce rtx 4090": Peak(
        _rates(82.6, 165.2, tf32=82.6, bfloat16=165.2, float8=330.3, int8=660.6), 1.008, _ADA_PAPER
    ),
    r"geforce rtx 5090": Peak(
        _rates(104.8, 209.5, tf32=104.8, bfloat16=209.5, float8=419, float4=1676, int8=838),
        1.792,
        "NVIDIA RTX Blackwell GPU Architecture white paper, appendix A",
    ),
    r"mi300x(?: oam| vf)?": Peak(_CDNA_3, 5.3, "AMD Instinct MI300X data sheet"),
    r"mi325x(?: oam| vf)?": Peak(_CDNA_3, 6.0, "AMD Instinct MI325X data sheet"),
    r"mi300a": Peak(
        _rates(122.6, 980.6, float64=122.6, tf32=490.3, bfloat16=980.6, float8=1961.2, int8=1961.2),
        5.3,
        "AMD Instinct MI300A data sheet",
    ),
    r"mi350x(?: oam| vf)?": Peak(
        _rates(144.2, 2309.6, float64=72.1, bfloat16=2309.6, float8=4614, float4=9227.5, int8=4614),
        8.0,
        "AMD Instinct MI350X brochure",
    ),
    r"mi355x(?: oam| vf)?": Peak(
        _rates(157.3, 2516.6, float64=78.6, bfloat16=2516.6, float8=5033.2, float4=10066.3, int8=5033.2),
        8.0,
        "AMD Instinct MI355X brochure",
    ),
    # Each of the two dies of a card is a device of its own: half of the card's 383 TFLOP/s and 3.2 TB/s, or 362.1.
    r"mi250x(?: oam)?": Peak(
        _rates(47.85, 191.5, float64=47.85, bfloat16=191.5, int8=191.5), 1.6, f"{_MI200}, per die"
    ),
    r"mi250(?: oam)?": Peak(
        _rates(45.25, 181.05, float64=45.25, bfloat16=181.05, int8=181.05), 1.6, f"{_MI200}, per die"
    ),
    r"mi210": Peak(_rates(45.3, 181, float64=45.3, bfloat16=181, int8=181), 1.6, _MI200),
    r"mi100": Peak(_rates(46.1, 184.6, float64=11.5, bfloat16=92.3, int8=184.6), 1.2288, "AMD Instinct MI100 brochure"),
}
_PEAKS = [(re.compile(name), found) for name, found in _BY_NAME.items()]
