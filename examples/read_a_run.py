"""A run from its verdict to the culprit: `python examples/read_a_run.py RUN`, or cell by cell as a notebook."""

# %% Read the traces of all ranks. Everything else is computed when it is first asked for.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout; where commtrace is installed, not needed
import commtrace

run = sys.argv[1] if len(sys.argv) > 1 else "traces/resnet18-ddp-w2"
result = commtrace.analyse(run)
print(result.summary())

# %% Tables are pandas DataFrames, times integer nanoseconds; here in ms: what do the ranks wait for?
late = result.ranks.sort_values("caused_wait_ns", ascending=False)
late["caused_wait_ms"] = late["caused_wait_ns"] / 1e6
print(late[["rank", "host", "caused_wait_ms", "because"]].to_string(index=False))

# %% Which collectives cost most exposed time, summed over ranks?
exposed = result.participation.groupby(["collective", "size_bytes"])[["exposed_wait_ns", "exposed_transfer_ns"]].sum()
in_ms = (exposed / 1e6).rename(columns=lambda name: name.replace("_ns", "_ms"))
print(in_ms.sort_values("exposed_transfer_ms", ascending=False))

# %% Pictures: a notebook shows what a cell ends with, `.save` writes it.
folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
commtrace.plots.heatmap(result).save(folder / "heatmap.svg")
commtrace.plots.step(result).save(folder / "step.svg")
result.report().save(folder / "report.html")
print("wrote heatmap.svg, step.svg and report.html")
