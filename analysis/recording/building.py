"""Build a recording from rows of values, for readers of simple formats with few columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.tables.events import EVENT_SORTS, EventColumn
from .header import Header
from .recording import Columns, Events
from .values import MISSING, NOT_KNOWN


def columns_of(sort: str, rows: int = 0, **known: Sequence[float] | NDArray[Any]) -> Columns:
    """All columns of a sort of event, see `core.tables.events`; those not given are not known."""
    surplus = known.keys() - EVENT_SORTS[sort].names
    if surplus or any(len(values) != rows for values in known.values()):
        raise ValueError(f"{sort}: expected {rows} values of each column, found {sorted(known)}")
    return {
        one.name: _bytes(one, known[one.name]) if one.name in known else unknown_column(one, rows)
        for one in EVENT_SORTS[sort].held
    }


def unknown_column(declared: EventColumn, rows: int) -> bytes:
    """A column of which no value is known."""
    return _bytes(declared, [MISSING if declared.is_integer else NOT_KNOWN] * rows)


def _bytes(declared: EventColumn, values: Sequence[float] | NDArray[Any]) -> bytes:
    code = "q" if declared.is_integer else "d"
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, dtype=code).tobytes()
    return array(code, values).tobytes()


def events_of(**known: Any) -> Events:
    """Events with only these fields; all others are empty."""
    nothing: dict[str, Any] = {
        "pids": [None] * 4, "names": [], "kinds": [], "operator_names": [], "call_names": [], "annotations": [],
        "comm_args": [], "gloo_threads": [],
    }  # fmt: skip
    return Events(**{**nothing, **{sort: columns_of(sort) for sort in EVENT_SORTS}, **known})


def header_of(**known: Any) -> Header:
    """A header with only these fields."""
    nothing: dict[str, Any] = dict.fromkeys(("rank", "world_size", "backend", "host", "cuda_version", "nccl_version"))
    return Header(**{**nothing, "device_names": (), "process_groups": (), **known})
