"""Build a recording from rows of values, for readers of simple formats with few columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .header import Header
from .recording import DOUBLES, INTEGERS, Columns, Events
from .values import MISSING, NOT_KNOWN


def columns_of(sort: str, rows: int = 0, **known: Sequence[float] | NDArray[Any]) -> Columns:
    """All columns of a sort of event, see `INTEGERS` and `DOUBLES`; those not given are not known."""
    surplus = known.keys() - {*INTEGERS[sort], *DOUBLES[sort]}
    if surplus or any(len(values) != rows for values in known.values()):
        raise ValueError(f"{sort}: expected {rows} values of each column, found {sorted(known)}")
    integers = {name: _bytes("q", known.get(name, [MISSING] * rows)) for name in INTEGERS[sort]}
    doubles = {name: _bytes("d", known.get(name, [NOT_KNOWN] * rows)) for name in DOUBLES[sort]}
    return integers | doubles


def _bytes(code: str, values: Sequence[float] | NDArray[Any]) -> bytes:
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, dtype=code).tobytes()
    return array(code, values).tobytes()


def events_of(**known: Any) -> Events:
    """Events with only these fields; all others are empty."""
    nothing: dict[str, Any] = {
        "pids": [None] * 4, "names": [], "kinds": [], "operator_names": [], "call_names": [], "annotations": [],
        "comm_args": [], "gloo_threads": [],
    }  # fmt: skip
    return Events(**{**nothing, **{sort: columns_of(sort) for sort in INTEGERS}, **known})


def header_of(**known: Any) -> Header:
    """A header with only these fields."""
    nothing: dict[str, Any] = dict.fromkeys(("rank", "world_size", "backend", "host", "cuda_version", "nccl_version"))
    return Header(**{**nothing, "device_names": (), "process_groups": (), **known})
