"""What `commtrace run` adds to steps that it does not trace. See README.md beside this.

python benchmarks/run_overhead.py [STEPS]
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from commtrace.profiling.base.schedule import Schedule  # noqa: E402
from commtrace.profiling.script.config import RunConfig, Target  # noqa: E402
from commtrace.profiling.script.watch.observer import Observer  # noqa: E402

WIDTHS = (None, 64, 256, 512)


class Loop:
    """Training steps of a small model; with `width` None the smallest step there is, an optimizer's alone."""

    def __init__(self, width: int | None) -> None:
        self._batch = None if width is None else torch.ones(32, width)
        layers = [torch.nn.Linear(width or 1, width or 1) for _ in range(4)]
        self._model = torch.nn.Sequential(*(layers if width else layers[:1]))
        self._optimizer: Optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6)
        for parameter in self._model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(self) -> None:
        """One step."""
        if self._batch is not None:
            self._optimizer.zero_grad()
            self._model(self._batch).sum().backward()
        self._optimizer.step()

    def step_us(self) -> float:
        """Duration of one step, in us."""
        begin_ns = time.perf_counter_ns()
        self.step()
        return (time.perf_counter_ns() - begin_ns) / 1e3


@contextmanager
def waiting(loop: Loop) -> Iterator[None]:
    """A capture of the loop that waits for its turn all through the block."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    with tempfile.TemporaryDirectory() as folder:
        observer = Observer(RunConfig(Target("loop"), Path(folder), Schedule(10**9, 1, 1)), ["loop"])
        observer.attach()
        loop.step()  # opens the capture
        yield
        observer.finish(None)


def measured(width: int | None, steps: int) -> tuple[float, float]:
    """A step without and with a capture that waits, in us: of either the fastest tenth ends here.

    They alternate in one process, because what else the machine does changes from second to second, and only ever adds.
    """
    loop = Loop(width)
    alone, ours = [], []
    with waiting(loop):
        hooks = optimizers._global_optimizer_post_hooks  # noqa: SLF001  (taken away and put back, nothing else)
        watched = dict(hooks)
        for _ in range(steps):
            hooks.clear()
            alone.append(loop.step_us())
            hooks.update(watched)
            ours.append(loop.step_us())
    return statistics.quantiles(alone, n=10)[0], statistics.quantiles(ours, n=10)[0]


def main() -> None:
    """One row per size of a step."""
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("| step alone (us) | waiting (us) | added (us) | added (%) |\n|---:|---:|---:|---:|")
    for width in WIDTHS:
        alone, ours = measured(width, steps)
        print(f"| {alone:,.0f} | {ours:,.0f} | {ours - alone:.1f} | {100 * (ours / alone - 1):+.2f} |", flush=True)


if __name__ == "__main__":
    main()
