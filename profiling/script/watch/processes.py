"""Notice processes that a script starts with multiprocessing.Process, which are not captured. Knows no torch."""

import multiprocessing.process
from typing import Any

from ...base.patches import Patches

# Whose processes help, and do not train. Those of mp.spawn are captured.
_OF_LIBRARIES = ("multiprocessing.", "concurrent.", "torch.", "commtrace.", "joblib.")


class ProcessWatch:
    """Counts the processes of the script's own functions, by name of the function."""

    def __init__(self, patches: Patches) -> None:
        self._started: dict[str, int] = {}
        patches.wrap(multiprocessing.process.BaseProcess, "start", self._start)

    def _start(self, original: Any, process: Any) -> None:
        function = getattr(process, "_target", None)
        module = f"{getattr(function, '__module__', None) or type(function).__module__}."
        if not (process.daemon or function is None or module.startswith(_OF_LIBRARIES)):
            name = getattr(function, "__qualname__", type(function).__name__)
            self._started[name] = self._started.get(name, 0) + 1
        original(process)

    def said(self) -> str | None:
        """What was started and what to do instead; None if nothing was."""
        if not self._started:
            return None
        count, name = sum(self._started.values()), next(iter(self._started))
        started = f"the {count} processes" if count > 1 else "the process"
        are, them = ("are", "them") if count > 1 else ("is", "it")
        names = ", ".join(self._started)
        return (
            f"{started} that it started with multiprocessing.Process ({names}) {are} not captured: start {them} with "
            f"torch.multiprocessing.spawn({name}, nprocs={count}), or with torchrun"
        )
