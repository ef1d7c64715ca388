"""Measurements as a table and as layers.json. Knows no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ...common.wording import counted
from ...contract.single import LayerEntry, LayersFile, TimeRatio
from ..machine.power import Power
from .ratios import time_ratio

NA = "NA"
HEAD = (
    "layer",
    "kind",
    "input",
    "forward (ms)",
    "spread (ms)",
    "backward (ms)",
    "spread (ms)",
    "parameters (MB)",
    "saved (MB)",
    "activation (MB)",
    "formula (MB)",
    "peak (MB)",
    "power (W)",
)
NAMES = 3
"""Columns that are names, before those of numbers."""
_KIND_WIDTH = 40


@dataclass(frozen=True)
class LayerRow:
    """One layer. Sizes in bytes of float32 by torch's allocator; times of single passes in ns.

    What could not be measured is None or empty, and has a `reason`; `power` has its own.
    """

    layer: str
    kind: str
    input_shape: Sequence[int]
    input_bytes: int
    parameter_bytes: int
    formula_activation_bytes: int | None
    power: Power
    output_shape: Sequence[int] | None = None
    saved_bytes: int | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None
    forward_times_ns: Sequence[int] = ()
    backward_times_ns: Sequence[int] = ()
    reason: str | None = None

    def cells(self) -> list[str]:
        """The row of the table."""
        kind = self.kind if len(self.kind) <= _KIND_WIDTH else f"{self.kind[: _KIND_WIDTH - 3]}..."
        return [
            self.layer,
            kind,
            "x".join(map(str, self.input_shape)),
            *(_ms(time_ns) for time_ns in self.times().values()),
            *(
                _mb(size)
                for size in (
                    self.parameter_bytes,
                    self.saved_bytes,
                    self.activation_bytes,
                    self.formula_activation_bytes,
                    self.peak_bytes,
                )
            ),
            NA if self.power.watts is None else f"{self.power.watts:.1f}",
        ]

    def times(self) -> dict[str, float | None]:
        """Mean and sample standard deviation of both passes, in ns."""
        found: dict[str, float | None] = {}
        for name, times in (("forward", self.forward_times_ns), ("backward", self.backward_times_ns)):
            found[f"{name}_mean_ns"] = statistics.fmean(times) if times else None
            found[f"{name}_spread_ns"] = statistics.stdev(times) if len(times) > 1 else None
        return found

    def entry(self) -> LayerEntry:
        """An entry of `layers`."""
        facts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "power"}
        facts |= self.times()
        facts |= {"power_w": self.power.watts, "power_source": self.power.source, "power_reason": self.power.reason}
        return LayerEntry(**facts)


@dataclass
class LayersResults:
    """Results so far. `facts` is layers.json before the first layer."""

    facts: LayersFile
    rows: list[LayerRow] = field(default_factory=list)

    def file(self, reason: str | None) -> LayersFile:
        """The content of layers.json; `reason` says why it is incomplete, None if it is complete."""
        layers = [row.entry() for row in self.rows]
        return replace(self.facts, complete=reason is None, reason=reason, layers=layers, ratios=self.ratios())

    def ratios(self) -> list[TimeRatio]:
        """With --against, how much longer the passes of its model take; nothing if memory ran out."""
        if not (self.rows and self.facts.config.get("against") and all(row.forward_times_ns for row in self.rows)):
            return []
        first, second = self.rows
        both = (list(map(sum, zip(row.forward_times_ns, row.backward_times_ns, strict=True))) for row in self.rows)
        return [
            time_ratio("forward", first.forward_times_ns, second.forward_times_ns),
            time_ratio("backward", first.backward_times_ns, second.backward_times_ns),
            time_ratio("both", *both),
        ]

    def ratio_lines(self) -> list[str]:
        """`(vgg16-swapped) / (vgg16), forward: 0.981 (95 % interval 0.952 to 1.004, 10 pairs)`."""
        return [
            f"{self.rows[1].layer} / {self.rows[0].layer}, {each.passes}: {each.ratio:.3f} "
            f"(95 % interval {_interval(each)}, {counted(each.pairs, 'pair')})"
            for each in self.ratios()
        ]

    def reasons(self) -> list[str]:
        """Why values are missing, a line for each reason."""
        failed = [f"{row.layer}: {row.reason}" for row in self.rows if row.reason]
        powerless = [f"power {NA}: {row.power.reason}" for row in self.rows if row.power.reason and not row.reason]
        return [*failed, *dict.fromkeys(powerless)]


def _interval(ratio: TimeRatio) -> str:
    return f"{NA}: it needs 6 pairs" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


def _ms(time_ns: float | None) -> str:
    return NA if time_ns is None else f"{time_ns / 1e6:.3f}"


def _mb(size_bytes: int | None) -> str:
    return NA if size_bytes is None else f"{size_bytes / 1e6:,.3f}"
