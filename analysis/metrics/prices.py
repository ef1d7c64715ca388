"""What a step would gain without each thing that makes it long, by replaying the run (`replay/pricing`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from ..core import markers
from .typical_step import TypicalStep

_LEAST = 0.01
"""Of a step: what takes less on every device is not worth playing the run again without it."""
_OF_STEP = {
    "no_jitter": ("exposed_wait_ns", "exposed_unsplit_ns"),
    "overlap": ("exposed_transfer_ns", "exposed_unsplit_ns"),
    "no_copies": ("exposed_memory_ns",),
}
_OF_IDLE = {
    "no_syncs": ("sync_ns", "drained_ns"),
    "no_allocations": ("alloc_ns",),
    "no_data_wait": ("data_ns",),
    "no_gc": ("gc_ns",),
    "launch_ahead": ("launching_ns", "operator_ns", "outside_ns"),
}
"""Names of remedies, and the parts of a step, or of idle time, that they are about."""
_OF_CPU = {"no_data_wait": markers.LOADING, "no_gc": markers.PYTHON_GC}
"""Names of remedies, and how annotations begin that show, without a GPU, when a CPU did what they are about."""
OF_EVENTS = {"no_long_calls": "long", "no_compilation": "compile"}
"""Names of remedies, and the kind of rows of `syncs` that they are about."""


class Gain(NamedTuple):
    """How much shorter a step would be, in ns, mean over steps and devices.

    The truth should lie between `low_ns` and `high_ns`.
    """

    ns: float
    low_ns: float
    high_ns: float


class Excess(NamedTuple):
    """How much longer a rank computes, copies and works on its CPU than the median of the ranks that do the same.

    In ns per step; `kernel` is the one that half of the computing is due to, and `step` the one in which nearly all of
    the computing and copying is: None if there is none.
    """

    compute_ns: float
    copies_ns: float
    cpu_ns: float
    kernel: str | None
    step: int | None

    @property
    def whole_ns(self) -> float:
        """The sum of all three, in ns per step."""
        return self.compute_ns + self.copies_ns + self.cpu_ns


class LateRanks(NamedTuple):
    """Ranks whose excess makes steps longer, the most costly first; `host` if they are all of that host."""

    ranks: tuple[int, ...]
    host: str | None
    excess: Mapping[int, Excess]
    gain: Gain


class PricedLinks(NamedTuple):
    """Links, in words, over which the same transfer takes `slower_frac` longer than over similar links."""

    label: str
    ranks: tuple[int, ...]
    slower_frac: float
    gain: Gain


class Prices(NamedTuple):
    """Gains of a step of `step_ns`: from ranks and links that differ from others, and by name in `remedies`.

    What all ranks have in common is priced in a run without what makes the `late` ranks late, with all links as fast.
    The price of `overlap` is the smaller of two bounds: that of transfers `in_no_time`, or of compute that never waits.
    `blamed` is what a step would gain if those that others wait for were no later than others, where that is not
    enough to call them `late`: behind them others may be nearly as late.
    """

    step_ns: float
    late: LateRanks | None
    slow: PricedLinks | None
    gains: Mapping[str, Gain]
    in_no_time: bool = False
    blamed: Gain | None = None


def worth_pricing(
    typical: TypicalStep, idle: pd.DataFrame, of_cpus: pd.DataFrame, syncs_steps: pd.DataFrame
) -> list[str]:
    """Names of remedies that concern enough of a typical step to be replayed.

    `idle` is the table `idle`, or `idle_steps` of the same steps.

    `of_cpus` are the annotations of a run without a GPU, whose idle time has no causes; `syncs_steps` is the table.
    """
    least = _LEAST * typical.parts["window_ns"]
    of_step = [name for name, parts in _OF_STEP.items() if sum(typical.parts[part] for part in parts) >= least]
    # A single rank may be idle, and all others wait for it.
    most = idle.groupby(["rank", "device"]).mean(numeric_only=True).max()
    of_idle = [name for name, parts in _OF_IDLE.items() if sum(most[list(parts)].fillna(0)) >= least]
    names, times = of_cpus["name"].fillna(""), of_cpus["dur_ns"] / max(len(typical.steps), 1)
    of_cpu = [
        name
        for name, begins in _OF_CPU.items()
        if times.where(names.str.startswith(begins), 0.0).groupby(of_cpus["rank"]).sum().max() >= least
    ]
    counted = syncs_steps[syncs_steps["step"].isin(list(typical.steps))] if typical.steps else syncs_steps
    lost = counted.groupby(["kind", "rank"])["lost_ns"].sum() / max(len(typical.steps), 1)
    of_calls = [name for name, kind in OF_EVENTS.items() if kind in lost and lost[kind].max() >= least]
    return [*of_step, *of_idle, *of_cpu, *of_calls]
