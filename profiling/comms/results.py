"""Measurements as the lines of nccl-tests and as comms.json. Knows no torch.

comms.json has the keys of nccl-tests' own JSON where that has one; docs/run-directory.md describes all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from ...common.nccl_tests import algbw_gb_per_s, bus_factor
from ...common.wording import counted
from ...contract.comms import CommsFile, CommsResult, CommsSkipped, Measured, OutOfBounds

_COLUMNS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 13),
    ("type", "", 13),
    ("redop", "", 6),
    ("root", "", 6),
    ("time", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
    ("min", "(us)", 10),
    ("max", "(us)", 10),
)


@dataclass(frozen=True)
class CommsRow:
    """One collective at one size. `times_ns`: mean time of a call per rank; `wrong`: elements over all ranks.

    `root` is -1 and `redop` `none` where there is none, as in nccl-tests. `traced_us` has the single traced calls of
    each rank, None without --trace.
    """

    collective: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    iters: int
    times_ns: Sequence[float]
    wrong: int
    traced_us: Sequence[Sequence[float]] | None = None

    @property
    def avg_ns(self) -> float:
        """Mean over the ranks in ns, which nccl-tests reports by default."""
        return sum(self.times_ns) / len(self.times_ns)

    @property
    def algbw_gb_per_s(self) -> float:
        """Size divided by the mean time, in GB/s."""
        return algbw_gb_per_s(self.size_bytes, self.avg_ns)

    @property
    def busbw_gb_per_s(self) -> float:
        """algbw x bus factor, in GB/s."""
        return self.algbw_gb_per_s * bus_factor(self.collective, len(self.times_ns))

    def line(self) -> str:
        """The columns of nccl-tests, then the fastest and the slowest rank's time."""
        cells = (
            *(str(self.size_bytes), str(self.count), self.dtype, self.redop, str(self.root)),
            *(_figure(self.avg_ns / 1e3), _figure(self.algbw_gb_per_s), _figure(self.busbw_gb_per_s), str(self.wrong)),
            *(_figure(min(self.times_ns) / 1e3), _figure(max(self.times_ns) / 1e3)),
        )
        return _aligned(cells)

    def entry(self) -> CommsResult:
        """An entry of `results`."""
        measured = Measured(
            time=self.avg_ns / 1e3,
            alg_bw=self.algbw_gb_per_s,
            bus_bw=self.busbw_gb_per_s,
            nwrong=self.wrong,
            time_min=min(self.times_ns) / 1e3,
            time_max=max(self.times_ns) / 1e3,
            time_per_rank=[time_ns / 1e3 for time_ns in self.times_ns],
        )
        return CommsResult(
            collective=self.collective,
            size=self.size_bytes,
            count=self.count,
            type=self.dtype,
            redop=self.redop,
            root=self.root,
            out_of_place=None if self.in_place else measured,
            in_place=measured if self.in_place else None,
            actual_iterations=self.iters,
            traced_times_us=self.traced_us,
        )


@dataclass(frozen=True)
class Skipped:
    """A requested case that cannot be measured here. `size_bytes` is None for all sizes."""

    collective: str
    dtype: str
    redop: str
    reason: str
    size_bytes: int | None = None

    def line(self) -> str:
        """The reason, as one sentence."""
        size = "" if self.size_bytes is None else f", {self.size_bytes} bytes"
        op = "" if self.redop == "none" else f" {self.redop}"
        return f"skipped {self.collective}{op} of {self.dtype}{size}: {self.reason}"

    def entry(self) -> CommsSkipped:
        """An entry of `skipped`."""
        return CommsSkipped(self.collective, self.dtype, self.redop, self.size_bytes, self.reason)


@dataclass
class CommsResults:
    """Results so far, in order. `facts` is comms.json before the first row."""

    facts: CommsFile
    rows: list[CommsRow] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Number of wrong elements over all rows."""
        return sum(row.wrong for row in self.rows)

    def file(self, reason: str | None) -> CommsFile:
        """The content of comms.json; `reason` says why it is incomplete, None if it is complete."""
        return replace(
            self.facts,
            complete=reason is None,
            reason=reason,
            end_time=datetime.now(timezone.utc).isoformat(timespec="seconds") if reason is None else None,
            results=[row.entry() for row in self.rows],
            skipped=[skipped.entry() for skipped in self.skipped],
            out_of_bounds=OutOfBounds(self.wrong, okay=self.wrong == 0),
        )


def title(facts: CommsFile) -> list[str]:
    """The first lines, as in nccl-tests: what is measured on which devices."""
    config = facts.config
    step = f"step: {config.step_factor}(factor) warmup iters: {config.warmup_iters}"
    return [
        f"# commtrace comms, torch {facts.versions.torch}, {facts.backend}, {counted(facts.world_size, 'rank')}",
        f"# minBytes {config.minimum_bytes} maxBytes {config.maximum_bytes} {step} iters: {config.iterations}",
        "# Using devices",
        *(
            f"#  Rank {device.rank:>2} Pid {device.pid:>6} on {device.hostname:>10} device "
            f"{'cpu' if device.device is None else device.device} {device.device_info}"
            for device in config.devices or ()
        ),
        "#",
    ]


def header() -> list[str]:
    """Two comment lines above the rows."""
    names, units = _aligned([name for name, _, _ in _COLUMNS]), _aligned([unit for _, unit, _ in _COLUMNS])
    return ["#" + names[1:], "#" + units[1:]]


def footer(results: CommsResults) -> list[str]:
    """The last comment line of nccl-tests, without its average, which is meaningless over several collectives."""
    return [f"# Out of bounds values : {results.wrong} {'FAILED' if results.wrong else 'OK'}"]


def _aligned(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(cells, _COLUMNS, strict=True))


def _figure(value: float) -> str:
    """The number with two decimals, or more for slow links, so that two digits remain."""
    return f"{value:.2f}" if value >= 0.095 or value == 0 else f"{value:.2g}"
