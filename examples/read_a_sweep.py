"""Many runs: `python examples/read_a_sweep.py SWEEP`, or cell by cell as a notebook.

SWEEP is a folder that `commtrace sweep` wrote, or a CSV with the columns model, parallel, workers, batch_size_per_rank
and epoch_s.
"""

# %% Epoch times -> speedups by both definitions, and efficiencies.
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout; where commtrace is installed, not needed
import commtrace

TIMINGS = """model,parallel,workers,batch_size_per_rank,epoch_s,dataset_samples
resnet18,ddp,1,128,27.2,50000
resnet18,ddp,2,128,20.9,50000
resnet18,ddp,4,128,19.9,50000
"""
folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
if len(sys.argv) > 1:
    sweep = commtrace.analyse_sweep(sys.argv[1])
else:
    (folder / "timings.csv").write_text(TIMINGS, encoding="utf-8")
    sweep = commtrace.analyse_sweep(folder / "timings.csv")
print(sweep.verdict)

# %% A table for a report.
columns = ["workers", "epoch_ns", "speedup_fixed_work", "strong_efficiency_frac", "note"]
print(sweep.scaling[columns].to_string(index=False))

# %% What subtraction takes for communication, which is everything that does not shrink with the number of workers.
print(sweep.subtraction[["workers", "subtracted_comm_ns", "exposed_comm_ns", "note"]].to_string(index=False))
commtrace.plots.speedup(sweep).save(folder / "speedup.svg")
print(f"wrote {folder / 'speedup.svg'}")
