"""From Kineto traces to tables of communication: exposed time, wait and transfer, bandwidth.

    from analysis import analyse
    result = analyse("traces/my-run")
    result.breakdown, result.collectives, result.bandwidth     # pandas DataFrames, columns in docs/tables.md

Nothing here imports torch. In the installed distribution the package is `commtrace.analysis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.analysis import Comparison, compare
    from .errors import AnalysisError
    from .hang.analysis import Hang, find_hang
    from .results.analysis import Analysis
    from .results.opening import analyse, load_run
    from .run.run import Run
    from .sweeps.analysis import SweepAnalysis, analyse_sweep
    from .training.analysis import TrainingAnalysis, analyse_training
    from .watching.opening import CycleAnalysis, analyse_cycles

__all__ = [
    "Analysis",
    "AnalysisError",
    "Comparison",
    "CycleAnalysis",
    "Hang",
    "Run",
    "SweepAnalysis",
    "TrainingAnalysis",
    "analyse",
    "analyse_cycles",
    "analyse_sweep",
    "analyse_training",
    "compare",
    "find_hang",
    "load_run",
]

_HOMES = {
    "Analysis": "results.analysis",
    "AnalysisError": "errors",
    "Comparison": "comparison.analysis",
    "CycleAnalysis": "watching.opening",
    "Hang": "hang.analysis",
    "Run": "run.run",
    "SweepAnalysis": "sweeps.analysis",
    "TrainingAnalysis": "training.analysis",
    "analyse": "results.opening",
    "analyse_cycles": "watching.opening",
    "analyse_sweep": "sweeps.analysis",
    "analyse_training": "training.analysis",
    "compare": "comparison.analysis",
    "find_hang": "hang.analysis",
    "load_run": "results.opening",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): `import analysis` costs nothing, pandas half a second."""
    name = name.replace("analyze", "analyse")  # both spellings are taken
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
