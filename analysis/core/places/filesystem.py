"""The few things that are asked of filesystems of fsspec, which is imported when the first of them is."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from ....common.extras import not_installed
from ...errors import MissingLibrary, UnreachableFile
from .failures import plain_errors
from .redaction import is_web, query_of, without_secrets

BEGIN_BYTES = 16 << 10
"""What is fetched first: enough to see what a file is, and all of most side files."""
BLOCK_BYTES = 4 << 20
"""What is fetched at once. Files of one block are fetched whole; of larger ones the next block while one is read."""
_BLOCKS_KEPT = 3
# Each has files of its own, and nothing else. Others of fsspec read what a file names (reference, dvc), leave copies
# (simplecache, filecache), or run on another machine (dask, jlab); archives have folders within a file.
_SCHEMES = frozenset((
    "abfs", "abfss", "adl", "az", "box", "dbfs", "dropbox", "ftp", "gcs", "gdrive", "gs", "hdfs", "hf", "http", "https",
    "lakefs", "local", "memory", "oci", "oss", "root", "s3", "s3a", "sftp", "smb", "ssh", "tos", "webdav", "webhdfs",
))  # fmt: skip
_TAGS = ("ETag", "etag", "generation", "sha", "checksum", "Content-MD5")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modify", "created", "ino")


class RemoteFacts(NamedTuple):
    """What a filesystem says of a file: `identity` changes when it is replaced. The size may not be known."""

    is_folder: bool
    size: int | None
    identity: str

    @property
    def state(self) -> tuple[int, int]:
        """Numbers that are the same in every process as long as the file is."""
        from hashlib import blake2b  # it loads OpenSSL

        digest = blake2b(self.identity.encode("utf-8", "surrogatepass"), digest_size=7).digest()
        return -1 if self.size is None else self.size, int.from_bytes(digest, "little")


# Each function raises UnreachableFile and MissingLibrary, and FileNotFoundError where nothing is at the URL.


def facts_at(url: str) -> RemoteFacts:
    """What is at the URL now."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        fs.invalidate_cache(path)
        return _facts(fs.info(path))


def listed_at(url: str) -> list[tuple[str, RemoteFacts]]:
    """The names in a folder now, and what is known of each."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        fs.invalidate_cache(path)
        found = [(str(info["name"]).rstrip("/"), _facts(info)) for info in fs.ls(path, detail=True)]
    own = path.strip("/")  # which object stores list as well, where it was made by hand
    named = [(_last(name, url), facts) for name, facts in found if name.strip("/") != own]
    return [
        (name, facts) for name, facts in named if name.strip(".") and "\0" not in name
    ]  # no writer of traces makes those


def _last(name: str, url: str) -> str:
    """The last part of a name in that folder, with the query of a link."""
    query = query_of(name) if is_web(url) else ""
    return name[: len(name) - len(query)].rpartition("/")[2] + query


def begins_at(urls: Sequence[str], sizes: Sequence[int]) -> list[bytes | None]:
    """The first bytes of files, this many of each, all of them at once; None where that fails."""
    found: list[bytes | None] = [None] * len(urls)
    with suppress(Exception):  # it comes again when the file is read
        places = [(*_filesystem(url), number) for number, url in enumerate(urls)]
        for fs in {id(fs): fs for fs, _, _ in places}.values():
            there = [(path, number) for its, path, number in places if its is fs]
            ends = [sizes[number] for _, number in there]
            parts = fs.cat_ranges([path for path, _ in there], [0] * len(there), ends, on_error="return")
            for (_, number), part in zip(there, parts, strict=True):
                found[number] = part[: sizes[number]] if isinstance(part, bytes) else None
    return found


def content_at(url: str, end: int | None = None) -> bytes:
    """The bytes of a file before `end`, or all of them, of one moment."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        return bytes(fs.cat_file(path) if end is None else fs.cat_file(path, start=0, end=end)[:end])


def stream_at(url: str) -> Any:
    """A file to read from, as fsspec has it. Where its filesystem can, it stays the file that was last seen."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        kept = {"maxblocks": _BLOCKS_KEPT}
        return fs.open(path, "rb", block_size=BLOCK_BYTES, cache_type="background", cache_options=kept)


def write_at(url: str, content: bytes) -> None:
    """Make this the content of the file, whole or not at all."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        if _is_object_store(fs):
            fs.pipe_file(path, content)
            return
        folder, _, _ = path.rpartition("/")
        partial = f"{folder}/.{os.urandom(8).hex()}.partial"
        try:
            fs.pipe_file(partial, content)
            fs.mv(partial, path)
        except BaseException:
            with suppress(Exception):
                fs.rm_file(partial)
            raise


def make_folder_at(url: str) -> None:
    """Make a folder with those above it; object stores have none, and no bucket is made."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        if not _is_object_store(fs):
            fs.makedirs(path, exist_ok=True)


def remove_at(url: str) -> None:
    """Remove a file."""
    with plain_errors(url):
        fs, path = _filesystem(url)
        fs.rm_file(path)


def _filesystem(url: str) -> tuple[Any, str]:
    """The filesystem that the URL names, with the user's own configuration, and the path there.

    Not by fsspec's own url_to_fs: it takes every `::` in a name for a chain, and a chain may name any file.
    """
    try:
        from fsspec.core import filesystem, get_filesystem_class
    except ImportError as err:
        raise MissingLibrary(f"{without_secrets(url)}: {not_installed('fsspec', 'a URL', 'remote')}") from err
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        raise UnreachableFile(errno.EPROTONOSUPPORT, _why_not(scheme), without_secrets(url))
    known = get_filesystem_class(scheme)
    return filesystem(scheme, **known._get_kwargs_from_urls(url)), str(known._strip_protocol(url))  # noqa: SLF001


def _why_not(scheme: str) -> str:
    from fsspec.registry import available_protocols

    if "::" in scheme:
        reason = "chains of filesystems are not read"
    elif scheme in available_protocols():
        reason = "a filesystem whose files may name others, or be copied, is not read"
    else:
        reason = "no filesystem of fsspec has this name"
    return f"{reason}; copy the files to this machine, or name them by one of {', '.join(sorted(_SCHEMES))}"


def _is_object_store(fs: Any) -> bool:
    """Whether a file appears there when all of it has arrived. All that are asynchronous are such."""
    return bool(fs.async_impl) or fs.protocol == "memory"


def _facts(info: dict[str, Any]) -> RemoteFacts:
    # Folders of web servers are pages.
    is_folder = info.get("type") == "directory" or str(info.get("mimetype", "")).startswith("text/html")
    tags = [_plain(info[name]) for name in _TAGS if info.get(name)]
    times = [] if tags else [_plain(info[name]) for name in _TIMES if info.get(name)]
    return RemoteFacts(is_folder, info.get("size"), " ".join(tags or times))


def _plain(value: object) -> str:
    return str(value.timestamp() if isinstance(value, datetime) else value)
