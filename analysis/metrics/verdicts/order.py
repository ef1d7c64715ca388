"""The order of causes, in the verdict, in `remedies`, and wherever they are shown.

Losses are ordered by what a step would gain without them, and remedies by their gains. But a fault, which is a rank or
link that differs from others, comes before both if it is large enough: the others show that all of it can be gained,
and of a loss that all ranks share only a part can.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..prices import Prices
from .of_idle import idle_price_ns, idle_remedy
from .thresholds import FIRST_FROM, FIRST_FROM_IF_UNCERTAIN, LOSS_FROM

OF_COPIES = ("no_copies",)
OF_COMMUNICATION = ("overlap", "no_jitter")
"""Remedies of which the larger gain is the price of exposed copies, and of exposed communication."""
_EXPOSED = ("exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns")


def price_ns(remedies: tuple[str, ...], prices: Prices, most_ns: float) -> float | None:
    """What a step would gain without a loss, in ns: the larger gain of its remedies, at most its size `most_ns`.

    None if none of them was replayed.
    """
    gains = [prices.gains[name].ns for name in remedies if name in prices.gains]
    return min(max(gains), most_ns) if gains else None


def leading_fault(
    prices: Prices, parts: Mapping[str, float], idle: dict[str, float] | None, unseen_ns: float
) -> str | None:
    """The remedy of the costliest fault, if it comes first; None if it does not.

    Where ranks without a trace may be as late, nothing is gained for certain, and the fault must be larger to come
    first. `parts` are those of a typical step, `idle` those of its idle time, both in ns; `unseen_ns` of the idle time
    count as no loss.
    """
    faults = {"no_straggler": prices.late, "slow_links": prices.slow}
    gains = {remedy: fault.gain.ns for remedy, fault in faults.items() if fault is not None}
    largest = max(gains, key=lambda remedy: gains[remedy], default=None)
    if largest is None or gains[largest] < LOSS_FROM * parts["window_ns"]:
        return None
    common = [price for price in _losses_ns(prices, parts, idle, unseen_ns).values() if price is not None]
    fault = faults[largest]
    is_certain = fault is not None and fault.gain.low_ns > 0
    least = (FIRST_FROM if is_certain else FIRST_FROM_IF_UNCERTAIN) * max(common, default=0.0)
    return largest if gains[largest] >= least else None


def leading_remedy(
    prices: Prices, parts: Mapping[str, float], idle: dict[str, float] | None, unseen_ns: float
) -> str | None:
    """The remedy to show first, before larger gains: that of a fault or of the main cause of idle time, else None.

    The gain of launching everything in time includes most other gains of idle time, so it would nearly always come
    first. Arguments as of `leading_fault`.
    """
    fault = leading_fault(prices, parts, idle, unseen_ns)
    if fault is not None:
        return fault
    known = {loss: price or 0.0 for loss, price in _losses_ns(prices, parts, idle, unseen_ns).items()}
    is_idle = "idle" in known and known["idle"] == max(known.values()) >= LOSS_FROM * parts["window_ns"]
    return idle_remedy(idle, prices) if is_idle else None


def _losses_ns(
    prices: Prices, parts: Mapping[str, float], idle: dict[str, float] | None, unseen_ns: float
) -> dict[str, float | None]:
    """The price of each loss that all ranks share and that is large enough, in ns; None where it was not replayed."""
    idle_ns, copies_ns = parts["idle_ns"] - unseen_ns, parts["exposed_memory_ns"]
    communication_ns = sum(parts[part] for part in _EXPOSED)
    losses = {
        "idle": (idle_ns, idle_price_ns(idle, prices, idle_ns)),
        "copies": (copies_ns, price_ns(OF_COPIES, prices, copies_ns)),
        "communication": (communication_ns, price_ns(OF_COMMUNICATION, prices, communication_ns)),
    }
    return {loss: price for loss, (ns, price) in losses.items() if ns >= LOSS_FROM * parts["window_ns"]}
