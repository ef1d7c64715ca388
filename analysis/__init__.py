"""From Kineto traces to tables of communication: exposed time, wait and transfer, bandwidth.

    from analysis import analyse
    result = analyse("traces/my-run")
    result.breakdown, result.collectives, result.bandwidth     # pandas DataFrames, columns in docs/tables.md

Nothing here imports torch. In the installed distribution the package is `commtrace.analysis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import AnalysisError
    from .measure import Analysis, analyse
    from .measure_compare import Comparison, compare
    from .measure_sweep import SweepAnalysis, analyse_sweep
    from .measure_training import TrainingAnalysis, analyse_training
    from .run import Run, load_run

__all__ = [
    "Analysis",
    "AnalysisError",
    "Comparison",
    "Run",
    "SweepAnalysis",
    "TrainingAnalysis",
    "analyse",
    "analyse_sweep",
    "analyse_training",
    "compare",
    "load_run",
]

_HOMES = {
    "Analysis": "measure",
    "AnalysisError": "errors",
    "Comparison": "measure_compare",
    "Run": "run",
    "SweepAnalysis": "measure_sweep",
    "TrainingAnalysis": "measure_training",
    "analyse": "measure",
    "analyse_sweep": "measure_sweep",
    "analyse_training": "measure_training",
    "compare": "measure_compare",
    "load_run": "run",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): `import analysis` costs nothing, pandas half a second."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
