"""How a record says what its fields mean, and how it becomes JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Doc:
    """What a field means. Its unit is `unit`, or else the last word of its name.

    A field that `may_lack` is left out of the file when it is None. Fields that are not `read` are for people only.
    """

    meaning: str
    unit: str | None = None
    may_lack: bool = False
    read: bool = True


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
    said = {f.name: getattr(hints[f.name], "__metadata__", ()) for f in fields(kind)}
    return {name: next((one for one in found if isinstance(one, Doc)), _UNTOLD) for name, found in said.items()}


_UNTOLD = Doc("")


def content(record: Any) -> dict[str, Any]:
    """The record as dictionaries and lists; values that are neither records nor lists stay as they are."""
    told = docs(record.__class__)
    values = {name: getattr(record, name) for name in told}
    return {name: _plain(value) for name, value in values.items() if not (value is None and told[name].may_lack)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return content(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
