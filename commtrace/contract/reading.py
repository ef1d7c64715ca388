"""Read a file as the record that it was written from, without the fields for people, and within limits.

The result is a view of the record: a struct of the same fields and types but for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from .record import SCHEMA_VERSION, Doc, Needed, docs

UNDERSTOOD = (SCHEMA_VERSION,)
"""The versions of side files that are read here."""

_Kind = TypeVar("_Kind")


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


def typed(content: object, kind: type[_Kind], needed: Sequence[str] = (), others: Sequence[str] | None = None) -> _Kind:
    """The content as `kind`, a record or a struct. Raises msgspec.ValidationError, which says where it does not fit.

    Fields of a record that are `Needed`, or `needed` here, must be there; of the rest only `others` are read, for None
    all. Others that are not there are None, or empty.
    """
    if issubclass(kind, Struct):
        return msgspec.convert(content, kind)
    only = None if others is None else (*needed, *others)
    return cast("_Kind", msgspec.convert(content, _view(cast("type", kind), tuple(needed), only)))


def lenient(content: object, kind: type[_Kind]) -> tuple[_Kind, frozenset[str]]:
    """The content as the record `kind` without what makes no sense: single fields, and entries of lists.

    Also the names of the fields in which something makes no sense. Nothing is needed of `kind` itself.
    """
    record, odd = _lenient(content, _view(cast("type", kind)))
    return cast("_Kind", record), odd


def _lenient(content: object, view: type[Struct]) -> tuple[Struct | None, frozenset[str]]:
    """As `lenient`, for a view; None if something that is needed is not there."""
    given = content if isinstance(content, dict) else {}
    found: dict[str, Any] = {}
    odd: set[str] = set()
    for field in msgspec.structs.fields(view):
        value = given.get(field.name)
        if value is None:
            continue
        try:
            found[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            odd.add(field.name)
            found |= _rest(field.name, value, field.type)
    if any(field.required and field.name not in found for field in msgspec.structs.fields(view)):
        return None, frozenset(odd)
    return view(**found), frozenset(odd)


def _rest(name: str, value: object, kind: Any) -> dict[str, Any]:
    """What can be used of a field that is invalid as a whole: fields of a record, or entries of a list of records."""
    for part in _parts(kind):
        if isinstance(value, dict) and _is_view(part):
            record, _ = _lenient(value, part)
            return {} if record is None else {name: record}
        if isinstance(value, list) and get_origin(part) is list and _is_view(get_args(part)[0]):
            records = (_lenient(entry, get_args(part)[0])[0] for entry in value)
            return {name: [record for record in records if record is not None]}
    return {}


def _is_view(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


@cache
def _view(kind: type, needed: tuple[str, ...] = (), only: tuple[str, ...] | None = None) -> type[Struct]:
    """A struct of the fields of a record, or of a part of one, that are read; of `only` these."""
    hints = get_type_hints(kind, include_extras=True)
    members = [
        _member(name, hints[name], doc, needed=name in needed or isinstance(doc, Needed))
        for name, doc in docs(kind).items()
        if doc.read and (only is None or name in only)
    ]
    return msgspec.defstruct(kind.__name__, members, frozen=True, kw_only=True)


def _member(name: str, hint: Any, doc: Doc, *, needed: bool) -> tuple[str, Any] | tuple[str, Any, Any]:
    """The field of a view: its name and type, and what it is where the file has none."""
    kind = _read_as(hint if doc.reads is None else doc.reads)
    if needed:
        return name, _union(_parts(kind)) if doc.may_lack or doc.always else kind
    if NoneType in get_args(kind) or kind is Any:
        return name, kind, None
    if _is_view(kind):
        return name, kind, msgspec.field(default_factory=kind)
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return name, kind, msgspec.field(default_factory=get_origin(bare))


def _read_as(hint: Any) -> Any:
    """The type with views for records, and lists and dictionaries for what may be any sequence or mapping."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind = _read_as(parts[0])
        for limit in hint.__metadata__:
            kind = Annotated[kind, limit] if isinstance(limit, msgspec.Meta) else kind
        return kind
    if origin in (Union, UnionType):
        return _union(map(_read_as, parts))
    if origin in (list, Sequence):
        return list[_read_as(parts[0])]  # type: ignore[misc]
    if origin is Mapping:
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    return _view(hint) if isinstance(hint, type) and is_dataclass(hint) else hint


def _union(kinds: Iterable[Any]) -> Any:
    return Union[tuple(kinds)]  # noqa: UP007


def _parts(kind: Any) -> list[Any]:
    """The types of a union but for None, or the type itself."""
    union = get_origin(kind) in (Union, UnionType)
    return [part for part in (get_args(kind) if union else (kind,)) if part is not NoneType]
