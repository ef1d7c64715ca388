"""What a capture costs: steps outside and inside its window, the export, bytes, memory. See README.md beside this.

python benchmarks/capture.py [--model resnet18] [--batch-size 8] [--rounds 5] [--device cuda]

Captures of each kind and plain steps take turns in one process. Of steps the fastest tenth ends here, since what else
the machine does only ever adds; of the rest it is the median.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace import capture  # noqa: E402
from commtrace.profiling.workloads.models import MODELS  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "light": {"light": True},
    "with memory": {"profile_memory": True},
    "with stacks": {"with_stack": True},
}
WAIT, WARMUP, ACTIVE, TRAILING = 10, 2, 5, 10


@dataclass
class Costs:
    """What was measured of one kind of capture; times in s."""

    outside: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)
    export: list[float] = field(default_factory=list)
    step_bytes: list[float] = field(default_factory=list)
    peak_bytes: float = 0.0


class Loop:
    """Training steps of a model, each of which ends when the device is done."""

    def __init__(self, name: str, batch_size: int, where: torch.device) -> None:
        torch.manual_seed(0)
        self._where = where
        self._model = MODELS[name]().to(where)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._images = torch.randn(batch_size, 3, 32, 32, device=where)

    def step_s(self) -> float:
        """One step, in s."""
        return self.timed(self._step)

    def timed(self, work: Callable[[], object]) -> float:
        begun_s = time.perf_counter()
        work()
        if self._where.type == "cuda":
            torch.cuda.synchronize(self._where)
        return time.perf_counter() - begun_s

    def _step(self) -> None:
        self._optimizer.zero_grad()
        self._model(self._images).square().mean().backward()
        self._optimizer.step()


def captured(loop: Loop, costs: Costs, folder: Path, options: dict[str, Any]) -> None:
    """One capture, and what it cost. A step is taken together with `session.step()`, but for the one that exports."""
    before_bytes = _peak_bytes()
    with capture(folder, wait=WAIT, warmup=WARMUP, active=ACTIVE, **options) as session:
        for number in range(WAIT + WARMUP + ACTIVE + TRAILING):
            step_s, then_s = loop.step_s(), loop.timed(session.step)
            traced = WAIT + WARMUP <= number < WAIT + WARMUP + ACTIVE
            if number == WAIT + WARMUP + ACTIVE - 1:
                costs.export.append(then_s)
                costs.inside.append(step_s)
            elif traced:
                costs.inside.append(step_s + then_s)
            elif number not in (WAIT - 1, *range(WAIT, WAIT + WARMUP)):  # the profiler starts, and warms up
                costs.outside.append(step_s + then_s)
    written = sum(path.stat().st_size for path in folder.glob("*.pt.trace.json.gz"))
    costs.step_bytes.append(written / ACTIVE)
    costs.peak_bytes = max(costs.peak_bytes, _peak_bytes() - before_bytes)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _fastest(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=10)[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet18", choices=list(MODELS))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    loop = Loop(options.model, options.batch_size, torch.device(options.device))
    plain: list[float] = []
    costs = {kind: Costs() for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            for kind, asked in KINDS.items():
                plain += [loop.step_s() for _ in range(WAIT)][2:]
                captured(loop, costs[kind], Path(folder) / f"{turn}-{kind}", asked)
    alone = _fastest(plain)
    print(f"{options.model}, batch {options.batch_size}, {options.device}: a step alone takes {1e3 * alone:.1f} ms")
    print("| capture | outside the window (%) | inside (%) | export (ms) | kB per step | peak memory (MB) |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind, found in costs.items():
        outside, inside = (100 * (_fastest(steps) / alone - 1) for steps in (found.outside, found.inside))
        export, size = statistics.median(found.export), statistics.median(found.step_bytes)
        sizes = f"{size / 1e3:,.0f} | {found.peak_bytes / 1e6:,.0f}"
        print(f"| {kind} | {outside:+.1f} | {inside:+.1f} | {1e3 * export:,.0f} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
