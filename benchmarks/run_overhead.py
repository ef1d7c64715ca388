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


def measured(script: Path, width: int, out: Path | None) -> list[float]:
    """Median step before and after the active window, in us."""
    ours = ["-m", "profiling", "run", "--wait", str(WAIT), "--out", str(out)] if out else []
    done = subprocess.run(
        [sys.executable, *ours, str(script), str(width)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [statistics.median(steps) / 1e3 for steps in json.loads(done.stdout)]


def main() -> None:
    """Alternate the two, so that what else the machine does falls on both."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print("| step alone (us) | waiting (us) | afterwards (us) | waiting (%) | afterwards (%) |")
    print("|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        for width in (64, 512, 1024):
            alone, ours = [], []
            for number in range(repeats):
                alone.append(measured(script, width, None))
                ours.append(measured(script, width, Path(folder, f"{width}-{number}")))
            before, after = (statistics.median(run[part] for run in alone) for part in (0, 1))
            waiting, afterwards = (statistics.median(run[part] for run in ours) for part in (0, 1))
            print(
                f"| {before:,.0f} | {waiting:,.0f} | {afterwards:,.0f} | {100 * (waiting / before - 1):+.1f} | "
                f"{100 * (afterwards / after - 1):+.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
