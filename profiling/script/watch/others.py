"""Know the profilers that a script runs itself, from their warm-up on."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...base.patches import Patches, Wrapper
from ...base.torch_private import PROFILER_START, profiler_is_on


class OtherProfilers:
    """The script's own profilers in this process.

    Torch says that a profiler is on when its warm-up is over. If ours began before, torch would refuse to start the
    script's, and the script would end.
    """

    def __init__(self) -> None:
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_ours = False

    def watch(self, patches: Patches, before_each: Wrapper) -> None:
        """Begin to watch; `before_each` is called instead of the start of each, as of `Patches.wrap`."""

        def start(original: Any, profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours:
                return original(profiler, *args, **kwargs)
            self._begun.add(profiler)
            return before_each(original, profiler, *args, **kwargs)

        def end(original: Any, profiler: Any, *args: Any, **kwargs: Any) -> Any:
            self._begun.discard(profiler)
            return original(profiler, *args, **kwargs)

        patches.wrap(torch.autograd.profiler.profile, PROFILER_START, start)
        patches.wrap(torch.autograd.profiler.profile, "__exit__", end)

    @property
    def are_on(self) -> bool:
        """Whether one warms up or records. For use while ours does neither."""
        return bool(self._begun) or profiler_is_on()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """A block in which our own profiler begins."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False
