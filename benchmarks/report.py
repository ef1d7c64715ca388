"""Time and size of reports: simulated runs of 8, 64 and 512 ranks, 10 steps each.

    python benchmarks/report.py [RANKS ...]

Prints the seconds of reading and analysing, which the summary takes too, the seconds of the report beyond that, and its
size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from simulator import PRESETS, simulate  # noqa: E402
from simulator.worlds import Window  # noqa: E402

from commtrace import analyse  # noqa: E402


def main(counts: list[int]) -> None:
    print("ranks  calls      analysis s  report s  page kB")
    for count in counts:
        world = replace(PRESETS["straggler"], hosts=max(count // 8, 1), gpus=8, steps=12, window=Window(((1, 10),)))
        with tempfile.TemporaryDirectory() as folder:
            simulate(world).write(Path(folder))
            begun = time.perf_counter()
            result = analyse(folder)
            result.summary(everything=True)
            analysed = time.perf_counter()
            page = result.report()
            done = time.perf_counter()
        size = len(page.html.encode()) / 1e3
        print(f"{count:5}  {len(result.calls):9,}  {analysed - begun:10.1f}  {done - analysed:8.2f}  {size:7,.0f}")


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [8, 64, 512])
