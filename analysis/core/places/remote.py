"""Files named by URL, with those operations of `pathlib.Path` that are used here."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UnreachableFile
from .failures import changed, not_there
from .filesystem import (
    BEGIN_BYTES,
    RemoteFacts,
    begins_at,
    content_at,
    facts_at,
    listed_at,
    make_folder_at,
    remove_at,
    write_at,
)
from .redaction import query_of, without_secrets
from .streams import RemoteFile

if TYPE_CHECKING:
    # Whatever takes a path takes one of these. What is not defined here is missing when it runs.
    _Path = Path
else:
    _Path = object

_BUFFER_BYTES = 256 << 10


class RemotePath(_Path):
    """A file or folder of a filesystem that fsspec knows. As `text` it has no secrets, see `without_secrets`.

    What was once seen of it, in the listing of its folder or by itself, holds for the life of this object; a file that
    is another one when it is read is an error. Methods raise UnreachableFile and MissingLibrary.
    """

    def __init__(
        self, url: str, known: RemoteFacts | None = None, folder: RemotePath | None = None, text: str | None = None
    ) -> None:
        """Nothing is asked of its filesystem yet."""
        query = query_of(url)
        base = url[: len(url) - len(query)]
        scheme, _, rest = base.partition("://")
        rest = rest.rstrip("/") if scheme.lower() != "memory" else rest.strip("/")
        self._base = f"{scheme.lower()}://{rest}"
        self.url = self._base + query
        self.known = known
        self.text = without_secrets(self.url) if text is None else text
        self._folder = folder
        self._is_guess = folder is not None and known is None
        self._is_asked = False
        self._listing: dict[str, RemotePath] | None = None
        self._begin: bytes | None = None
        self._is_missing = False

    def __reduce__(self) -> Any:
        return RemotePath, (self.url, self.known, None, self.text)

    def __fspath__(self) -> str:
        raise TypeError(f"{self.text}: is not on this machine")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"RemotePath({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: Any) -> bool:
        return self.text < str(other)

    @property
    def name(self) -> str:
        """What stands behind the last slash."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """As `Path.suffix`."""
        return Path(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """Its folder; the same object for all files of a folder that was listed."""
        if self._folder is None:
            above, _, name = self._base.rpartition("/")
            # A part of a secret may not look like one any more.
            text = self.text.rpartition("/")[0]
            text = self.text if text.endswith("/") else text
            self._folder = self if not name or above.endswith("/") else RemotePath(above, text=text)
            if query_of(self.url):  # which is for this file only
                self._folder._listing = {}  # noqa: SLF001 - of another one of these
        return self._folder

    def with_name(self, name: str) -> RemotePath:
        """What has this name beside it."""
        return self.parent / name

    def __truediv__(self, name: Any) -> RemotePath:
        if self._listing is not None and str(name) in self._listing:
            return self._listing[str(name)]
        inside = self._inside(str(name))
        inside._is_missing = self._listing is not None
        return inside

    def _inside(self, name: str, known: RemoteFacts | None = None) -> RemotePath:
        slash = "" if self._base.endswith("/") else "/"
        shown = name[: len(name) - len(query_of(f"{self._base}{name}"))]
        return RemotePath(f"{self._base}{slash}{name}", known, self, f"{self.text}/{shown}")

    def absolute(self) -> RemotePath:
        """Itself: a URL does not depend on where one is."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002 - as Path has it
        """Itself."""
        return self

    @property
    def facts(self) -> RemoteFacts:
        """What was first seen of it. Raises FileNotFoundError."""
        if self._is_missing:
            raise not_there()
        if self.known is None or (self.known.size is None and not self._is_asked):
            self.known = self._asked()
        return self.known

    def _asked(self) -> RemoteFacts:
        self._is_asked = True
        try:
            return facts_at(self.url)
        except UnreachableFile as err:
            if self._is_guess and err.errno == errno.EACCES:  # who may not list a folder is denied what is not there
                raise not_there() from err
            raise

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as Path has it
        """Its kind and size; it belongs to the user, and has no times. Raises FileNotFoundError."""
        kind = stat.S_IFDIR | 0o700 if self.facts.is_folder else stat.S_IFREG | 0o600
        return os.stat_result((kind, 0, 0, 1, os.geteuid(), os.getegid(), self.facts.size or 0, 0, 0, 0))

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as Path has it
        """Whether anything is there."""
        try:
            return self.facts is not None
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as Path has it
        """Whether a folder is there."""
        return self.exists() and self.facts.is_folder

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as Path has it
        """Whether a file is there."""
        return self.exists() and not self.facts.is_folder

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]  # typeshed wants a generator
        """What is in the folder, listed once."""
        if self._listing is None:
            self._listing = {name: self._inside(name, facts) for name, facts in listed_at(self.url)}
        return iter(self._listing.values())

    def glob(self, pattern: str) -> Iterator[RemotePath]:  # type: ignore[override]  # it has fewer options
        """What is in the folder, or with a slash in those in it, and has such a name; nothing if it is no folder."""
        first, _, rest = pattern.partition("/")
        for path in [path for path in self.iterdir() if fnmatchcase(path.name, first)] if self.is_dir() else []:
            if not rest:
                yield path
            elif path.is_dir():
                yield from path.glob(rest)

    def begin(self) -> bytes:
        """The first bytes of the file; all of it, if it is small."""
        if self._begin is None:
            size = self.facts.size
            try:
                self._begin = b"" if size == 0 else content_at(self.url, min(size or BEGIN_BYTES, BEGIN_BYTES))
            except FileNotFoundError as err:
                raise changed(self.url, "was removed after it was found") from err
            if size is not None and len(self._begin) < min(size, BEGIN_BYTES):
                raise changed(self.url)
        return self._begin

    def open(self, mode: str = "rb", **_: Any) -> BufferedReader:  # type: ignore[override]  # only to read bytes
        """The file, to read from. Raises FileNotFoundError, IsADirectoryError."""
        if mode != "rb":
            raise ValueError(f"{mode!r}: files named by URL are only read as bytes")
        if self.facts.is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return BufferedReader(RemoteFile(self.url, self.facts, self.begin), _BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        """All of the file. Raises FileNotFoundError, IsADirectoryError."""
        with self.open() as file:
            return file.read()

    def replace_content(self, parts: Iterable[bytes]) -> None:
        """Make these parts the content of the file, whole or not at all."""
        write_at(self.url, b"".join(parts))
        self._see_again(is_missing=False)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002
        """Make the folder, with those above it, where its filesystem has folders."""
        make_folder_at(self.url)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file. Raises FileNotFoundError."""
        try:
            remove_at(self.url)
        except FileNotFoundError:
            if not missing_ok:
                raise
        self._see_again(is_missing=True)

    def _see_again(self, *, is_missing: bool) -> None:
        self.known, self._begin, self._is_missing = None, None, is_missing
        if self._folder is not None and self._folder._listing is not None:  # noqa: SLF001 - of another one of these
            listing = self._folder._listing  # noqa: SLF001
            if is_missing:
                listing.pop(self.name, None)
            else:
                listing[self.name] = self


def begin_all(paths: Sequence[RemotePath]) -> None:
    """Fetch the first bytes of files all at once, as far as they can be fetched, for those that are known."""
    wanted = [path for path in paths if path.known and path.known.size and path._begin is None]  # noqa: SLF001
    sizes = [min(path.known.size or 0, BEGIN_BYTES) for path in wanted if path.known]
    for path, size, begin in zip(wanted, sizes, begins_at([path.url for path in wanted], sizes), strict=True):
        if begin is not None and len(begin) == size:
            path._begin = begin  # noqa: SLF001
