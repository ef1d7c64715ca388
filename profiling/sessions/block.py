"""The block of a capture: entered once, one at a time in a process; also as a decorator, or by `start` and `stop`."""

import atexit
import functools
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import CaptureError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_B = TypeVar("_B", bound="Block")

_entered: dict[int, "Block"] = {}
"""The capture whose block each process is in: that of the parent is not that of a forked child."""


class Block(ABC):
    """A capture as code surrounds it; what happens at both ends, others say.

    As a decorator of a function, each of its calls is a capture of its own. `start` and `stop` are the block where
    there is none.
    """

    _takes_steps = True
    """Whether `commtrace.step()` ends a step here, so that there can be only one such block at a time."""

    def __init__(self) -> None:
        self.has_ended = False
        self.again: Callable[[], Block]
        """Makes another capture like this one; of those that `capture()` made."""
        self.uses: list[str] = []
        """What became of this one: it was entered, or decorates a function."""

    @abstractmethod
    def check_free(self) -> None:
        """Raise CaptureError where nothing can be captured."""

    @abstractmethod
    def begin(self) -> None:
        """What happens at the beginning of the block."""

    @abstractmethod
    def end(self, error: BaseException | None) -> None:
        """What happens at the end of the block, which `error` ended, if anything did."""

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function: each call is the block of a new capture, also of a coroutine, and of a generator."""
        self.uses.append("decorates")
        running: Any = function

        @functools.wraps(function)
        def captured(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            with self.again():
                return running(*args, **kwargs)

        @functools.wraps(function)
        async def awaited(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            with self.again():
                return await running(*args, **kwargs)

        @functools.wraps(function)
        def generated(*args: _P.args, **kwargs: _P.kwargs) -> Generator[Any, Any, Any]:
            with self.again():
                return (yield from running(*args, **kwargs))

        if inspect.iscoroutinefunction(function):
            return cast("Callable[_P, _R]", awaited)
        return cast("Callable[_P, _R]", generated if inspect.isgeneratorfunction(function) else captured)

    def start(self: _B) -> _B:
        """Enter the block where there is none, as in the cells of a notebook; return this. Raises as that does.

        A program that ends without `stop` ends the block there.
        """
        self.__enter__()
        atexit.register(self._left_open)
        return self

    def stop(self) -> None:
        """Leave the block that `start` has entered. Raises CaptureError outside of it."""
        if _entered.get(os.getpid()) is not self:
            raise CaptureError("this capture() was not started, or has ended; call start() of it, or capture() again")
        atexit.unregister(self._left_open)
        self.__exit__(None, None, None)

    def _left_open(self) -> None:
        if _entered.get(os.getpid()) is self:
            with suppress(SystemExit, KeyboardInterrupt):  # a signal came meanwhile, and the process is ending anyway
                error = getattr(sys, "last_value", None) or SystemExit()
                self.__exit__(type(error), error, None)

    def __enter__(self: _B) -> _B:
        if "entered" in self.uses:
            raise CaptureError("this capture() was begun before, and each is one capture; call capture() again")
        self.uses.append("entered")
        self.check_free()
        with self._alone():
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.has_ended:  # else by `stop`, inside of the block
            self.has_ended = True
            self.end(error)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other captures of this process out from now on, unless the block fails. Raises CaptureError.

        Until its first active step no profiler runs, so that cannot tell; and two that begin in two threads end Python.
        """
        if self._takes_steps and _entered.setdefault(os.getpid(), self) is not self:
            raise CaptureError("another capture() of this process has not ended yet, and there is one at a time")
        try:
            yield
        except BaseException:
            self.let_others_in()
            raise

    def let_others_in(self) -> None:
        """Let other captures of this process begin from now on."""
        if _entered.get(os.getpid()) is self:
            del _entered[os.getpid()]

    def check_recording(self) -> None:
        """Raise CaptureError where a step ends outside of the block."""
        if not self.uses:
            raise CaptureError(
                "capture() records in its block only: write `with commtrace.capture(...) as session:`, and in it the "
                "training loop, with session.step() at the end of each step"
            )
        if self.has_ended:
            raise CaptureError("this capture() has ended, and records nothing more; call capture() again")
