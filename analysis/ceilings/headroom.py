"""Compare bandwidth with a ceiling: the same collective over as many ranks, with nothing else running."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.schema import Row, records
from ..core.tables.communication import CEILING

_KEYS = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


def compared_with(ceiling: pd.DataFrame | None, bandwidth: pd.DataFrame) -> Iterator[Row]:
    """The rows of the bandwidth table with the ceiling of each, and the fraction that is reached.

    The ceiling is interpolated between neighbouring sizes, linearly in the logarithm of the size, and never
    extrapolated. Where it was measured more than once for a size (other dtypes, in place and out of place) the largest
    counts.
    """
    known = CEILING.empty() if ceiling is None else ceiling
    best = known.groupby(["collective", "group_size", "size_bytes"])["busbw_gb_per_s"].max().reset_index()
    return (row | _compared(row, best) for row in records(bandwidth))


def _compared(row: Row, best: pd.DataFrame) -> Row:
    ranks = len(row["pg_ranks"].split()) if row["pg_ranks"] else None
    same = best[best["collective"] == row["collective"]]
    of_ranks = same[same["group_size"] == ranks]
    sizes = of_ranks["size_bytes"].to_numpy(dtype=np.float64)
    note = _why_not(row, ranks, same, sizes)
    if note is not None:
        return {"ceiling_note": note}
    logs, measured = np.log(sizes), of_ranks["busbw_gb_per_s"].to_numpy(dtype=np.float64)
    limit = float(np.interp(np.log(row["size_bytes"]), logs, measured))
    reached = row["busbw_gb_per_s"]
    compared: Row = {"ceiling_busbw_gb_per_s": limit}
    if reached is None:
        return compared | {"ceiling_note": "its own bandwidth is not known"}
    if not limit:
        return compared | {"ceiling_note": "the ceiling is 0: one rank alone moves nothing"}
    return compared | {"of_ceiling_frac": reached / limit}


def _why_not(row: Row, ranks: int | None, same: pd.DataFrame, sizes: NDArray[np.float64]) -> str | None:
    """Why a row has no ceiling; None if it has one."""
    if not len(same):
        return f"the ceiling has no {row['collective'] or 'collective without a name'}"
    if ranks is None:
        return "the number of ranks is not known"
    if not len(sizes):
        known = ", ".join(str(n) for n in sorted(same["group_size"].unique().tolist()))
        return f"the ceiling is of {known} ranks, not of {ranks}"
    if not sizes.min() <= row["size_bytes"] <= sizes.max():
        return f"outside the sizes of the ceiling, {int(sizes.min()):,} to {int(sizes.max()):,} bytes"
    return None


def with_share(verdicts: pd.DataFrame, bandwidth: pd.DataFrame, column: str, of_what: str) -> pd.DataFrame:
    """Say in verdicts of transfer-bound rows which fraction `of_what` they reach, by this column of bandwidths."""
    reached = {tuple(row[key] for key in _KEYS): row[column] for row in records(bandwidth)}
    because = [
        f"{row['because']}, at {frac:.0%} of {of_what}"
        if row["verdict"] == "transfer-bound" and (frac := reached.get(tuple(row[key] for key in _KEYS))) is not None
        else row["because"]
        for row in records(verdicts)
    ]
    return verdicts.assign(because=pd.Series(because, index=verdicts.index, dtype="string"))
