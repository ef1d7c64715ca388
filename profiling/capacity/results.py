"""Results as a table and as capacity.json. Knows no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...contract.single import CapacityEntry, CapacityFile, Try
from ..base.console import text_table as plain_table
from .config import Share

_HEAD = ("devices", "split", "conv", "linear", "step (ms)", "spread (ms)", "min (ms)", "max (ms)", "peak (MB)")


@dataclass(frozen=True)
class Capacity:
    """A stack over `devices`. `shares` is empty if it does not fit; `notes` describe larger stacks."""

    devices: int
    shares: Sequence[Share]
    notes: Sequence[str]
    times_ns: Sequence[int] = ()
    peak_bytes: Sequence[int | None] = ()

    @property
    def stack(self) -> Share:
        """The layers of all devices together."""
        return Share(sum(share.conv for share in self.shares), sum(share.linear for share in self.shares))

    def row(self) -> list[str]:
        """The row of the table; `-` for unknown values."""
        if not self.shares:
            return [str(self.devices), "does not fit", *["-"] * (len(_HEAD) - 2)]
        peaks = [peak for peak in self.peak_bytes if peak is not None]
        return [
            str(self.devices),
            ", ".join(map(str, self.shares)),
            *(str(self.stack.conv), str(self.stack.linear)),
            *(f"{time_ns / 1e6:.1f}" if time_ns is not None else "-" for time_ns in self._times().values()),
            f"{max(peaks) / 1e6:,.0f}" if peaks else "-",
        ]

    def entry(self) -> CapacityEntry:
        """An entry of `capacities`."""
        return CapacityEntry(
            devices=self.devices,
            fits=bool(self.shares),
            shares=list(self.shares),
            conv=self.stack.conv if self.shares else None,
            linear=self.stack.linear if self.shares else None,
            notes=list(self.notes),
            **self._times(),
            times_ns=list(self.times_ns),
            peak_bytes=list(self.peak_bytes),
        )

    def _times(self) -> dict[str, Any]:
        """Mean, sample standard deviation, least and largest time of a step."""
        times = self.times_ns
        return {
            "step_mean_ns": statistics.fmean(times) if times else None,
            "step_spread_ns": statistics.stdev(times) if len(times) > 1 else None,
            "step_min_ns": min(times, default=None),
            "step_max_ns": max(times, default=None),
        }


@dataclass
class CapacityResults:
    """Results so far. `facts` is capacity.json before the first try."""

    facts: CapacityFile
    tries: list[Try] = field(default_factory=list)
    capacities: list[Capacity] = field(default_factory=list)

    def file(self, reason: str | None) -> CapacityFile:
        """The content of capacity.json; `reason` says why it is incomplete, None if it is complete."""
        capacities = [capacity.entry() for capacity in self.capacities]
        return replace(
            self.facts, complete=reason is None, reason=reason, capacities=capacities, tries=list(self.tries)
        )

    def lines(self) -> list[str]:
        """The table, and notes on larger stacks."""
        rows = [capacity.row() for capacity in self.capacities]
        return [
            *plain_table.lines(_HEAD, rows, names=2),
            *(line for capacity in self.capacities for line in capacity.notes),
        ]
