"""How a record says what its fields mean, and how it becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

SCHEMA_VERSION = 1
"""The version of every file. The analysis refuses one that it does not know."""


@dataclass(frozen=True)
class Doc:
    """What a field means. Its unit is `unit`, or else the last word of its name.

    A field that `may_lack` is left out of the file when it is None. One that is `always` written is None only where a
    file that was read lacks it. `reads` is what a reader accepts, where that is more than what is written. Fields that
    are not `read` are for people only.
    """

    meaning: str
    unit: str | None = None
    may_lack: bool = False
    always: bool = False
    reads: Any = None
    read: bool = True


@dataclass(frozen=True)
class Needed(Doc):
    """What a field means without which a reader can do nothing with the record."""


@dataclass(frozen=True)
class People(Doc):
    """What a field for people means: the analysis reads neither it nor anything inside it."""

    read: bool = False


@dataclass(frozen=True)
class Record:
    """The content of a file: fields in the order in which they are written, each `Annotated` with a `Doc`."""


@cache
def docs(kind: type) -> Mapping[str, Doc]:
    """The `Doc` of each field of a record, or of a part of one, by name."""
    hints = get_type_hints(kind, include_extras=True)
    notes = {f.name: getattr(hints[f.name], "__metadata__", ()) for f in fields(kind)}
    return {name: next((note for note in of if isinstance(note, Doc)), _UNDOCUMENTED) for name, of in notes.items()}


_UNDOCUMENTED = Doc("")


def content(record: Any) -> dict[str, Any]:
    """The record as dictionaries and lists; values that are neither records nor lists stay as they are."""
    documented = docs(record.__class__)
    values = {name: getattr(record, name) for name in documented}
    return {name: _plain(value) for name, value in values.items() if not (value is None and documented[name].may_lack)}


def json_bytes(record: Record) -> bytes:
    """The file of a record."""
    return (json.dumps(content(record), indent=1, default=str) + "\n").encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return content(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
