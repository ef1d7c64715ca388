"""A timeline as a file: its parts, and what was drawn in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .lanes import outermost
from .slices import Group, Slices, Track


@dataclass
class Sums:
    """How much was drawn so far.

    `moved` are slices that overlap others of their stream, and stand on lanes of their own. `end_ns` is when the last
    slice ends, on the common clock.
    """

    slices: int = 0
    moved: int = 0
    end_ns: int | None = None
    size_bytes: int = 0

    def add(self, *, slices: int, moved: int, end_ns: int) -> None:
        """Add what was drawn of a rank."""
        self.slices += slices
        self.moved += moved
        self.end_ns = end_ns if self.end_ns is None else max(self.end_ns, end_ns)

    def counted(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of a file, and add up their size."""
        for part in parts:
            self.size_bytes += len(part)
            yield part


@dataclass(frozen=True)
class Timeline:
    """A timeline in Perfetto's format: the parts of its file, in order.

    They are made as they are taken, which can be done once; only then are the `sums` complete.
    `zero_ns` is the time on the common clock from which it counts, in ns since the epoch. `notes` say what is left out.
    """

    parts: Iterable[bytes]
    zero_ns: int
    sums: Sums
    notes: tuple[str, ...] = ()

    @property
    def slices(self) -> int:
        """Number of slices, without the one across the top."""
        return self.sums.slices

    @property
    def moved(self) -> int:
        """Number of slices on further lanes."""
        return self.sums.moved


def begun_ns(track: Track) -> int:
    """Start of the first item on a track, in ns."""
    times = track.content.start_ns if isinstance(track.content, Slices) else track.content.time_ns
    return int(times.min())


def moved_in(group: Group) -> int:
    """Number of slices that are not on the first lane, with nested ones counted once."""
    seen: set[str] = set()
    moved = 0
    for track in group.all_tracks():
        if track.name in seen and isinstance(track.content, Slices):
            moved += outermost(track.content.start_ns, track.content.end_ns)
        seen.add(track.name)
    return moved
