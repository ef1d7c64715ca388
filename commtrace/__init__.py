"""Measure communication in distributed PyTorch training: capture traces of every rank, and analyse them.

    import commtrace
    result = commtrace.analyse("traces/my-run")
    result.breakdown, result.bandwidth      # pandas DataFrames, columns in docs/tables.md

Nothing is imported before it is used: pandas by the analysis, torch by `capture`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

_HERE = __path__[0]
IN_CHECKOUT = not os.path.isdir(os.path.join(_HERE, "analysis"))  # noqa: PTH112, PTH118 - pathlib costs more than this
"""Whether this is a checkout, where `analysis` and `profiling` stand beside this folder; installed they are in it."""
if IN_CHECKOUT:
    __path__.append(os.path.dirname(os.path.abspath(_HERE)))  # noqa: PTH100, PTH120

if TYPE_CHECKING:
    from . import plots
    from .analysis import (
        Analysis,
        AnalysisError,
        Comparison,
        CycleAnalysis,
        Hang,
        Run,
        SweepAnalysis,
        TrainingAnalysis,
        analyse,
        analyse_cycles,
        analyse_sweep,
        analyse_training,
        compare,
        find_hang,
        load_run,
    )
    from .profiling import capture

    __version__: str
else:

    def capture(*args: Any, **options: Any) -> Any:
        """A profiler session around a loop of your own, which writes a run directory: see docs. Imports torch.

        Takes what `commtrace.profiling.capture` does. Raises ProfilingError.
        """
        from .profiling.base.libraries import require

        require("torch")
        from .profiling import capture as session

        return session(*args, **options)


__all__ = [
    "Analysis",
    "AnalysisError",
    "Comparison",
    "CycleAnalysis",
    "Hang",
    "Run",
    "SweepAnalysis",
    "TrainingAnalysis",
    "__version__",
    "analyse",
    "analyse_cycles",
    "analyse_sweep",
    "analyse_training",
    "capture",
    "compare",
    "find_hang",
    "load_run",
    "plots",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562)."""
    if name == "__version__":
        from .analysis.version import version

        return version()
    if name.replace("analyze", "analyse") not in __all__:  # both spellings are taken
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "plots":
        from importlib import import_module

        return import_module(f"{__name__}.plots")
    from . import analysis

    return getattr(analysis, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
