"""Sizes that decide how trace files are read: in which pieces, by how many processes, and up to which limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadSizes:
    """The sizes, in bytes where nothing else is said. Those of files are of the unpacked file, as estimated."""

    chunk_bytes: int = 512 << 10
    """Of a Kineto trace, read at a time: about what fits into the cache of one core."""
    entry_limit_bytes: int = 16 << 20
    """The most that one event may take, and what surrounds the events."""
    harmless_bytes: int = 1 << 30
    """Up to this size a packed trace may have shrunk any number of times."""
    slow_to_count_bytes: int = 2 << 20
    """On disk. Counting the events of a smaller file costs less than reading a damaged one twice."""
    process_bytes: int = 32 << 20
    """Reading smaller files takes less time than starting a process."""
    part_bytes: int = 16 << 20
    """Reading a smaller part takes less time than finding and sending it."""
    cache_bytes: int = 32 << 20
    """Reading a smaller file takes less time than using a cache."""
    ranks_bytes: int = 250_000_000
    """Of this much JSON each process makes tables of ranks: that of less takes less time than sending what is made."""
    most_played: int = 500_000
    """Activities of the steps that are played again: some 40 s and 2 GB on one core."""


USUAL_SIZES = ReadSizes()
