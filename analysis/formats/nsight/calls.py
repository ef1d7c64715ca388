"""Calls of the CUDA runtime and driver on CPUs: launches, and with details all calls."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ...recording.arrays import Int64s
from ...recording.database_columns import among
from .tables import TEXT_TABLE, THREAD, ExportTables

CALL_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
_VERSION = re.compile(r"_v[0-9]+(?=_ptsz\Z|_ptds\Z|\Z)")


class CallColumns(NamedTuple):
    """Calls as columns, by start; times in ns as in the export. The column `name` indexes `names`."""

    columns: dict[str, Int64s]
    names: list[str]


def called_columns(tables: ExportTables, correlations: Int64s, *, every_call: bool) -> CallColumns:
    """Calls of a process that launched one of these correlations, or all calls.

    Raises DamagedTrace, TooLarge.
    """
    wanted = np.unique(correlations)

    def launching(chunk: dict[str, Int64s]) -> np.typing.NDArray[np.bool_]:
        return among(chunk["correlationId"], wanted)

    needed, others = ("start", "end"), ("correlationId", "globalTid", "nameId")
    called = tables.owned(CALL_TABLE, needed, others, owner="globalTid", keep=None if every_call else launching)
    tables.keep(CALL_TABLE, **{"runtime" if every_call else "launches": len(called["start"])})
    order = np.argsort(called["start"], kind="stable")
    columns = {name: values[order] for name, values in called.items()}
    columns["correlation"] = columns.pop("correlationId")
    columns["thread"] = columns.pop("globalTid") & THREAD
    distinct, which = np.unique(columns.pop("nameId"), return_inverse=True)
    texts = tables.texts(TEXT_TABLE, distinct.tolist()) if every_call else {}
    names: dict[str, int] = {}
    # Several versions of a function are one, as Kineto names it.
    numbers = [names.setdefault(_VERSION.sub("", texts.get(n, "unknown")), len(names)) for n in distinct.tolist()]
    return CallColumns({**columns, "name": np.array(numbers, dtype=np.int64)[which.reshape(-1)]}, list(names))
