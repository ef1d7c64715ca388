"""The pulses of a job's ranks, looked at again and again: each rank writes one about once a second."""

from __future__ import annotations

import math
import time
from pathlib import Path

from ...common import trigger
from ...common.trigger import Pulse

_QUIET_S = 60.0
_MISSED = 3  # pulses in a row, so that a rank is silent


class Pulses:
    """The last pulse of each rank of `run`, as of the last `look`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.last: dict[int, Pulse] = {}
        self._heard_s: dict[int, float] = {}
        self._changed_s = -math.inf

    def look(self) -> list[Pulse]:
        """Look once; return the pulses that are new, in order of ranks."""
        first, before, self.last = not self._heard_s, self.last, trigger.pulses_of(self.run)
        now_s = time.monotonic()
        new = [pulse for rank, pulse in sorted(self.last.items()) if pulse != before.get(rank)]
        for pulse in new:
            # How old those are that were there before this watch, only the clock tells.
            age_s = max(time.time() - pulse.unix_ns / 1e9, 0.0) if first else 0.0
            self._heard_s[pulse.rank] = now_s - age_s
        if self.last != before:
            self._changed_s = max((self._heard_s[pulse.rank] for pulse in new), default=now_s)
        return new

    @property
    def is_alive(self) -> bool:
        """Whether the job still makes steps."""
        longest_s = max((pulse.step_ns or 0 for pulse in self.last.values()), default=0) / 1e9
        quiet_s = _QUIET_S + _MISSED * (self.every_s + longest_s)
        return bool(self.last) and time.monotonic() - self._changed_s < quiet_s

    @property
    def every_s(self) -> float:
        """How often ranks write one, at most."""
        return max((pulse.every_s for pulse in self.last.values()), default=0.0)

    def silent_s(self, pulse: Pulse) -> float | None:
        """How long ago this rank wrote its pulse, if that is longer than steps as its last ones explain; else None."""
        age_s = time.monotonic() - self._heard_s[pulse.rank]
        expected_s = _MISSED * (max(pulse.every_s, 1.0) + (pulse.step_ns or 0) / 1e9)
        return age_s if age_s > expected_s and pulse.beside is None else None
