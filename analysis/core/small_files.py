"""Small files beside traces: read whole, within limits, without ever blocking."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec

from ...contract.reading import check_version
from .json_repairs import without_numbers_that_are_none
from .places.files import plain_file

MOST_BYTES = 64 << 20
# What they may take as objects, whatever else is read.
_MOST_OBJECT_BYTES = 250_000_000
_OBJECT_BYTES, _LIST_BYTES, _VALUE_BYTES, _QUOTE_BYTES = 250, 90, 60, 36


class NotJson(Exception):
    """What is wrong with the text."""


def small_file(path: Path) -> bytes:
    """The content of a plain file. Raises OSError, also if it is far too large."""
    with plain_file(path)[0] as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {MOST_BYTES >> 20} MiB, the most that such a file may have")
    return content


def json_file(path: Path) -> Any:
    """The content of a JSON file; NaN and Infinity become empty lists. Raises OSError, NotJson."""
    return json_of(small_file(path))


def read_json(path: Path) -> Any:
    """The content of a side file. Raises OSError, NotJson, OtherVersion."""
    content = json_file(path)
    check_version(content)
    return content


def json_bytes(content: bytes) -> int:
    """How much memory a JSON text takes as objects, at most."""
    return (
        content.count(b"{") * _OBJECT_BYTES
        + content.count(b"[") * _LIST_BYTES
        + content.count(b",") * _VALUE_BYTES
        + content.count(b'"') * _QUOTE_BYTES
        + len(content) * (1 if content.isascii() else 4)
    )


def json_of(content: bytes) -> Any:
    """The content of a JSON text of a small file, as `json_file`. Raises NotJson."""
    if json_bytes(content) > _MOST_OBJECT_BYTES:
        raise NotJson(f"would take more than {_MOST_OBJECT_BYTES // 10**6} MB of memory, the most for such a file")
    return any_json(content)


def any_json(content: bytes) -> Any:
    """The content of a JSON text, however large, as `json_file`. Raises NotJson."""
    if b"NaN" in content or b"Infinity" in content:
        content = without_numbers_that_are_none(content)
    try:
        return msgspec.json.decode(content)
    except UnicodeDecodeError as err:
        raise NotJson(f"is not text in UTF-8 (byte {err.start:,} of a text: {err.reason})") from err
    except RecursionError as err:
        raise NotJson("is nested too deeply") from err
    except (msgspec.DecodeError, ValueError) as err:
        raise NotJson(str(err)) from err
