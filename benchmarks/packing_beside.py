"""How long packing beside a training holds up a step. See README.md beside this.

python benchmarks/packing_beside.py [MEMORY_GB] [TIMES]
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace import capture  # noqa: E402
from commtrace.profiling.base import run_directory as rundir  # noqa: E402
from commtrace.profiling.sessions.afterwards.packing import KeptFiles  # noqa: E402

_STEP_S = 0.001
_WATCHED_S = 1.0


def traced(folder: Path) -> Path:
    """A trace as torch writes it."""
    layers = [torch.nn.Linear(64, 64) for _ in range(100)]
    with capture(folder / "run", wait=1, active=3, device="cpu") as session:
        for _ in range(5):
            for layer in layers:
                layer(torch.ones(8, 64)).sum().backward()
            session.step()
    return session.run_dir / session.traces[0]


def longest_ms(seconds: float) -> float:
    """The longest of many short steps, which do nothing but hold the interpreter."""
    longest, until = 0.0, time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        while time.perf_counter() < begin + _STEP_S:
            pass
        longest = max(longest, time.perf_counter() - begin)
    return longest * 1e3


def main(memory_gb: float = 8.0, times: int = 20) -> None:
    """Print what a step waits for at most: to hand a trace over, and while its packing starts and runs."""
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(Path(folder))
        held = bytearray(int(memory_gb * 1e9))
        held[::4096] = b"\1" * len(held[::4096])  # every page is there
        given_ms, beside_ms, alone_ms = [], [], []
        for number in range(times):
            copy = trace.with_name(rundir.trace_name("host_0", number))
            shutil.copy(trace, copy)
            alone_ms.append(longest_ms(_WATCHED_S))
            files = KeptFiles(copy.parent, "recording")
            begin = time.perf_counter()
            files.add(copy.name)
            given_ms.append((time.perf_counter() - begin) * 1e3)
            beside_ms.append(longest_ms(_WATCHED_S))
            files.finish(lambda: False, tells=False)
        rows = {"handed over": given_ms, "longest 1 ms step, beside": beside_ms, "longest 1 ms step, alone": alone_ms}
        print(f"{memory_gb:g} GB held, a trace of {trace.stat().st_size / 1e6:.1f} MB, {times} times, in ms:")
        for name, found in rows.items():
            print(f"  {name:<30} median {statistics.median(found):7.2f}   worst {max(found):7.2f}")


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((float, int), sys.argv[1:], strict=False)))
