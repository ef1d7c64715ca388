"""What a user names -> a path of this machine or a URL; and how other processes are told which."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path
from urllib.parse import unquote

import msgspec

from .filesystem import RemoteFacts
from .remote import RemotePath

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_OF_THIS_MACHINE = "file://"
_REMOTE = b"\0"  # which no path of this machine holds
_OF_THIS_PROCESS = "memory://"


def path_named(name: str | PathLike[str]) -> Path:
    """The path, or the URL, of that name; `file://` is a path of this machine."""
    if isinstance(name, RemotePath):
        return name
    text = os.fspath(name)
    if text.lower().startswith(_OF_THIS_MACHINE):
        return Path(unquote(text[len(_OF_THIS_MACHINE) :]))
    return RemotePath(text) if _URL.match(text) else Path(text)


def is_remote(path: Path) -> bool:
    """Whether it is named by URL."""
    return isinstance(path, RemotePath)


def is_there(path: Path) -> bool:
    """Whether anything is there, even a link to nothing. Raises OSError where that cannot be told of a URL."""
    return path.exists() if is_remote(path) else os.path.lexists(path)


def is_for_others(path: Path) -> bool:
    """Whether another process can open it as well. /dev/stdin may be a deleted file."""
    if isinstance(path, RemotePath):
        return not path.url.startswith(_OF_THIS_PROCESS)
    try:
        return _for_others(path).is_file()
    except OSError:
        return False


def address(path: Path) -> bytes:
    """What `path_at` makes this path of in another process, whatever folder that works in."""
    if isinstance(path, RemotePath):
        return _REMOTE + msgspec.json.encode((path.url, path.known))
    return os.fsencode(_for_others(path))


def path_at(told: bytes) -> Path:
    """The path, or the URL and what is known of it, of which `address` told."""
    if not told.startswith(_REMOTE):
        return Path(os.fsdecode(told))
    return RemotePath(*msgspec.json.decode(told[len(_REMOTE) :], type=tuple[str, RemoteFacts | None]))


def _for_others(path: Path) -> Path:
    """The path by which another process finds the file; its /dev/stdin would be another one."""
    absolute = path.absolute()
    return absolute.resolve() if absolute.parts[1:2] in (("dev",), ("proc",)) else absolute
