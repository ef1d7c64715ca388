"""The files of a run directory: the records each is written from, and those the analysis reads it as."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from commtrace.analysis.core.contract import comms as read_comms
from commtrace.analysis.core.contract import rank as read_rank
from commtrace.analysis.core.contract import run as read_run
from commtrace.analysis.core.contract import sweep as read_sweep
from commtrace.analysis.core.contract import training as read_training
from commtrace.profiling.base.contract.comms import CommsFile
from commtrace.profiling.base.contract.fields import content
from commtrace.profiling.base.contract.rank import RankFile
from commtrace.profiling.base.contract.run import RunFile
from commtrace.profiling.base.contract.single import CapacityFile, LayersFile
from commtrace.profiling.base.contract.sweep import SweepRecord
from commtrace.profiling.base.contract.training import TrainingFile


@dataclass(frozen=True)
class ContractFile:
    """One kind of file. `foreign` are fields that are read of other programs' files of that name only."""

    name: str
    written: type
    read: tuple[type[msgspec.Struct], ...] = ()
    foreign: tuple[str, ...] = ()


FILES = (
    ContractFile("run.json", RunFile, (read_run.RunFile, read_run.SweptRun, read_run.TrainedRun)),
    ContractFile("<host>_<rank>.meta.json", RankFile, (read_rank.RankFile, read_rank.TimedRank)),
    ContractFile("training.json", TrainingFile, (read_training.TrainingFile,)),
    ContractFile("sweep.json", SweepRecord, (read_sweep.SweepRecord,)),
    ContractFile("comms.json", CommsFile, (read_comms.CommsFile,), ("config", "args", "experiment_name")),
    ContractFile("capacity.json", CapacityFile),
    ContractFile("layers.json", LayersFile),
)


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
    return json.dumps(content(record), indent=1, default=str) + "\n"
