"""Open a file that is one message of protocol buffers, plain or packed, and say what is wrong with a damaged one."""

from __future__ import annotations

from pathlib import Path

from ..errors import DamagedTrace, NotATrace, UnreadableFile
from .compression import BrokenPacking, all_bytes, packed_bytes
from .options import Progress, ReadOptions
from .protobuf import BrokenMessage, Document

_AGAIN = "capture it again, or copy it again"


def document_in(path: Path, options: ReadOptions, progress: Progress | None = None) -> Document:
    """The message in a file. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    budget = options.budget(packed_bytes(path))
    try:
        with path.open("rb") as file:
            data = all_bytes(path, file, budget)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror or err}") from err
    except BrokenPacking as err:
        raise damaged(path, str(err)) from err
    if progress:
        progress(packed_bytes(path))
    if not data:
        raise NotATrace(f"{path}: is empty; the capture was interrupted before it was written")
    budget.draw(f"{path}: what it holds, unpacked,", len(data))
    return Document(data, budget, f"{path}: the events in it")


def damaged(path: Path, why: str | BrokenMessage) -> DamagedTrace:
    """The error for a file that is not whole."""
    what = why if isinstance(why, str) else f"{why} at byte {why.at:,}, counted unpacked"
    return DamagedTrace(f"{path}: {what}; {_AGAIN}")
