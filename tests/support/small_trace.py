"""A small trace with some of everything that matters, and reading it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from builders import LAYOUTS, MS, Trace

from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes

OPTIONS = ReadOptions()
KERNELS = 6


def trace() -> Trace:
    made = Trace(0, 2, groups={"0": [0, 1]}).step(1, 0, 90 * MS)
    for number in range(KERNELS):
        made.kernel(f"gemm {number}", number * 10 * MS, 3 * MS)
        made.event("python_function", f"train.py: {number}", number * 10 * MS, 9 * MS)
    ids: dict[str, Any] = {"Seq": 1, "Comms Id": 18446744073709551557}
    return made.nccl("all_reduce", 80 * MS, 5 * MS, **ids)


def content(layout: str = "kineto") -> bytes:
    return LAYOUTS[layout](trace().document())


def read(path: Path, *, keep_damaged: bool = False, sizes: ReadSizes = USUAL_SIZES) -> RawTrace:
    return read_kineto(path, ReadOptions(keep_going=keep_damaged, sizes=sizes))


def good_events(found: RawTrace) -> int:
    """How many events there were before the damage, as it is told."""
    (told,) = re.findall(r"\b([0-9,]+) events?\b", str(found.damage))
    return int(told.replace(",", ""))
