"""The files of a run directory and their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from commtrace.contract.comms import CommsFile
from commtrace.contract.lab import LabRecord
from commtrace.contract.rank import RankFile
from commtrace.contract.record import json_bytes
from commtrace.contract.run import RunFile
from commtrace.contract.single import CapacityFile, GemmFile, LayersFile
from commtrace.contract.sweep import SweepRecord
from commtrace.contract.training import TrainingFile

FILES = {
    "run.json": RunFile,
    "<host>_<rank>.meta.json": RankFile,
    "training.json": TrainingFile,
    "sweep.json": SweepRecord,
    "comms.json": CommsFile,
    "capacity.json": CapacityFile,
    "layers.json": LayersFile,
    "gemm.json": GemmFile,
    "lab.json": LabRecord,
}
"""The files of a run directory, and the record of each."""


def hints(kind: type) -> dict[str, Any]:
    """The type of each field of a record, written or read, without what is annotated."""
    return {name: _bare(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def choices(hint: Any) -> list[Any]:
    """The types of a union but for None, or the type itself."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [_bare(part) for part in parts if part is not type(None)]


def entry(hint: Any) -> Any:
    """The type of the entries of a list, None for what is no list."""
    return _bare(get_args(hint)[0]) if get_origin(hint) in (list, Sequence) else None


def record_in(hint: Any) -> type | None:
    """The record that a field holds, alone or in lists."""
    for part in choices(hint):
        inner = entry(part)
        found = record_in(inner) if inner is not None else part if is_record(part) else None
        if found is not None:
            return found
    return None


def is_record(kind: Any) -> bool:
    """Is it a type with fields of its own?"""
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def is_literal(hint: Any) -> bool:
    """Does it list its values?"""
    return get_origin(hint) is Literal


def rewritten(path: Path, kind: type) -> str:
    """What the file would be, had it been written from a record of that kind."""
    record: Any = msgspec.convert(json.loads(path.read_text(encoding="utf-8")), kind)
    return json_bytes(record).decode()
