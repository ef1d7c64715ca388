"""Find which call made a stream wait, and for which recorded event.

CUPTI gives every cudaEventRecord a number, and each wait has that of the event it waits for (`eventSyncId`: CUPTI,
CUpti_ActivitySynchronization2). Reports rarely have the records themselves (CUDA_EVENT), but in their order they have
successive numbers; where waits do not fit that, it is not known what they wait for.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...recording.arrays import Int64s
from ...recording.values import MISSING
from .calls import CallColumns
from .devices import KERNEL_TABLE
from .tables import ExportTables, process_of

_WAITS, _RECORDS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("SYNCHRONIZATION", "CUDA_EVENT"))
_STREAM_WAIT = 2  # CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT
_RECORDING = ("cudaEventRecord", "cuEventRecord")
_USUAL = 0.5


def stream_wait_columns(tables: ExportTables, calls: CallColumns) -> dict[str, Int64s]:
    """Waits of a process by start: columns of the recording, and `start` in ns as in the export.

    Raises DamagedTrace, TooLarge.
    """
    kind = tables.database.first_with(_WAITS, ("syncType", "deprecatedSyncType")) or "syncType"
    others = (kind, "contextId", "deviceId", "streamId", "correlationId", "eventId", "eventSyncId")
    columns = tables.owned(
        _WAITS, ("start", "end"), others, owner="globalPid", keep=lambda chunk: chunk[kind] == _STREAM_WAIT
    )
    tables.keep(_WAITS, stream_waits=len(columns["start"]))
    order = np.argsort(columns["start"], kind="stable")
    waits = {name: values[order] for name, values in columns.items()}
    recorded, stream = _recorded(tables, waits, calls)
    return {
        "start": waits["start"],
        "correlation": waits["correlationId"],
        "device": _devices(tables, waits),
        "stream": waits["streamId"],
        "recorded": recorded,
        "recorded_stream": stream,
    }


def _devices(tables: ExportTables, waits: dict[str, Int64s]) -> Int64s:
    """Device of each wait: that of its context's kernels, as waits themselves often say 0."""
    columns = ["globalPid", "contextId", "deviceId"]
    of_context = {
        context: device
        for pid, context, device in tables.database.distinct(KERNEL_TABLE, columns)
        if type(device) is int and (tables.pid is None or (type(pid) is int and process_of(pid) == tables.pid))
    }
    contexts = zip(waits["contextId"].tolist(), waits["deviceId"].tolist(), strict=True)
    return np.array([of_context.get(context, device) for context, device in contexts], dtype=np.int64)


def _recorded(tables: ExportTables, waits: dict[str, Int64s], calls: CallColumns) -> tuple[Int64s, Int64s]:
    """For each wait, the correlation and stream of the call that recorded its event, MISSING if unknown."""
    others = ("correlationId", "streamId", "eventId", "eventSyncId")
    records = tables.owned(_RECORDS, ("eventId",), others, owner="globalPid")
    known: dict[tuple[int, int], tuple[int, int]] = {}
    listed = (records[name].tolist() for name in ("eventId", "eventSyncId", "correlationId", "streamId"))
    for event, number, correlation, stream in zip(*listed, strict=True):
        if number != MISSING:
            known[event, number] = correlation, stream
    events = list(zip(waits["eventId"].tolist(), waits["eventSyncId"].tolist(), strict=True))
    sources = [known.get(event, (MISSING, MISSING)) for event in events]
    correlations, streams = np.array(sources, dtype=np.int64).reshape(-1, 2).T
    counted = _counted(waits, calls)
    return np.where(correlations == MISSING, counted, correlations), streams


def _counted(waits: dict[str, Int64s], calls: CallColumns) -> Int64s:
    """Find these calls by counting: the number of a record is its place in order, plus a constant."""
    numbers = [place for place, name in enumerate(calls.names) if name.startswith(_RECORDING)]
    records = np.flatnonzero(np.isin(calls.columns["name"], numbers))
    unknown = np.full(len(waits["start"]), MISSING)
    known = waits["eventSyncId"] != MISSING
    if not len(records) or not known.any():
        return unknown
    latest = np.searchsorted(calls.columns["start"][records], waits["start"], side="right") - 1
    ahead, count = Counter((waits["eventSyncId"][known] - latest[known]).tolist()).most_common(1)[0]
    place = np.where(known, waits["eventSyncId"] - ahead, -1)
    if count < _USUAL * known.sum() or (place > latest).any():
        return unknown
    of_calls = calls.columns["correlation"][records]
    return np.where(place >= 0, of_calls[np.clip(place, 0, len(records) - 1)], MISSING)
