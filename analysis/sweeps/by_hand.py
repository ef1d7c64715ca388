"""Bandwidth as computed by hand from epoch times, with the mistakes that people make in it.

Pure numbers. The letters are the reports in which a mistake was found; docs/metrics/subtraction.md, "Known mistakes".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

_GB, _GIB = 10**9, 2**30


@dataclass(frozen=True)
class Estimate:
    """Messages of one size, and their total time. `factor` is the bus factor, `gb_bytes` the bytes of a "GB"."""

    message_bytes: float
    factor: float
    messages: int
    time_ns: int
    gb_bytes: int = _GB

    @property
    def gb_per_s(self) -> float:
        """The bandwidth; infinite for a time of 0, negative for a negative one."""
        return self._moved / self.time_ns if self.time_ns else math.inf

    def over(self, right: Estimate) -> float | None:
        """This bandwidth as a multiple of the right one; None if times differ and one is not positive."""
        if self.time_ns == right.time_ns:
            return self._moved / right._moved
        if self.time_ns <= 0 or right.time_ns <= 0:
            return None
        return self.gb_per_s / right.gb_per_s

    @property
    def _moved(self) -> float:
        return self.message_bytes * self.factor * self.messages * (_GB / self.gb_bytes)


@dataclass(frozen=True)
class Facts:
    """What else is known of the cell; None where unknown."""

    batch_size_per_worker: int
    item_bytes: float | None = None
    dataset_samples: int | None = None
    sample_bytes: int | None = None
    loader_ns: int | None = None


class Unknown(Exception):
    """A mistake cannot be reproduced because a value it needs is not known."""


class Mistaken(NamedTuple):
    """The estimate with a mistake, and the mistake in words."""

    estimate: Estimate
    because: str


class Mistake(NamedTuple):
    """A known mistake: the reports that made it, and how to reproduce it."""

    reports: str
    make: Callable[[Estimate, Facts], Mistaken]


def _one_message(right: Estimate, facts: Facts) -> Mistaken:  # noqa: ARG001
    because = f"the bytes of 1 message over the time of {right.messages:,}"
    return Mistaken(replace(right, messages=1), because)


def _elements(right: Estimate, facts: Facts) -> Mistaken:
    if facts.item_bytes is None:
        raise Unknown("the parameters of the model are not known")
    elems = right.message_bytes / facts.item_bytes
    because = f"{elems:,.0f} elements taken for bytes, which are {right.message_bytes:,.0f}"
    return Mistaken(replace(right, message_bytes=elems), because)


def _gib(right: Estimate, facts: Facts) -> Mistaken:  # noqa: ARG001
    return Mistaken(replace(right, gb_bytes=_GIB), f"a GB taken to be {_GIB:,} bytes, not {_GB:,}")


def _unshared_epoch(right: Estimate, facts: Facts) -> Mistaken:
    if facts.dataset_samples is None:
        raise Unknown("the samples of an epoch (dataset_samples) are not known")
    steps = math.ceil(facts.dataset_samples / facts.batch_size_per_worker)
    because = f"{steps:,} messages, as if one worker did the whole epoch, for {right.messages:,}"
    return Mistaken(replace(right, messages=steps), because)


def _data_set(right: Estimate, facts: Facts) -> Mistaken:
    if facts.dataset_samples is None or facts.sample_bytes is None:
        raise Unknown("the size of the data set (dataset_samples, sample_bytes) is not known")
    size = facts.dataset_samples * facts.sample_bytes
    sent = f"{right.messages:,} messages of {right.message_bytes:,.0f} bytes"
    because = f"the {size:,} bytes of the data set taken for what is sent, {sent}"
    return Mistaken(replace(right, message_bytes=size, factor=1.0, messages=1), because)


def _loader_time(right: Estimate, facts: Facts) -> Mistaken:
    if facts.loader_ns is None:
        raise Unknown("the time of the data loader is not known")
    seconds, subtracted = facts.loader_ns / _GB, right.time_ns / _GB
    because = f"{seconds:,.3f} s of waiting for the data loader taken for communication, which is {subtracted:,.3f} s"
    return Mistaken(replace(right, time_ns=facts.loader_ns), because)


_Make = Callable[[Estimate, Facts], Mistaken]


def _both(first: _Make, second: _Make) -> _Make:
    def make(right: Estimate, facts: Facts) -> Mistaken:
        once = first(right, facts)
        twice = second(once.estimate, facts)
        # Each is told as if it were alone: the second against the right figures too.
        return Mistaken(twice.estimate, f"{once.because}; {second(right, facts).because}")

    return make


KNOWN_MISTAKES: dict[str, Mistake] = {
    "one-message": Mistake("A", _one_message),
    "elements": Mistake("C", _elements),
    "gib": Mistake("A", _gib),
    "unshared-epoch": Mistake("C", _unshared_epoch),
    "data-set": Mistake("D", _data_set),
    "loader-time": Mistake("D", _loader_time),
    # As published: all mistakes of one report together.
    "report-a": Mistake("A", _both(_one_message, _gib)),
    "report-c": Mistake("C", _both(_elements, _unshared_epoch)),
    "report-d": Mistake("D", _both(_data_set, _loader_time)),
}
