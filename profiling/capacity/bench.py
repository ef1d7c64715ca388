"""Search the largest stack on one device and on several, time it, and record every try."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...contract.rank import STILL_RUNNING
from ...contract.single import CAPACITY_FILE, CapacityFile, Try
from ..base import run_directory as rundir
from ..base.console.messages import tell
from ..base.console.progress import Reporter
from ..errors import DeviceError, MeasurementError, UsageError
from ..machine import measurement
from ..ranks import process_group as parallel
from ..workloads.stacks import StackShape
from . import tries
from .config import CapacityConfig, GrowName, Share
from .results import Capacity, CapacityResults
from .search import Bounds, largest_fitting
from .stage import Stage

# The second step needs memory beside what the first leaves behind.
_TRIED_STEPS = 2
# How often a stack may shrink, by one layer each time, if it does not run as it was found to fit.
_SHRINKS = 4

RunStages = Callable[[Sequence[Stage]], Try]
_Smaller = Callable[[Sequence[Share], int], list[Share] | None]


def run_capacity(config: CapacityConfig, command: Sequence[str], *, run_stages: RunStages = tries.run_stages) -> int:
    """Search, print the table, and write capacity.json; the exit code. Raises ProfilingError."""
    where = _device(config)
    folder = config.run_dir(where.type)
    rundir.create_empty(folder)
    with Reporter(rank=0, steps=None, unit="try") as reporter:
        bench = _Bench(config, where, folder, reporter, run_stages, CapacityResults(_facts(config, where, command)))
        with measurement.recorded(bench.save):
            bench.search()
    tell("\n".join(bench.results.lines()))
    print(folder / CAPACITY_FILE, file=sys.stderr)
    return 0


def _device(config: CapacityConfig) -> torch.device:
    """The device to run on. Raises DeviceError, UsageError."""
    if parallel.under_torchrun():
        raise UsageError("capacity starts its processes itself; run it without torchrun")
    where = parallel.rank_device(config.device, 0)
    if where.type == "cuda" and torch.cuda.device_count() < config.devices:
        raise DeviceError(
            f"--devices {config.devices}: expected as many GPUs, found {torch.cuda.device_count()}; use fewer devices"
        )
    if where.type == "cpu" and config.memory_limit_bytes is None:
        raise UsageError(
            "on a CPU --memory-limit is required: without it the search would use up all memory of this machine; "
            "give a limit, such as --memory-limit 4GiB"
        )
    return where


def _facts(config: CapacityConfig, where: torch.device, command: Sequence[str]) -> CapacityFile:
    return CapacityFile(
        **measurement.measurement_head("capacity", config.as_json(), where, command),
        layers=_shape(config).describe(),
        peak_is_of="torch's allocator" if where.type == "cuda" else "resident memory of a process",
        assumes="a stack that does not fit does not fit with more layers either",
    )


def _shape(config: CapacityConfig) -> StackShape:
    return StackShape(config.batch_size, config.channels, config.image_size)


@dataclass(frozen=True)
class _Bench:
    """One search: its tries, its results, and their file."""

    config: CapacityConfig
    where: torch.device
    folder: Path
    reporter: Reporter
    run_stages: RunStages
    results: CapacityResults

    def save(self, reason: str | None) -> None:
        """Replace capacity.json, whole or not at all."""
        rundir.write_json(self.folder / CAPACITY_FILE, self.results.file(reason))

    def search(self) -> None:
        """Search everything requested. Raises MeasurementError."""
        if self.config.stack is not None:
            self._add(self._split(self.config.stack))
            return
        for devices in dict.fromkeys((1, self.config.devices)):
            self._add(self._grown(devices))

    def _add(self, capacity: Capacity) -> None:
        self.results.capacities.append(capacity)
        self.save(STILL_RUNNING)

    def _grown(self, devices: int) -> Capacity:
        """The largest stack with a fixed number of layers of the other kind, with each device as full as possible."""
        grow, fixed = self.config.grow, self.config.fixed
        other: GrowName = "linear" if grow == "conv" else "conv"
        holds_fixed = devices - 1 if grow == "conv" else 0  # convolutions come first
        shares: list[Share] = []
        notes: list[str] = []
        for place in range(devices):
            base = Share(0, 0).with_count(other, fixed if place == holds_fixed else 0)
            bounds = self._most(base, shares, last=place == devices - 1)
            shares.append(base.with_count(grow, bounds.fits))
            notes.append(self._known(place, devices, base, bounds))
        return self._timed(shares, notes, self._one_fewer)

    def _most(self, base: Share, before: Sequence[Share], *, last: bool) -> Bounds:
        """Bounds of how many growing layers fit beside `base`, with shares `before` placed. Raises MeasurementError."""
        grow = self.config.grow

        def fits(count: int) -> bool:
            return self._alone(base.with_count(grow, count), before, last=last)

        bounds = largest_fitting(fits, max_tries=self.config.max_tries)
        if bounds.fits == 0 and not (base.layers and fits(0)):
            least = base if base.layers else base.with_count(grow, 1)
            raise MeasurementError(
                f"device {len(before)}: not even {least} layers fit: "
                f"{self.results.tries[-1].reason}; raise --memory-limit, or lower --fixed or --batch-size"
            )
        return bounds

    def _known(self, place: int, devices: int, base: Share, bounds: Bounds) -> str:
        """A note on what the tries say about larger shares."""
        grow, max_tries = self.config.grow, self.config.max_tries
        fit = f"device {place} of {devices}: {base.with_count(grow, bounds.fits)} fits"
        if bounds.fails is None:
            return f"{fit}; --max-tries {max_tries} ended the search"
        between = "" if bounds.exact else f"; --max-tries {max_tries} ended the search between them"
        return f"{fit}, {base.with_count(grow, bounds.fails)} does not{between}"

    def _split(self, stack: Share) -> Capacity:
        """Split the given stack: each device in turn takes as many of the remaining layers as fit."""
        left, shares = stack, list[Share]()
        for _ in range(self.config.devices):
            if self._alone(left, shares, last=True):
                return self._timed([*shares, left], [], _moved_on)
            rest, before = left, tuple(shares)
            bounds = largest_fitting(
                lambda layers: self._alone(rest.front(layers), before, last=False),  # noqa: B023  (called at once)
                most=rest.layers - 1,
                max_tries=self.config.max_tries,
            )
            shares.append(rest.front(bounds.fits))
            left = rest.without(shares[-1])
        split = ", ".join(map(str, shares))
        return Capacity(len(shares), (), [f"{stack}: {split} fit on {len(shares)} devices, {left} are left"])

    def _timed(self, shares: list[Share], notes: list[str], smaller: _Smaller) -> Capacity:
        """Time all shares at once. The stack shrinks if messages or later steps need more memory than a try."""
        devices = len(shares)
        for _ in range(1 + _SHRINKS):
            result = self._try(self._stages(shares), self.config.warmup, self.config.iters)
            if result.fits:
                return Capacity(devices, shares, notes, result.times_ns, result.peak_bytes)
            assert result.failed is not None
            split = ", ".join(map(str, shares))
            notes.append(f"{split}, all at once: device {result.failed} was out of memory: {result.reason}")
            fewer = smaller(shares, result.failed)
            if fewer is None:
                break
            shares = fewer
        return Capacity(devices, (), notes)

    def _one_fewer(self, shares: Sequence[Share], place: int) -> list[Share] | None:
        """The shares with one growing layer less at this place; None if it has none."""
        grow, share = self.config.grow, shares[place]
        count = share.conv if grow == "conv" else share.linear
        return [*shares[:place], share.with_count(grow, count - 1), *shares[place + 1 :]] if count else None

    def _alone(self, share: Share, before: Sequence[Share], *, last: bool) -> bool:
        """Whether `share` fits on the device after those in `before`."""
        return self._try([self._stage(share, before, last=last)], 0, _TRIED_STEPS).fits

    def _stages(self, shares: Sequence[Share]) -> list[Stage]:
        last = len(shares) - 1
        return [self._stage(share, shares[:place], last=place == last) for place, share in enumerate(shares)]

    def _stage(self, share: Share, before: Sequence[Share], *, last: bool) -> Stage:
        config = self.config
        return Stage(
            conv=share.conv,
            linear=share.linear,
            receives=bool(before),
            sends=not last,
            pooled=any(other.linear for other in before),
            batch_size=config.batch_size,
            channels=config.channels,
            image_size=config.image_size,
            device=self.where.type,
            index=len(before),
            backend=parallel.default_backend(self.where),
            memory_limit_bytes=config.memory_limit_bytes,
            warmup=config.warmup,
            iters=config.iters,
        )

    def _try(self, stages: Sequence[Stage], warmup: int, iters: int) -> Try:
        """Run the stages, and record the result. Raises MeasurementError."""
        first, tried = stages[0].index, self.results.tries
        on = f"device {first}" if len(stages) == 1 else f"devices {first}-{first + len(stages) - 1}"
        what = f"{on}  {', '.join(str(Share(stage.conv, stage.linear)) for stage in stages)}"
        self.reporter.advance(len(tried), what)
        result = self.run_stages([replace(stage, warmup=warmup, iters=iters) for stage in stages])
        tried.append(result)
        self.save(STILL_RUNNING)
        said = "fits" if result.fits else f"out of memory: {result.reason}"
        self.reporter.say(f"try {len(tried):>3}  {what}  {result.dur_s:.1f} s  {said}")
        return result


def _moved_on(shares: Sequence[Share], place: int) -> list[Share] | None:
    """Move the last layer at this place to the front of the next; None if there is no such layer or place."""
    if place + 1 == len(shares) or not shares[place].layers:
        return None
    share, following = shares[place], shares[place + 1]
    moved = share.without(share.front(share.layers - 1))
    changed = [share.front(share.layers - 1), Share(following.conv + moved.conv, following.linear + moved.linear)]
    return [*shares[:place], *changed, *shares[place + 2 :]]
