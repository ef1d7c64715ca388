"""Measure how far this rank's clock is ahead of rank 0's, as NTP does, at begin and end of a capture.

    this rank   t0 --- ask ---> t1   rank 0        ahead by t0 - t1 at least: what is asked later arrives later;
    this rank   t3 <- answer -- t2   rank 0        by t3 - t2 at most, for the same reason

The offset is the middle of both, its uncertainty half of what is between them: (t3 - t0 - (t2 - t1)) / 2, a strict
bound however unequal the two ways are. Of several exchanges the shortest counts. Source: RFC 5905, section 8.

The messages go through the store of the process group, not through a collective: no communicator has to be set up, and
a rank that is gone blocks nobody. Ranks of one machine share its clock, so only the first rank to come of every other
machine asks. Nothing waits longer than `_PATIENCE_S` for ranks that are not there, and no failure leaves this module:
what could not be measured is a reason in the side file.
"""

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ...contract.machine import End
from ...contract.rank import ClockOffset
from ..machine import environment
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity

if TYPE_CHECKING:
    from ..base.torch_private import Store

# Ranks come to the block, and leave it, at different times; rank 0 serves for so long, and then nobody any more.
_PATIENCE_S = 5.0
# A rank that has begun its exchanges answers at once, or is gone.
_ANSWER_S = 1.0
_EXCHANGES = 6
_POLL_S = 0.001
_CLOSED = ""
_RANK_0 = "this is rank 0"

Clock = Callable[[], int]


def unix_ns() -> int:
    """The clock of a trace's timestamps: Kineto converts its times to ns of the real-time clock."""
    return time.time_ns()


class _UnmeasuredError(Exception):
    """The reason why there is no offset."""


class ClockProbe:
    """Measures at both ends of one capture, and remembers whether this rank takes part."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or unix_ns
        self._offsets: list[ClockOffset] = []
        self._reasons: list[str] = []
        self._who: Identity | None = None  # once it was measured
        self._key = ""
        self._asks = False
        self._callers = 0

    def facts(self) -> dict[str, Any]:
        """The fields of meta.json."""
        return {
            "clock_probe": list(self._offsets) or None,
            "clock_probe_reason": "; ".join(self._reasons) or None,
        }

    def at_start(self, who: Identity) -> None:
        """Measure at the begin of the block, right after all ranks agreed on a run directory."""
        store = parallel.default_store()
        if store is None or who.world_size == 1:
            self._reasons.append("one rank only" if store is not None else "torch.distributed is not initialised")
            return
        if self._attempt("start", lambda: self._first(store, who)):
            self._who = who

    def at_end(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Measure at the end of the block, if the begin worked; rank 0 gives up when `stopped` says so."""
        who = self._who
        if who is not None:
            self._attempt("end", lambda: self._measured_at_end(who, stopped))

    def skip(self, why: str) -> None:
        """Do not measure at all."""
        self._reasons.append(why)

    def skip_end(self, why: str) -> None:
        """Do not measure at the end of the block."""
        if self._who is not None:
            self._reasons.append(f"end: skipped, {why}")

    def _attempt(self, at: str, measured: Callable[[], ClockOffset]) -> bool:
        """Measure and return whether it worked; the reason for a failure is noted."""
        try:
            self._offsets.append(measured())
        except _UnmeasuredError as err:
            self._reasons.append(f"{at}: {err}")
            return False
        except (RuntimeError, ValueError, OSError) as err:  # the store, or what somebody else put there
            self._reasons.append(f"{at}: {type(err).__name__}: {str(err).partition(chr(10))[0]}")
            return False
        return True

    def _first(self, store: "Store", who: Identity) -> ClockOffset:
        self._key = f"commtrace/clock/{parallel.entries(store, who)}"
        store = _part_of_store(store, self._key, "start")
        machine = environment.boot_id() or who.host
        if who.rank == 0:
            store.set("machine", machine)
            return self._served("start", store, None)
        shares_clock = _read(store, "machine", _PATIENCE_S) == machine
        self._asks = not shares_clock and store.add(f"machine/{machine}", 1) == 1
        if self._asks:
            _call(store, str(who.rank))
        if store.add("ranks", 1) == who.world_size - 1:
            _call(store, _CLOSED)
        if self._asks:
            return asked("start", store, who.rank, self._clock)
        if shares_clock:
            return self._equal("start", "same host")
        raise _UnmeasuredError("another rank of this host measures")

    def _measured_at_end(self, who: Identity, stopped: Callable[[], bool]) -> ClockOffset:
        if not (self._asks or self._callers):
            return self._equal("end", "same host" if who.rank else _RANK_0)
        store = parallel.default_store()
        if store is None or parallel.identity() != who:
            raise _UnmeasuredError("the process group was destroyed before the block ended")
        # What follows would hang where the store is gone.
        _read(_part_of_store(store, self._key, "start"), "machine", _ANSWER_S)
        store = _part_of_store(store, self._key, "end")
        if who.rank == 0:
            return self._served("end", store, self._callers, stopped)
        _call(store, str(who.rank))
        return asked("end", store, who.rank, self._clock)

    def _served(
        self, at: End, store: "Store", expected: int | None, stopped: Callable[[], bool] = lambda: False
    ) -> ClockOffset:
        self._callers, why = serve(store, expected, self._clock, stopped)
        if why:
            self._reasons.append(f"{at}: {why}")
        return self._equal(at, _RANK_0)

    def _equal(self, at: End, basis: str) -> ClockOffset:
        return ClockOffset(at, self._clock(), 0, 0, 0, 0, basis)


