"""Content of a timeline before encoding: tracks with slices or counter values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..core.intervals import Times
from .lanes import lanes, nesting_lanes

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """Texts of shape (n,) as indices into `values`; -1 for none."""

    codes: Numbers
    values: tuple[str, ...]

    @classmethod
    def same(cls, value: str, count: int) -> Texts:
        """The same text `count` times."""
        return cls(np.zeros(count, dtype=np.int64), (value,))

    @classmethod
    def none(cls, count: int) -> Texts:
        """`count` rows without text."""
        return cls(np.full(count, -1, dtype=np.int64), ())

    @property
    def known(self) -> Mask:
        """Whether each row has a text."""
        return self.codes >= 0

    def taken(self, rows: Numbers | Mask) -> Texts:
        """The texts of these rows."""
        return Texts(self.codes[rows], self.values)

    def padded(self, more: int) -> Texts:
        """Add `more` rows without text."""
        return Texts(np.concatenate((self.codes, np.full(more, -1))), self.values)

    def joined(self, other: Texts) -> Texts:
        """Concatenate both."""
        moved = np.where(other.codes < 0, -1, other.codes + len(self.values))
        return Texts(np.concatenate((self.codes, moved)), (*self.values, *other.values))


@dataclass(frozen=True)
class Integers:
    """Integers of shape (n,), each known or not."""

    values: Numbers
    known: Mask

    @property
    def both(self) -> tuple[Numbers, Mask]:
        """The integers, and whether each is known."""
        return self.values, self.known

    def taken(self, rows: Numbers | Mask) -> Integers:
        """The integers of these rows."""
        return Integers(self.values[rows], self.known[rows])

    def padded(self, more: int) -> Integers:
        """Add `more` unknown rows."""
        nothing = Integers.none(more)
        return Integers(np.concatenate((self.values, nothing.values)), np.concatenate((self.known, nothing.known)))

    @classmethod
    def same(cls, value: int) -> Integers:
        """One known integer."""
        return cls(np.array([value], dtype=np.int64), np.array([True]))

    @classmethod
    def none(cls, count: int) -> Integers:
        """`count` unknown integers."""
        return cls(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool))


@dataclass(frozen=True)
class Fan:
    """Arrows that start at a slice: ids from `first`, `count` of them; both of shape (n,)."""

    first: Numbers
    count: Numbers

    def taken(self, rows: Numbers | Mask) -> Fan:
        """The arrows of these rows."""
        return Fan(self.first[rows], self.count[rows])


@dataclass(frozen=True)
class Slices:
    """Slices [start_ns, end_ns) with names, all of shape (n,), on the common clock.

    `notes` are shown beside a slice: name -> texts or integers. `out` are the arrows that begin with a
    slice, `into` the id of the one that ends where it starts. `shades` are what the viewer takes colours from, see
    `colours`; where there is none, it takes the name.
    """

    start_ns: Times
    end_ns: Times
    names: Texts
    notes: Mapping[str, Texts | Integers] = field(default_factory=dict)
    out: Fan | None = None
    into: Integers | None = None
    shades: Texts | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    def shaded(self, shade: str) -> Slices:
        """The slices, all in this shade."""
        return replace(self, shades=Texts.same(shade, len(self)))

    def used_shades(self) -> list[str]:
        """The shades that occur."""
        if self.shades is None:
            return []
        return [self.shades.values[code] for code in np.unique(self.shades.codes).tolist() if code >= 0]

    def taken(self, rows: Numbers | Mask) -> Slices:
        """The slices of these rows."""
        return Slices(
            self.start_ns[rows],
            self.end_ns[rows],
            self.names.taken(rows),
            {name: column.taken(rows) for name, column in self.notes.items()},
            None if self.out is None else self.out.taken(rows),
            None if self.into is None else self.into.taken(rows),
            None if self.shades is None else self.shades.taken(rows),
        )


@dataclass(frozen=True)
class Counter:
    """Values that hold from each time until the next, times ascending; both of shape (n,)."""

    time_ns: Times
    value: NDArray[np.float64]
    unit: str

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class Track:
    """A line of the timeline, and what the viewer says of it. Tracks of one name and group are lanes of one line."""

    name: str
    content: Slices | Counter
    description: str = ""


@dataclass(frozen=True)
class Group:
    """Tracks and groups under one heading, such as those of a rank.

    `own` are slices on the line of the heading itself, which are seen while the group is closed.
    """

    name: str
    tracks: tuple[Track | Group, ...]
    own: Slices | None = None
    description: str = ""

    def all_tracks(self) -> Iterator[Track]:
        """Yield all tracks below the heading, and its own line."""
        if self.own is not None:
            yield Track(self.name, self.own, self.description)
        for each in self.tracks:
            if isinstance(each, Group):
                yield from each.all_tracks()
            else:
                yield each


def lane_rows(start_ns: Times, end_ns: Times) -> list[Numbers]:
    """Rows that can share a track, by time: one array per lane. Slices may be in any order."""
    order = np.lexsort((-end_ns, start_ns))
    lane = lanes(start_ns[order], end_ns[order])
    return _by_lane(order, lane)


def _by_lane(order: Numbers, lane: Numbers) -> list[Numbers]:
    return [order[lane == number] for number in range(int(lane.max(initial=-1)) + 1)]


def on_lanes(name: str, slices: Slices) -> list[Track]:
    """One track, or several of this name if slices overlap; slices may be in any order."""
    return [Track(name, slices.taken(rows)) for rows in lane_rows(slices.start_ns, slices.end_ns)]


def nesting(name: str, slices: Slices) -> list[Track]:
    """One track on which slices lie within each other, or several where some overlap; in any order."""
    order = np.lexsort((-slices.end_ns, slices.start_ns))
    lane = nesting_lanes(slices.start_ns[order], slices.end_ns[order])
    return [Track(name, slices.taken(rows)) for rows in _by_lane(order, lane)]


def nested(around: Slices, *within: Slices) -> Slices:
    """Merge slices sorted by start, outer ones first. Only the outer ones have notes."""
    parts = (around, *within)
    start, end = (np.concatenate([getattr(part, key) for part in parts]) for key in ("start_ns", "end_ns"))
    level = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    names = around.names
    for part in within:
        names = names.joined(part.names)
    more = len(start) - len(around)
    notes = {name: column.padded(more) for name, column in around.notes.items()}
    shades = Texts.none(0)
    for part in parts:
        shades = shades.joined(part.shades or Texts.none(len(part)))
    into = [part.into or Integers.none(len(part)) for part in parts]
    arrows = Integers(np.concatenate([a.values for a in into]), np.concatenate([a.known for a in into]))
    return Slices(start, end, names, notes, into=arrows, shades=shades).taken(np.lexsort((level, -end, start)))
