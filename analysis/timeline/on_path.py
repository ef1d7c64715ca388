"""Pieces of the critical path on a CPU, by what it was in: one piece of a whole step says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..core.markers import STEERING
from ..core.schema import Row, records
from ..results.analysis import Analysis
from .ranks import RankClock

_MOST_RANKS = 4
"""Ranks whose CPUs are read for it: those on whose CPU the path is longest."""
_LEAST_FRAC = 0.002
"""Of a piece: what is shorter is not told apart from what surrounds it."""
_SPAN = ["name", "start_ns", "dur_ns"]


def by_annotation(pieces: pd.DataFrame, analysis: Analysis) -> pd.DataFrame:
    """The pieces, those on CPUs cut where their outermost annotations and operators begin and end."""
    of_cpu = pieces[pieces["kind"] == "cpu"]
    if not analysis.run.details or not len(of_cpu):
        return pieces
    ranks = of_cpu.groupby("rank")["dur_ns"].sum().nlargest(_MOST_RANKS).index
    clocks = {row["rank"]: row for row in records(analysis.clocks)}
    work = {rank: _outermost(analysis, clocks[rank]) for rank in ranks.tolist() if rank in clocks}
    rows = [
        part
        for row in records(pieces)
        for part in (_cut(row, work[row["rank"]]) if row["kind"] == "cpu" and row["rank"] in work else [row])
    ]
    return pd.DataFrame(rows, columns=pieces.columns).astype(pieces.dtypes.to_dict())


def _outermost(analysis: Analysis, clock: Row) -> pd.DataFrame:
    """Annotations and operators of a rank that are in no other, in order, on the common clock; steps excepted."""
    tables = analysis.detailed(clock["rank"])
    work = pd.concat([tables.annotations[_SPAN], tables.cpu_operators[_SPAN]], ignore_index=True)
    work = work[~work["name"].str.match(STEERING).fillna(False).astype(bool)]
    work = work.sort_values(["start_ns", "dur_ns"], ascending=[True, False], kind="stable")
    start_ns = work["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + work["dur_ns"].to_numpy(dtype=np.int64)
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end_ns)[:-1]))[: len(work)]
    outer = end_ns > before
    common = RankClock(clock).common
    return pd.DataFrame({
        "name": work["name"].to_numpy()[outer],
        "start_ns": common(np.maximum(start_ns, before)[outer]),
        "end_ns": common(end_ns[outer]),
    })  # fmt: skip


def _cut(piece: Row, work: pd.DataFrame) -> Iterator[Row]:
    """The parts of a piece: what the CPU was in, and the rest between."""
    begin, end = piece["start_ns"], piece["start_ns"] + piece["dur_ns"]
    # In order, and none overlaps another.
    first = int(work["end_ns"].searchsorted(begin, side="right"))
    inside = work.iloc[first : int(work["start_ns"].searchsorted(end, side="left"))]
    at, least = begin, _LEAST_FRAC * piece["dur_ns"]
    for row in records(inside):
        since, until = max(row["start_ns"], at), min(row["end_ns"], end)
        if until - since < least:
            continue
        if since > at:
            yield {**piece, "name": "outside of operators", "start_ns": at, "dur_ns": since - at}
        yield {**piece, "name": row["name"], "start_ns": since, "dur_ns": until - since}
        at = until
    if at < end:
        rest = {} if at == begin else {"name": "outside of operators", "start_ns": at, "dur_ns": end - at}
        yield {**piece, **rest}
