"""Send small facts from every rank to rank 0 and back, through the store of the process group.

Not through collectives: the backend may lack them, and traces should contain only those that are measured. Waiting
means polling, so that a signal is noticed while a peer is late.
"""

import json
import time
from typing import Any

from ..base.torch_private import store_of_default_group
from ..errors import CaptureError
from ..ranks.process_group import Identity

_POLL_S = 0.0005
_LONGEST_POLL_S = 0.02
_TIMEOUT_S = 300.0


class Exchange:
    """Exchanges in which every rank makes the same calls in the same order."""

    def __init__(self, who: Identity) -> None:
        self._who = who
        self._store = store_of_default_group()
        self._calls = 0

    def gathered(self, fact: Any) -> list[Any] | None:
        """On rank 0 the facts of all ranks, in order; None elsewhere. Raises CaptureError."""
        prefix = self._next()
        if self._who.rank != 0:
            self._store.set(f"{prefix}/{self._who.rank}", json.dumps(fact))
            return None
        return [fact, *(self._take(f"{prefix}/{rank}", rank) for rank in range(1, self._who.world_size))]

    def from_first(self, fact: Any) -> Any:
        """The fact of rank 0, on every rank. Raises CaptureError."""
        prefix = self._next()
        if self._who.rank != 0:
            return self._take(f"{prefix}/{self._who.rank}", 0)
        for rank in range(1, self._who.world_size):
            self._store.set(f"{prefix}/{rank}", json.dumps(fact))
        return fact

    def largest(self, value: float) -> float:
        """The largest value of all ranks, on every rank. Raises CaptureError."""
        values = self.gathered(value)
        found: float = self.from_first(max(values) if values is not None else None)
        return found

    def _next(self) -> str:
        self._calls += 1
        return f"commtrace/exchange/{self._calls}"

    def _take(self, key: str, sender: int) -> Any:
        deadline, pause_s = time.monotonic() + _TIMEOUT_S, _POLL_S
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                raise CaptureError(
                    f"rank {self._who.rank}: rank {sender} said nothing within {_TIMEOUT_S:.0f} s; is it stuck?"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        fact = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return fact
