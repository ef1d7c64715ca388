"""Run training under torch.profiler and write a run directory: one Kineto trace per rank and small JSON side files.

`from profiling import capture` is the session for loops of your own; `python -m profiling train` is a loop with
everything set up. Importing this package does not import torch: `capture` does, when it is first looked up. No module
here may have that name: once imported, it would replace the function.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sessions.session import capture

# Python 3.15 has a standard library package of this name, whose `profiling.tracing` cProfile imports, and torch imports
# cProfile. In a checkout this folder shadows it: the extended path keeps the submodules of both importable.
__path__ = pkgutil.extend_path(__path__, __name__)

__all__ = ["capture"]


def __getattr__(name: str) -> Any:
    """Import `capture` when it is first asked for (PEP 562)."""
    if name == "capture":
        from .sessions.session import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
