"""Calls of one rank, or collectives of one timeline, as columns that can be compared.

A timeline is what ranks whose clocks can be compared show of one process group: its collectives, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ...core.arrays import Flags, Ints

UNKNOWN = -1
CALL_KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "broadcast", "reduce", "gather", "scatter",
    "send_recv",
)  # fmt: skip
PAIR = CALL_KINDS.index("send_recv")
_MUST_AGREE = ("dtype", "size", "name", "seq", "comms_id")


@dataclass(frozen=True)
class Entries:
    """Calls, or collectives, as columns of one length. Times are in ns on one clock; -1 is what is not known.

    `row` is the position of the call in the table of calls, or the number of the collective. `kind` indexes
    `compatible`, a square matrix that says which kinds may be the same collective. No rank leaves a `synchronising`
    call before all have arrived.

    Of a call, `last_start` is its start, and `first_end` and `end` are its end. Of a collective, they are the last
    start, the first end and the median end of its calls. Entries are sorted by `order`: on a GPU, where one stream runs
    the calls of a group, that is their end; on CPUs, where several threads do, the time at which they were issued.

    `until` is the end of the last call of the recorded window that the call is in. What is missing before that time was
    lost; what is missing after it was never recorded.
    """

    row: Ints
    kind: Ints
    dtype: Ints
    size: Ints
    name: Ints
    step: Ints
    seq: Ints
    comms_id: Ints
    synchronising: Flags
    last_start: Ints
    first_end: Ints
    end: Ints
    order: Ints
    until: Ints

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Ints | Flags | slice) -> Entries:
        """The entries at `index`."""
        return Entries(*[getattr(self, name)[index] for name in _COLUMNS])

    def joined(self, other: Entries) -> Entries:
        """Both entries together, sorted by `order`."""
        order = np.argsort(np.concatenate([self.order, other.order]), kind="stable")
        return Entries(*[np.concatenate([getattr(self, name), getattr(other, name)])[order] for name in _COLUMNS])

    def extended(self, at: Ints, calls: Entries) -> Entries:
        """These collectives with one more call each: `calls[k]` joins the one at `at[k]`; no position occurs twice.

        What the collective did not know is taken from the call.
        """
        columns = {name: getattr(self, name).copy() for name in _COLUMNS}
        columns["last_start"][at] = np.maximum(self.last_start[at], calls.last_start)
        columns["first_end"][at] = np.minimum(self.first_end[at], calls.first_end)
        columns["until"][at] = np.maximum(self.until[at], calls.until)
        kinds = np.minimum(self.kind[at], calls.kind)  # less specific kinds have higher numbers
        columns["kind"][at] = kinds
        for name in ("dtype", "size", "name", "step", "seq", "comms_id"):
            known = getattr(self, name)[at]
            columns[name][at] = np.where(known == UNKNOWN, getattr(calls, name), known)
        return Entries(**columns)

    def earlier(self, by_ns: Ints | int) -> Entries:
        """The entries with all times earlier by `by_ns`, one value or one per entry: on a clock that is behind."""
        times = {name: getattr(self, name) - by_ns for name in ("last_start", "first_end", "end", "order", "until")}
        return replace(self, **times)

    def without_steps(self) -> Entries:
        """The entries with all steps unknown, so that steps are no evidence in a comparison."""
        return replace(self, step=np.full(len(self), UNKNOWN))

    def cover(self, times_ns: Ints, before_ns: float = 0.0, after_ns: float = 0.0) -> Flags:
        """Whether a call that ends at each of these times would be among the entries, unless its record was lost.

        So it is where one of the recorded windows contains the time: from `before_ns` after its first call begins
        to `after_ns` after its last call ends. Shape of `times_ns`.
        """
        if not len(self):
            return np.zeros(len(times_ns), dtype=bool)
        reached = np.maximum.accumulate(self.until)
        first = np.flatnonzero(np.concatenate([[True], self.last_start[1:] > reached[:-1]]))
        begun, left = self.last_start[first], reached[np.append(first[1:], len(self)) - 1]
        window = np.searchsorted(begun + before_ns, times_ns, side="right") - 1
        covered: Flags = (window >= 0) & (times_ns <= left[window] + after_ns)
        return covered

    def of_collectives(self, number: Ints) -> Entries:
        """The collectives of these calls, sorted by `order`; `number`, of shape (calls,), is that of each call.

        The number becomes `row`. What one call of a collective does not say is taken from another.
        """
        distinct, first, which = np.unique(number, return_index=True, return_inverse=True)
        known = {}
        for name in ("kind", "dtype", "size", "name", "step", "seq", "comms_id"):
            sign = -1 if name == "kind" else 1  # less specific kinds have higher numbers
            column = np.full(len(distinct), np.iinfo(np.int64).min)
            np.maximum.at(column, which, sign * getattr(self, name))
            known[name] = sign * column
        last_start, first_end = self.last_start[first], self.first_end[first]
        np.maximum.at(last_start, which, self.last_start)
        np.minimum.at(first_end, which, self.first_end)
        until = self.until[first]
        np.maximum.at(until, which, self.until)
        entries = Entries(
            row=distinct,
            synchronising=self.synchronising[first],
            last_start=last_start,
            first_end=first_end,
            end=_middle(self.end, which, len(distinct)),
            order=_middle(self.order, which, len(distinct)),
            until=until,
            **known,
        )
        return entries.take(np.argsort(entries.order, kind="stable"))


_COLUMNS = tuple(field.name for field in fields(Entries))


def _middle(values: Ints, group: Ints, count: int) -> Ints:
    """The lower median of each group."""
    order = np.lexsort((values, group))
    bounds = np.searchsorted(group[order], np.arange(count + 1))
    middle: Ints = values[order][bounds[:-1] + (np.diff(bounds) - 1) // 2]
    return middle


def same_kind_at(ours: Entries, i: Ints, theirs: Entries, j: Ints, compatible: Flags) -> Flags:
    """Whether ours[i] and theirs[j] may be the same collective by kind, dtype, size, kernel and ids.

    Each of them must be equal or unknown on one side. `i` and `j` are positions, and broadcast against each other.
    """
    result: Flags = compatible[ours.kind[i], theirs.kind[j]]
    for name in _MUST_AGREE:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if not (mine == UNKNOWN).all() and not (other == UNKNOWN).all():
            mine, other = mine[i], other[j]
            result = result & ((mine == other) | (mine == UNKNOWN) | (other == UNKNOWN))
    return result


def same_kind(ours: Entries, theirs: Entries, compatible: Flags) -> Flags:
    """The same as `same_kind_at`, of entries at the same position of both."""
    result: Flags = compatible[ours.kind, theirs.kind]
    for name in _MUST_AGREE:
        mine, other = getattr(ours, name), getattr(theirs, name)
        result = result & ((mine == other) | (mine == UNKNOWN) | (other == UNKNOWN))
    return result


def gap_ns(ours: Entries, i: Ints, theirs: Entries, j: Ints) -> Ints:
    """Time from the first end to the last start of ours[i] and theirs[j], in ns; negative if they overlap.

    If it is positive, one rank had left before another arrived: these are not one synchronising collective. `i` and
    `j` are positions, and broadcast against each other.
    """
    arrived = np.maximum(ours.last_start[i], theirs.last_start[j])
    left = np.minimum(ours.first_end[i], theirs.first_end[j])
    result: Ints = arrived - left
    return result
