"""The largest batch that fits a device, from the peaks of runs with different batches: fixed + per_sample x batch.

Each pair of runs gives lines, from the least and the most that its steps allocate. A batch does not fit if what
tensors hold is more than there is, on every such line. It fits if what the allocator reserves, with its cache and
fragments, is less on every line. In between it depends on what the allocator can give back and put together, which no
trace tells. More runs make more lines: where memory does not follow one, the interval becomes wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

_UNSEEN = 0.02
"""Of memory: so much more may be fragments at another batch than in any run, as played allocators show."""


class BatchPeak(NamedTuple):
    """Memory of one device in a run: the least and the most of the peaks of its steps, and the most reserved."""

    batch: int
    least_bytes: int
    most_bytes: int
    reserved_bytes: int


class MemoryLine(NamedTuple):
    """Memory in bytes by the number of samples."""

    fixed_bytes: float
    per_sample_bytes: float

    def largest(self, limit_bytes: int) -> int | None:
        """The largest batch within this limit; None if it has no end."""
        if self.per_sample_bytes <= 0:
            return None
        return max(0, int((limit_bytes - self.fixed_bytes) // self.per_sample_bytes))


class BatchFit(NamedTuple):
    """What is known of the largest batch: `low` fits, more than `high` does not; None, with the reason, if not known.

    `line` is that through the peaks of the smallest and the largest batch. `note` is the reason, or says that others
    are not on it.
    """

    line: MemoryLine | None
    low: int | None
    high: int | None
    note: str | None


def largest_batch(peaks: Sequence[BatchPeak], limit_bytes: int | None) -> BatchFit:
    """The largest batch whose memory stays within the limit, from peaks at two or more different batches."""
    peaks = sorted(peaks)
    if len({one.batch for one in peaks}) < 2:
        return BatchFit(None, None, None, "needs runs with two different batches")
    line = _line(peaks[0].batch, peaks[0].most_bytes, peaks[-1].batch, peaks[-1].most_bytes)
    if line.per_sample_bytes <= 0:
        return BatchFit(line, None, None, "the peak does not grow with the batch")
    if limit_bytes is None:
        return BatchFit(line, None, None, "the memory of the device is not known: give --limit")
    high = _end(max, [one.largest(limit_bytes) for one in _least_lines(peaks)])
    low = _end(min, [one.largest(limit_bytes) for one in _most_lines(peaks)])
    ran = [one.batch for one in peaks if one.reserved_bytes <= limit_bytes]
    failed = [one.batch for one in peaks if one.least_bytes > limit_bytes]
    low = max([*ran, *([] if low is None else [low])], default=None)
    if failed:
        high = min(failed) - 1 if high is None else min(high, min(failed) - 1)
    if high is None or low is None:
        return BatchFit(line, low, high, "in some pairs of runs the peak does not grow with the batch")
    return BatchFit(line, min(low, high), high, _off_the_line(peaks, line))


def _off_the_line(peaks: Sequence[BatchPeak], line: MemoryLine) -> str | None:
    """Which peak is farthest from the line, if by more than steps and fragments differ; None if all are on it."""
    on_line = [line.fixed_bytes + one.batch * line.per_sample_bytes for one in peaks]
    each = [((one.most_bytes - at) / max(at, 1.0), one.batch) for one, at in zip(peaks, on_line, strict=True)]
    apart, batch = max(each, key=lambda one: abs(one[0]))
    if abs(apart) <= _UNSEEN + _spread(peaks):
        return None
    where = "above" if apart > 0 else "below"
    return (
        f"the peaks are not on one line: that of batch {batch} is {abs(apart):.0%} {where} it; the interval "
        "holds what every two runs tell"
    )


def _line(a: int, a_bytes: int, b: int, b_bytes: int) -> MemoryLine:
    slope = (b_bytes - a_bytes) / (b - a)
    return MemoryLine(a_bytes - slope * a, slope)


def _pairs(peaks: Sequence[BatchPeak]) -> Iterator[tuple[BatchPeak, BatchPeak]]:
    return ((a, b) for a, b in combinations(peaks, 2) if a.batch < b.batch)


def _least_lines(peaks: Sequence[BatchPeak]) -> list[MemoryLine]:
    """By pair, the line on which tensors hold the least at larger batches: the flattest that its steps allow."""
    return [_times(_line(a.batch, a.most_bytes, b.batch, b.least_bytes), 1 - _spread(peaks)) for a, b in _pairs(peaks)]


def _most_lines(peaks: Sequence[BatchPeak]) -> list[MemoryLine]:
    """By pair, the lines on which the allocator reserves the most.

    By what it did reserve, and by the largest part of it that was cache or fragments in any run, and as much more as
    that differs between runs, and steps do within one.
    """
    parts = [one.reserved_bytes / max(one.most_bytes, 1) for one in peaks]
    margin = (1 + max(parts) - min(parts)) * (1 + _spread(peaks)) + _UNSEEN
    found = []
    for a, b in _pairs(peaks):
        held = _line(a.batch, a.least_bytes, b.batch, b.most_bytes)
        found.append(_times(held, max(parts) * margin))
        found.append(_times(_line(a.batch, a.reserved_bytes, b.batch, b.reserved_bytes), margin))
    return found


def _spread(peaks: Sequence[BatchPeak]) -> float:
    """How much the peaks of steps of one run differ, as a part."""
    return max(one.most_bytes / max(one.least_bytes, 1) - 1 for one in peaks)


def _times(line: MemoryLine, factor: float) -> MemoryLine:
    return MemoryLine(line.fixed_bytes * factor, line.per_sample_bytes * factor)


def _end(which: Callable[[list[int]], int], batches: Sequence[int | None]) -> int | None:
    """One end of these; None if any is not known."""
    known = [one for one in batches if one is not None]
    return which(known) if len(known) == len(batches) else None
