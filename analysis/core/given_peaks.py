"""Peaks of devices that a user gives, or that were measured, instead of the vendors' figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

DTYPES = "float64", "float32", "tf32", "float16", "bfloat16", "float8", "float4", "int8"
"""Whose peaks vendors list; float8 and float4 are any of their kinds."""
MEMORY_PEAK = "memory"
BY_USER, BY_MEASUREMENT = "given", "measured"
_NAMES = (*DTYPES, MEMORY_PEAK)
_SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "fp4": "float4"}


class GivenPeak(NamedTuple):
    """A peak in TFLOP/s (of integers: operations), or of memory in TB/s, and where it comes from.

    `device` is the one that it was measured on, if that is known.
    """

    value: float
    origin: str = BY_USER
    device: str | None = None


GivenPeaks = Mapping[str, GivenPeak]
"""By dtype as torch spells it, "tf32" or "memory"."""
NO_PEAKS: GivenPeaks = MappingProxyType({})


def given_peaks(figures: Mapping[str, float]) -> GivenPeaks:
    """Peaks by dtype in TFLOP/s and of memory in TB/s, as a user names them. Raises ValueError."""
    found = {}
    for name, value in figures.items():
        plain = name.strip().casefold()
        plain = _SHORT.get(plain, "float8" if plain.startswith("float8") else plain)
        if plain not in _NAMES:
            raise ValueError(f"{name!r} is none of {', '.join((*_NAMES[:-1], *_SHORT))}, and not {MEMORY_PEAK}")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the peak of {name} is {value:g}, expected a number above 0")
        found[plain] = GivenPeak(float(value))
    return found


def parsed_figures(texts: Iterable[str]) -> dict[str, float]:
    """`bf16=989`, `memory=3.35` and their like by name. Raises ValueError."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError as err:
            raise ValueError(f"{text!r} is no peak, such as bf16=989 in TFLOP/s or memory=3.35 in TB/s") from err
    return found
