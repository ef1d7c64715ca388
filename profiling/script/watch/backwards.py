"""Notice the backward passes of a script, and when the one that runs is over."""

from collections.abc import Callable
from typing import Any

from torch.autograd import Variable

from ...base.patches import Patches
from ...base.torch_private import ENGINE, in_backward


class Backwards:
    """Stands where Python looks up the engine of autograd, which every backward pass does once.

    `begun` counts backward passes. The lookup is all that is ours: no frame of ours stays below the engine, and none is
    in the script's tracebacks, unless somebody has asked to hear of the end of a pass with `after_each`.
    """

    def __init__(self, patches: Patches) -> None:
        self.begun = 0
        self.before: Callable[[], None] | None = None
        """Called where a backward pass is about to begin; it must not raise."""
        self._engine = vars(Variable).get(ENGINE)
        self._over: Callable[[], None] | None = None
        if self._engine is not None:
            patches.replace(Variable, ENGINE, self)

    def after_each(self, over: Callable[[], None]) -> None:
        """Call `over` from now on where a backward pass has returned to its caller, and not inside another one."""
        self._over = over

    def __get__(self, instance: object, owner: object) -> Any:
        """The engine, for a backward pass that is about to begin, or for a callback inside one."""
        if in_backward():
            return self._engine
        self.begun += 1
        if self.before is not None:
            self.before()
        return self._engine if self._over is None else _Engine(self._engine, self._over)


class _Engine:
    """The engine of autograd, for one backward pass whose end is awaited."""

    def __init__(self, engine: Any, over: Callable[[], None]) -> None:
        self._engine = engine
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **options: Any) -> Any:
        result = self._engine.run_backward(*args, **options)
        self._over()
        return result
