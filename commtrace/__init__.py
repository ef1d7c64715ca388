"""Measure communication in distributed PyTorch training: capture traces of every rank, and analyse them.

    import commtrace
    result = commtrace.analyse("traces/my-run")
    result.breakdown, result.bandwidth      # pandas DataFrames, columns in docs/tables.md

`analyze` is the same function as `analyse`.
Nothing is imported before it is used: pandas by the analysis, torch by `capture`.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import plots as plots
    from .analysis.comparison.analysis import Comparison as Comparison
    from .analysis.comparison.analysis import compare as compare
    from .analysis.comparison.batches import BatchFits as BatchFits
    from .analysis.comparison.batches import fit_batches as fit_batches
    from .analysis.comparison.trend import RunTrend as RunTrend
    from .analysis.comparison.trend import run_trend as run_trend
    from .analysis.errors import AnalysisError as AnalysisError
    from .analysis.explanation import explain as explain
    from .analysis.hang.analysis import Hang as Hang
    from .analysis.hang.analysis import find_hang as find_hang
    from .analysis.lab.analysis import MachineAnalysis as MachineAnalysis
    from .analysis.lab.analysis import analyse_machine as analyse_machine
    from .analysis.results.analysis import Analysis as Analysis
    from .analysis.results.opening import analyse as analyse
    from .analysis.results.opening import analyse as analyze  # noqa: F401 - `__getattr__` has it too
    from .analysis.results.opening import load_run as load_run
    from .analysis.run.run import Run as Run
    from .analysis.snapshots.analysis import SnapshotAnalysis as SnapshotAnalysis
    from .analysis.snapshots.analysis import analyse_snapshots as analyse_snapshots
    from .analysis.sweeps.analysis import SweepAnalysis as SweepAnalysis
    from .analysis.sweeps.analysis import analyse_sweep as analyse_sweep
    from .analysis.training.analysis import TrainingAnalysis as TrainingAnalysis
    from .analysis.training.analysis import analyse_training as analyse_training
    from .analysis.watching.opening import CycleAnalysis as CycleAnalysis
    from .analysis.watching.opening import analyse_cycles as analyse_cycles
    from .profiling.base.current import step as step
    from .profiling.capture import capture as capture

    __version__: str

logging.getLogger("commtrace").addHandler(logging.NullHandler())
_HOMES = {
    "Analysis": "analysis.results.analysis",
    "AnalysisError": "analysis.errors",
    "Comparison": "analysis.comparison.analysis",
    "CycleAnalysis": "analysis.watching.opening",
    "Hang": "analysis.hang.analysis",
    "Run": "analysis.run.run",
    "SweepAnalysis": "analysis.sweeps.analysis",
    "MachineAnalysis": "analysis.lab.analysis",
    "TrainingAnalysis": "analysis.training.analysis",
    "analyse_machine": "analysis.lab.analysis",
    "RunTrend": "analysis.comparison.trend",
    "SnapshotAnalysis": "analysis.snapshots.analysis",
    "BatchFits": "analysis.comparison.batches",
    "fit_batches": "analysis.comparison.batches",
    "analyse": "analysis.results.opening",
    "analyse_cycles": "analysis.watching.opening",
    "analyse_snapshots": "analysis.snapshots.analysis",
    "analyse_sweep": "analysis.sweeps.analysis",
    "analyse_training": "analysis.training.analysis",
    "capture": "profiling.capture",
    "compare": "analysis.comparison.analysis",
    "explain": "analysis.explanation",
    "find_hang": "analysis.hang.analysis",
    "load_run": "analysis.results.opening",
    "run_trend": "analysis.comparison.trend",
    "step": "profiling.base.current",
}
"""Public names -> the modules that define them."""

__all__ = [*sorted([*_HOMES, "plots"]), "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562). `analyze` is taken for `analyse`."""
    if name == "__version__":
        from .common.version import version

        return version()
    if name == "plots":
        return import_module(".plots", __name__)
    spelled = name.replace("analyze", "analyse")
    if spelled not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[spelled]}", __name__), spelled)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
