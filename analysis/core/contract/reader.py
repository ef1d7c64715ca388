"""The one reader of side files: it checks the version of each, and gives what was written its types."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from ..small_files import json_file

UNDERSTOOD = (1,)
"""The versions of side files that are read here."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class OtherVersion(Exception):
    """The file has a version that is not understood. The message says which one, and what to do."""


def check_version(content: object) -> None:
    """Raise OtherVersion if the content of a file has a version that is not understood.

    A file without a version, or with something that is not a version, is left to whoever reads the rest.
    """
    found = content.get("schema_version") if isinstance(content, dict) else None
    if type(found) is not int or found in UNDERSTOOD:
        return
    advice = "upgrade commtrace" if found > max(UNDERSTOOD) else "no commtrace wrote that: write it again"
    expected = " or ".join(map(str, UNDERSTOOD))
    raise OtherVersion(f"has schema_version {str(found)[:40]}, expected {expected}; {advice}")


def read_json(path: Path) -> Any:
    """The content of a side file. Raises OSError, NotJson, OtherVersion."""
    content = json_file(path)
    check_version(content)
    return content


def typed(content: object, kind: type[_Struct]) -> _Struct:
    """The whole content as `kind`. Raises msgspec.ValidationError, which says where it does not fit."""
    return msgspec.convert(content, kind)


class Lenient(NamedTuple):
    """What could be read, None if something required is missing; and the names of fields that make no sense."""

    record: Any
    odd: frozenset[str]


def lenient(content: object, kind: type[msgspec.Struct]) -> Lenient:
    """The content as `kind`, without what makes no sense in it: single fields, and entries of lists."""
    given = content if isinstance(content, dict) else {}
    found: dict[str, Any] = {}
    odd: set[str] = set()
    for field in msgspec.structs.fields(kind):
        value = given.get(field.name)
        if value is None:
            continue
        try:
            found[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            odd.add(field.name)
            found |= _rest(field.name, value, field.type)
    if any(field.required and field.name not in found for field in msgspec.structs.fields(kind)):
        return Lenient(None, frozenset(odd))
    return Lenient(kind(**found), frozenset(odd))


def _rest(name: str, value: object, kind: Any) -> dict[str, Any]:
    """What can be used of a field that is invalid as a whole: fields of a record, or entries of a list of records."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return {name: lenient(value, kind).record}
    (entry,) = get_args(kind) if get_origin(kind) is list else (None,)
    if isinstance(entry, type) and issubclass(entry, msgspec.Struct) and isinstance(value, list):
        records = (lenient(one, entry).record for one in value)
        return {name: [record for record in records if record is not None]}
    return {}
