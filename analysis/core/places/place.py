"""What a user names -> a path of this machine or a URL; and how other processes are told which.

Nothing about URLs is imported before there is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from .remote import RemotePath

_URL = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_OF_THIS_MACHINE = "file://"
_OF_THIS_PROCESS = "memory://"
_REMOTE = b"\0"  # which no path of this machine holds


def path_named(name: str | PathLike[str]) -> Path:
    """The path, or the URL, of that name; `file://` is a path of this machine."""
    if is_remote(name):
        return name
    text = os.fspath(name)
    if text.lower().startswith(_OF_THIS_MACHINE):
        from urllib.parse import unquote

        return Path(unquote(text[len(_OF_THIS_MACHINE) :]))
    if not _URL.match(text):
        return Path(text)
    from .remote import RemotePath

    return RemotePath(text)


def is_remote(path: object) -> TypeGuard[RemotePath]:
    """Whether it is named by URL."""
    return hasattr(path, "url")


def is_there(path: Path) -> bool:
    """Whether anything is there, even a link to nothing. Raises OSError where that cannot be told of a URL."""
    return path.exists() if is_remote(path) else os.path.lexists(path)


def is_for_others(path: Path) -> bool:
    """Whether another process can open it as well. /dev/stdin may be a deleted file."""
    if is_remote(path):
        return not path.url.startswith(_OF_THIS_PROCESS)
    try:
        return _for_others(path).is_file()
    except OSError:
        return False


def address(path: Path) -> bytes:
    """What `path_at` makes this path of in another process, whatever folder that works in."""
    if is_remote(path):
        import msgspec

        return _REMOTE + msgspec.json.encode((path.url, path.known, path.text))
    return os.fsencode(_for_others(path))


def path_at(told: bytes) -> Path:
    """The path, or the URL and what is known of it, of which `address` told."""
    if not told.startswith(_REMOTE):
        return Path(os.fsdecode(told))
    import msgspec

    from .filesystem import RemoteFacts
    from .remote import RemotePath

    url, known, text = msgspec.json.decode(told[len(_REMOTE) :], type=tuple[str, RemoteFacts | None, str])
    return RemotePath(url, known, text=text)


def fetch_begins(paths: Iterable[Path]) -> None:
    """Fetch the first bytes of those that are named by URL, all at once, since each request takes as long as many.

    What cannot be fetched is an error when it is read.
    """
    remote = [path for path in paths if is_remote(path)]
    if len(remote) > 1:
        from .remote import begin_all

        begin_all(remote)


def _for_others(path: Path) -> Path:
    """The path by which another process finds the file; its /dev/stdin would be another one."""
    absolute = path.absolute()
    return absolute.resolve() if absolute.parts[1:2] in (("dev",), ("proc",)) else absolute
