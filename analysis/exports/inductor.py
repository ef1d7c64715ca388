"""A profile without waiting, for the profile-guided estimates of torch's compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from ...common.wording import shortened
from ..core.kinds import COMM
from ..core.schema import records
from ..errors import NothingMeasured
from ..formats.kineto.compiler_profile import ProfiledCollective, computing_events, profile
from ..results.analysis import Analysis

_SIZE = ["collective", "pg_ranks", "dtype", "out_elems"]


@dataclass(frozen=True)
class InductorProfile:
    """A profile for torch's compiler: parts of its file, and numbers of collective sizes and operators.

    `left_out` calls have no size in the trace, or could not be split into wait and transfer.
    """

    parts: tuple[bytes, ...]
    collectives: int
    operators: int
    left_out: int


def inductor_profile(analysis: Analysis, rank: int | None = None) -> InductorProfile:
    """The collectives of all ranks, and the compute of one rank in its last cycle; the first rank for None.

    Raises NothingMeasured where there is no such rank, or no collective whose transfer is known; TraceError.
    """
    run = analysis.run
    if rank is not None and rank not in run.files:
        raise NothingMeasured(f"{run.name}: has no trace of rank {rank}; there are {shortened(run.ranks, 8)}")
    known = analysis.calls.merge(analysis.participation[["call_id", "transfer_ns"]], on="call_id")
    known = known.dropna(subset=[*_SIZE, "in_elems", "transfer_ns"])
    collectives = list(_collectives(known))
    if not collectives:
        raise NothingMeasured(
            f"{run.name}: shows no collective whose size and transfer are known; sizes are in traces of torch 2.2 and "
            "newer, and transfer takes the traces of all ranks of a group"
        )
    named = set(run.activities["name"][run.activities["kind"] == COMM])
    path = run.files[min(run.files) if rank is None else rank][-1]
    computing = list(computing_events(path, named.__contains__))
    parts = tuple(profile((event for _, event in computing), collectives))
    operators = sum(is_operator for is_operator, _ in computing)
    return InductorProfile(parts, len(collectives), operators, len(analysis.calls) - len(known))


def _collectives(known: pd.DataFrame) -> Iterator[ProfiledCollective]:
    """Yield the median transfer of each size in a group: torch takes the first that fits."""
    aggregates = {"transfer_ns": "median", "in_elems": "max", "process_group": "first"}
    for row in records(known.groupby(_SIZE).agg(aggregates).reset_index()):
        ranks = tuple(sorted(map(int, row["pg_ranks"].split())))
        elems = (int(row["in_elems"]), int(row["out_elems"]))
        group = row["process_group"] or ""
        yield ProfiledCollective(row["collective"], group, ranks, row["dtype"], *elems, int(row["transfer_ns"]))
