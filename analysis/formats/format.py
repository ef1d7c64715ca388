"""Describe a format of trace files: how to recognise, find and read its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..recording.options import RunFacts

if TYPE_CHECKING:
    from ..recording.options import Progress, ReadOptions
    from ..recording.recording import RawTrace


class RanksInFiles(NamedTuple):
    """The paths of the ranks in some files (recording/shared_files.py), and notes on how they were assigned.

    `run_facts` is an option with which they are to be read.
    """

    paths: list[Path]
    notes: list[str]
    run_facts: RunFacts = RunFacts()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How several processes read one file together, one part each.

    `read` gives what one part holds, counted from 0 of a number of parts, as a `part`: a msgspec structure, which
    processes can send. `joining` makes an object that takes parts in order by its method `add`, and counts them in
    `parts`; `joined` turns it into what one process would have read. After any TraceError the file is to be read as a
    whole.
    """

    part: type[Any]
    read: Callable[[Path, ReadOptions, int, int, Progress | None], Any]
    joining: Callable[[], Any]
    joined: Callable[[Path, Any, ReadOptions], RawTrace]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """The functions that read a format.

    `read` gives what a file holds; what a format does not have, such as operators, is empty. `verified` compares that
    with a second reading by other means. A format has no `parts` if its files are always read by one process.
    """

    read: Callable[[Path, ReadOptions, Progress | None], RawTrace]
    verified: Callable[[Path, RawTrace, Progress | None], RawTrace] | None = None
    parts: Parts | None = None


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format of trace files.

    Raise `version` when the reader reads more, or differently: older caches are then ignored. `reader` imports the
    functions, which takes time. `recognises` tells by the path, and by the first bytes, which it may ask for, whether a
    file is of this format; packed files are looked into. A pipe has no first bytes.
    """

    name: str
    version: int
    file_names: tuple[str, ...]
    """The files of a folder that are traces, as patterns of the shell."""
    recognises: Callable[[Path, Callable[[], bytes]], bool]
    reader: Callable[[], Reader]
    usual_name: re.Pattern[str] | None = None
    """How the usual writer names a file, with groups `worker` and `cycle`; a folder with such files has no others."""
    a_file: str | None = None
    """What one of its files is called, if that is not the name and 'trace'."""
    ranks: Callable[[Sequence[Path]], RanksInFiles] | None = None
    """The ranks in all files of a run, if one file may hold several. Raises RunError."""
    unread_names: tuple[str, ...] = ()
    """Files from which its own tools make those of the format, as patterns of the shell; and how they do."""
    how_to_make: str | None = None
    also_written: tuple[str, ...] = ()
    """Other files that its tools write of the same run, as patterns of the shell: left out beside its own."""
    journals: tuple[str, ...] = ()
    """Endings of files beside one that change what it holds: nothing is kept of a file that has such a one."""
    call_bytes: int | None = None
    """How many bytes a call takes at most, if files consist of calls: then it is known before whether they are too
    many to be held in memory."""
    is_less: bool = False
    """Whether its files are left out where a folder holds traces of another format, which say more of the same run."""
    others: str = "other files"
    """What files of the same ending are that have other names, as the object of 'left out 3 ...'."""
