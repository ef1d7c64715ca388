"""Wrap functions of torch for a while, and restore them. Knows no torch."""

import functools
from collections.abc import Callable
from typing import Any

# Given the original, and what that was called with.
Wrapper = Callable[..., Any]


class Patches:
    """Changes to undo."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Call `wrapper(original, *args, **kwargs)` instead of `owner.name`, if that exists."""
        original = vars(owner).get(name)
        if original is None:
            return

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        self.replace(owner, name, wrapped)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`. Undoing leaves a value that others have set since."""
        original = vars(owner)[name]
        setattr(owner, name, value)

        def put_back() -> None:
            if vars(owner).get(name) is value:
                setattr(owner, name, original)

        self._undo.append(put_back)

    def on_detach(self, undo: Callable[[], None]) -> None:
        """Call `undo` with the others."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restore everything. Further calls do nothing."""
        while self._undo:
            self._undo.pop()()
