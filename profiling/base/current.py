"""Whom `commtrace.step()` tells that a step is over. Knows no torch."""

from collections.abc import Callable

# Captures that are on in this process, the innermost last: a notebook's cells, or the functions of a script, have
# nothing else in common.
_takers: list[Callable[[], None]] = []


def step() -> None:
    """End a training step of the capture that is on: of `capture()`, or of `commtrace run`. Without one, do nothing.

    For loops that have no hold of what `capture()` returns: in a function that it decorates, in another cell of a
    notebook, or deep in a library. Once a script calls it under `commtrace run`, nothing else ends a step there. Raises
    RunDirError where `Session.step` does.
    """
    if _takers:
        _takers[-1]()


def take_steps(taker: Callable[[], None]) -> None:
    """Call `taker` for each `step()` until `leave_steps`."""
    _takers.append(taker)


def leave_steps(taker: Callable[[], None]) -> None:
    """Call this taker no more."""
    if taker in _takers:
        _takers.remove(taker)
