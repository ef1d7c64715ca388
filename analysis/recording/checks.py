"""Check that the content of a recording is consistent, so that making tables from it does not fail."""

from __future__ import annotations

from .recording import DOUBLES, INTEGERS, NUMBER_BYTES, Columns, RawTrace
from .values import MISSING, PLAUSIBLE_RANKS, Duration, Time

_TIMES = {"ts": Time, "dur": Duration}
_KINDS = {"compute", "comm", "memory"}
_MOST_BASE_NS = 2**62
_LEAST_PIDS = 3


def is_consistent(trace: RawTrace) -> bool:
    """Whether all columns exist and have one length, times are in range, and every used name exists."""
    return (
        all(_are_columns(getattr(trace, sort), {*INTEGERS[sort], *DOUBLES[sort]}) for sort in INTEGERS)
        and len(trace.kinds) == len(trace.names)
        and _KINDS.issuperset(trace.kinds)
        and _count_into(trace.activities, len(trace.names))
        and _count_into(trace.operators, len(trace.operator_names))
        and _count_into(trace.operators, len(trace.inputs), "inputs", absent=MISSING)
        and _count_into(trace.modules, len(trace.operator_names))
        and _count_into(trace.runtime, len(trace.call_names))
        and len(trace.pids) >= _LEAST_PIDS
        and _is_header(trace)
        and 0 <= trace.extent.read_bytes < _MOST_BASE_NS
        and (
            trace.damage is not None
            or trace.extent.not_understood_bytes == trace.repaired_bytes + trace.header.repaired_bytes
        )
    )


def _are_columns(columns: Columns, names: set[str]) -> bool:
    sizes = {len(column) for column in columns.values()}
    return columns.keys() == names and len(sizes) == 1 and not sizes.pop() % NUMBER_BYTES and _are_times(columns)


def _are_times(columns: Columns) -> bool:
    import numpy as np  # slow to import, and needed only if there is something to check

    for name, kind in _TIMES.items():
        if columns.get(name):
            values = np.frombuffer(columns[name], dtype=np.float64)
            limits = kind.__metadata__[0]  # type: ignore[attr-defined]
            if not (values.min() >= limits.ge and values.max() <= limits.le):  # NaN is neither
                return False
    return True


def _count_into(columns: Columns, texts: int, name: str = "name", *, absent: int | None = None) -> bool:
    """Whether every value of a column is a place in a list of so many texts, or `absent`."""
    import numpy as np

    column = np.frombuffer(columns[name], dtype=np.int64)
    column = column[column != absent] if absent is not None else column
    return not len(column) or bool(column.min() >= 0 and column.max() < texts)


def _is_header(trace: RawTrace) -> bool:
    header = trace.header
    ranks = [header.rank or 0, (header.world_size or 1) - 1]
    return (
        all(0 <= rank <= PLAUSIBLE_RANKS for rank in ranks)
        and abs(header.base_ns) <= _MOST_BASE_NS
        and abs(trace.zero_ns) <= _MOST_BASE_NS
        and all(-(2**63) <= rank < 2**63 for group in header.process_groups for rank in group.ranks)
    )
