"""Check that the content of a recording is consistent, so that making tables from it does not fail."""

from __future__ import annotations

from ..core.tables.events import EVENT_SORTS, EventColumn
from .recording import NUMBER_BYTES, RawTrace
from .values import MISSING, PLAUSIBLE_RANKS, Duration, Time

_LIMITS = {"time": Time, "duration": Duration}
_KINDS = {"compute", "comm", "memory"}
_MOST_BASE_NS = 2**62
_LEAST_PIDS = 3


def is_consistent(trace: RawTrace) -> bool:
    """Whether all columns exist and have one length, times are in range, and every used name exists."""
    return (
        all(_are_columns(trace, sort) for sort in EVENT_SORTS)
        and len(trace.kinds) == len(trace.names)
        and _KINDS.issuperset(trace.kinds)
        and len(trace.pids) >= _LEAST_PIDS
        and _is_header(trace)
        and 0 <= trace.extent.read_bytes < _MOST_BASE_NS
        and (
            trace.damage is not None
            or trace.extent.not_understood_bytes == trace.repaired_bytes + trace.header.repaired_bytes
        )
    )


def _are_columns(trace: RawTrace, sort: str) -> bool:
    columns, declared = getattr(trace, sort), EVENT_SORTS[sort]
    sizes = {len(column) for column in columns.values()}
    return (
        columns.keys() == declared.names
        and len(sizes) == 1
        and not sizes.pop() % NUMBER_BYTES
        and all(_is_possible(trace, one, columns[one.name]) for one in declared.held if columns[one.name])
    )


def _is_possible(trace: RawTrace, declared: EventColumn, column: bytes) -> bool:
    """Whether all values of a column with values are in range: times, and numbers of texts."""
    import numpy as np  # slow to import, and needed only if there is something to check

    if declared.held in _LIMITS:
        times = np.frombuffer(column, dtype=np.float64)
        limits = _LIMITS[declared.held].__metadata__[0]  # type: ignore[attr-defined]
        return bool(times.min() >= limits.ge and times.max() <= limits.le)  # NaN is neither
    if declared.texts is None:
        return True
    numbers = np.frombuffer(column, dtype=np.int64)
    numbers = numbers[numbers != MISSING] if declared.detailed else numbers
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < len(getattr(trace, declared.texts)))


def _is_header(trace: RawTrace) -> bool:
    header = trace.header
    ranks = [header.rank or 0, (header.world_size or 1) - 1]
    return (
        all(0 <= rank <= PLAUSIBLE_RANKS for rank in ranks)
        and abs(header.base_ns) <= _MOST_BASE_NS
        and abs(trace.zero_ns) <= _MOST_BASE_NS
        and all(-(2**63) <= rank < 2**63 for group in header.process_groups for rank in group.ranks)
    )
