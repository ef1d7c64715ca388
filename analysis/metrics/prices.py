"""What a step would gain without each thing that makes it long, by replaying the run (`replay/pricing`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gain(NamedTuple):
    """How much shorter a step would be, in ns, mean over steps and devices.

    The truth should lie between `low_ns` and `high_ns`.
    """

    ns: float
    low_ns: float
    high_ns: float


class Since(NamedTuple):
    """From which step on something is so, in `steps` of those that count, and not before."""

    step: int
    steps: int


class Excess(NamedTuple):
    """How much longer a rank computes, copies and works on its CPU than the median of the ranks that do the same.

    A CPU that waits for its device does not work. In ns per step; `kernel` is the one that half of the computing is due
    to, and `step` the one in which nearly all of the computing and copying is, or `since` which it is in every step, as
    is the CPU's work `cpu_since`: None if there is none. Of the steps that count, the rank has `steps`.
    """

    compute_ns: float
    copies_ns: float
    cpu_ns: float
    kernel: str | None
    step: int | None
    since: Since | None = None
    cpu_since: Since | None = None
    steps: int = 0

    @property
    def whole_ns(self) -> float:
        """The sum of all three, in ns per step."""
        return self.on_device_ns + self.cpu_ns

    @property
    def on_device_ns(self) -> float:
        """What its device takes longer, in ns per step."""
        return self.compute_ns + self.copies_ns


class LateRanks(NamedTuple):
    """Ranks whose excess makes steps longer, the most costly first; `host` if they are all of that host.

    Of those `on_cpu`, that of the CPU does more than that of the device.
    """

    ranks: tuple[int, ...]
    host: str | None
    excess: Mapping[int, Excess]
    on_cpu: frozenset[int]


class PricedLinks(NamedTuple):
    """Links, in words, over which the same transfer takes `slower_frac` longer than over similar links."""

    label: str
    ranks: tuple[int, ...]
    slower_frac: float


class UnevenExperts(NamedTuple):
    """How uneven experts are: the busiest has `factor` times the mean of its group, `of_tokens` or else of time.

    That are those of these `ranks`, `always` if in nearly every step, or, where there are none, others in turn.
    """

    ranks: tuple[int, ...]
    factor: float
    of_tokens: bool
    always: bool = True


class Priced(NamedTuple):
    """A change: `what` would be different, `how` to begin, what a step gains by it alone, the verdict where it leads.

    `option` is what `predict` plays it again with.
    `costs` says what costs that, as in `Late launches cost`. A bound is more than anybody can do.
    """

    remedy: str
    what: str
    how: str
    verdict: str
    costs: str
    option: str
    gain: Gain
    is_bound: bool = False


class Prices(NamedTuple):
    """What a step of `step_ns` gains from each of the `changes` by itself, in the order in which people read them.

    `late` are the ranks, `slow` the links that differ from others, and `uneven` are experts, if a step gains enough
    without that. What others wait for late ranks is `unexplained_ns` if it is much more than any change gains.
    """

    step_ns: float
    changes: tuple[Priced, ...]
    late: LateRanks | None = None
    slow: PricedLinks | None = None
    unexplained_ns: float | None = None
    uneven: UnevenExperts | None = None

    @property
    def gains(self) -> Mapping[str, Gain]:
        """The gains, by name of remedy."""
        return {change.remedy: change.gain for change in self.changes}
