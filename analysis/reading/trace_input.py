"""A trace to read, and what is known of it before it is read. The unpacker, which is slow to load, is loaded last."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..core.places.place import is_for_others
from ..formats.format import TraceFormat
from ..formats.registry import format_of


class TraceInput:
    """A file, or one rank of a file that holds several. What is asked of the file is asked once.

    Nothing is asked before it is needed: the beginning of a file of a rank that is left out is never fetched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"TraceInput({str(self.path)!r})"

    @cached_property
    def format(self) -> TraceFormat:
        """The format of the file, see `format_of`."""
        return format_of(self.path)

    @cached_property
    def size_bytes(self) -> int:
        """How large the file is on disk, 0 where that cannot be told."""
        from ..recording.compression import packed_bytes

        return packed_bytes(self.path)

    @cached_property
    def is_gzip(self) -> bool:
        """Whether the file is gzip, by its first bytes."""
        from ..recording.compression import is_gzip

        return is_gzip(self.path)

    @cached_property
    def is_for_all(self) -> bool:
        """Whether it is a plain file that other processes can open as well. Anything else can be read only once."""
        from ..recording.compression import is_regular

        return is_regular(self.path) and is_for_others(self.path)
