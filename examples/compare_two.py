"""Two configurations side by side: `python examples/compare_two.py A B`, or cell by cell as a notebook."""

# %% Each side may be several captures: commtrace.compare(["a1", "a2"], ["b1", "b2"]).
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout; where commtrace is installed, not needed
import commtrace

a, b = sys.argv[1:3] if len(sys.argv) > 2 else ("tests/data/nccl-straggler", "tests/data/nccl-two-hosts")
comparison = commtrace.compare(a, b)
print(" ".join(comparison.decision.statements))

# %% What a step takes longer for, and whether that is more than chance.
measures = comparison.comparison.copy()
measures[["a_ms", "b_ms", "difference_ms"]] = measures[["a_ns", "b_ns", "difference_ns"]] / 1e6
columns = ["measure", "a_ms", "b_ms", "difference_ms", "change_frac", "significant"]
print(measures[columns].to_string(index=False))

# %% The kernels that changed most, and a picture.
kernels = comparison.changed_kernels.head(5)
print(kernels[["name"]].assign(difference_ms=kernels["difference_ns"] / 1e6).to_string(index=False))
folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()
commtrace.plots.before_and_after(comparison).save(folder / "before-and-after.svg")
print("wrote before-and-after.svg")
