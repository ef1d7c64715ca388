"""What `python -m profiling run` adds to steps that it does not trace. See README.md beside this.

python benchmarks/run_overhead.py [REPEATS]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS, WAIT = 600, 300
BARE_STEPS = 4000

# Times blocks of steps itself, in ns per step: before the active window, and after the capture is over.
SCRIPT = f"""
import json, sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
width = int(sys.argv[1])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.ones(32, width)
marks = []
for step in range({STEPS}):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    marks.append(time.perf_counter_ns())
steps = [after - before for before, after in zip(marks, marks[1:])]
print(json.dumps([steps[20 : {WAIT} - 20], steps[{WAIT} + 30 :]]))
"""


# The smallest step there is, with and without the hook, in one process: what differs is ours alone.
BARE = f"""
import pathlib, statistics, sys, tempfile, time, torch
from profiling.schedule import Schedule
from profiling.script.config import RunConfig, Target
from profiling.script.observer import Observer

def step_us():
    marks = [time.perf_counter_ns()]
    for _ in range({BARE_STEPS}):
        optimizer.step()
        marks.append(time.perf_counter_ns())
    return statistics.median(after - before for before, after in zip(marks, marks[1:])) / 1e3

torch.set_num_threads(1)
weight = torch.ones(1, requires_grad=True)
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1e-3)
step_us()
alone = step_us()
out = pathlib.Path(tempfile.mkdtemp())
observer = Observer(RunConfig(Target("x"), out, Schedule(10 * {BARE_STEPS}, 1, 1)), ["x"])
observer.attach()
step_us()
print(f"added to a step that waits: {{step_us() - alone:.1f}} us")
observer.finish(None)
"""


def bare() -> str:
    """What a step before the active window costs more, in us."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", BARE], env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measured(script: Path, width: int, out: Path | None) -> list[float]:
    """The fastest tenth of the steps before and after the active window ends here, in us."""
    ours = ["-m", "profiling", "run", "--wait", str(WAIT), "--out", str(out)] if out else []
    done = subprocess.run(
        [sys.executable, *ours, str(script), str(width)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [statistics.quantiles(steps, n=10)[0] / 1e3 for steps in json.loads(done.stdout)]


def main() -> None:
    """Alternate the two, and take the best of each: what else the machine does only ever adds."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(bare(), flush=True)
    print("| step alone (us) | waiting (us) | afterwards (us) | waiting (%) | afterwards (%) |")
    print("|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        for width in (64, 256, 512):
            alone, ours = [], []
            for number in range(repeats):
                alone.append(measured(script, width, None))
                ours.append(measured(script, width, Path(folder, f"{width}-{number}")))
            before, after = (min(run[part] for run in alone) for part in (0, 1))
            waiting, afterwards = (min(run[part] for run in ours) for part in (0, 1))
            print(
                f"| {before:,.0f} | {waiting:,.0f} | {afterwards:,.0f} | {100 * (waiting / before - 1):+.1f} | "
                f"{100 * (afterwards / after - 1):+.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