def asked(at: End, store: "Store", rank: int, clock: Clock) -> ClockOffset:
    """This rank's offset, by asking rank 0 after calling it. Raises _UnmeasuredError."""
    if store.check(["closed"]):
        raise _UnmeasuredError("rank 0 no longer waited for this rank")
    exchanges = [_exchanged(store, f"{rank}/{number}", clock, first=number == 0) for number in range(_EXCHANGES)]
    offsets = [ClockOffset(at, unix, 0, ahead, bound, _EXCHANGES, "exchange through the store")
               for unix, ahead, bound in exchanges if bound >= 0]  # fmt: skip
    if not offsets:
        raise _UnmeasuredError("a clock was set during the exchange")
    return min(offsets, key=lambda offset: offset.uncertainty_ns)


def _exchanged(store: "Store", name: str, clock: Clock, *, first: bool) -> tuple[int, int, int]:
    """Make one exchange: its time, how far this clock is ahead of rank 0's, and the uncertainty, in ns."""
    sent = clock()
    store.set(f"ask/{name}", "")
    _wait(store, f"answer/{name}", _PATIENCE_S if first else _ANSWER_S)
    received = clock()
    answer = store.get(f"answer/{name}").decode()
    if answer == _CLOSED:
        raise _UnmeasuredError("rank 0 no longer waited for this rank")
    came, left = map(int, answer.split())
    # Rounded so that the interval holds what it did.
    at_least, at_most = sent - came, received - left
    return (sent + received) // 2, (at_least + at_most) // 2, -((at_least - at_most) // 2)


def serve(store: "Store", expected: int | None, clock: Clock, stopped: Callable[[], bool]) -> tuple[int, str | None]:
    """As rank 0, answer all callers in turn; return their number, and why some got no answer.

    Ends after `expected` calls; where that is not known, when the last rank has said that nobody else calls.
    """
    until_s = time.monotonic() + _PATIENCE_S
    answered = 0
    for slot in itertools.count(1) if expected is None else range(1, expected + 1):
        why = _awaited(store, slot, until_s, stopped)
        if why:
            _close(store, slot)
            return answered, why
        caller = store.get(f"caller/{slot}").decode()
        if caller == _CLOSED:
            break
        answered += _answer(store, caller, clock)
    return answered, None


def _awaited(store: "Store", slot: int, until_s: float, stopped: Callable[[], bool]) -> str | None:
    """Wait for a call from `slot`; return the reason if that takes too long."""
    while time.monotonic() < until_s:
        if stopped():
            return "stopped by a signal"
        if store.check([f"caller/{slot}"]):
            return None
        time.sleep(_POLL_S)
    return f"not all ranks came and were answered while rank 0 waited for {_PATIENCE_S:g} s"


def _answer(store: "Store", caller: str, clock: Clock) -> bool:
    """Answer one rank until it has asked often enough; False if it stops asking."""
    for number in range(_EXCHANGES):
        try:
            _wait(store, f"ask/{caller}/{number}", _ANSWER_S)
        except _UnmeasuredError:
            return False
        came = clock()
        store.set(f"answer/{caller}/{number}", f"{came} {clock()}")
    return True


def _close(store: "Store", slot: int) -> None:
    """Answer those who have called from `slot` on, and mark the probe as closed for later ones."""
    store.set("closed", "")
    for late in range(slot, store.add("callers", 0) + 1):
        if store.check([f"caller/{late}"]):
            caller = store.get(f"caller/{late}").decode()
            store.set(f"answer/{caller}/0", _CLOSED)


def _call(store: "Store", caller: str) -> None:
    store.set(f"caller/{store.add('callers', 1)}", caller)


def _read(store: "Store", key: str, within_s: float) -> str:
    _wait(store, key, within_s)
    return store.get(key).decode()


def _wait(store: "Store", key: str, within_s: float) -> None:
    try:
        store.wait([key], timedelta(seconds=within_s))
    except RuntimeError as err:
        raise _UnmeasuredError(f"no answer through the store within {within_s:g} s") from err


def _part_of_store(store: "Store", key: str, at: str) -> "Store":
    return dist.distributed_c10d.PrefixStore(f"{key}/{at}", store)
