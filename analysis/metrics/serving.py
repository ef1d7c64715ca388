"""Steps by kind and size: how long each takes, tokens a second, and what a token costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...common.wording import counted
from ..core.schema import Row
from ..core.tables.serving import SERVING, SERVING_FITS
from .typical_step import EDGES

_SPLIT = ["exposed_wait_ns", "exposed_transfer_ns"]
_EXPOSED = [*_SPLIT, "exposed_unsplit_ns"]
_MEDIANS = ["window_ns", *_EXPOSED, "exposed_comm_ns", "idle_ns"]
_SIZE = ["kind", "requests", "tokens"]
_LEAST_SIZES = 3
"""A line goes through two sizes whatever they are."""


def serving(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per kind, number of requests and of tokens, from the table `steps`. Steps of no known kind are left out.

    A step that is longer than others of its kind counts: its size may be the reason.
    """
    whole = _whole(steps)
    return SERVING.frame(
        {
            **dict(zip(_SIZE, size, strict=True)),
            "steps": len(own),
            **{name: None if own[name].isna().all() else round(float(own[name].median())) for name in _MEDIANS},
            **_of_tokens(own),
        }
        for size, own in whole.groupby(_SIZE, sort=True, dropna=False)
    )


def serving_fits(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per kind of step: a straight line through the lengths of its steps over their tokens, by least squares.

    Source: numpy.polyfit; r2 = 1 - sum of squared residuals / sum of squared deviations from the mean.
    """
    whole = _whole(steps)
    return SERVING_FITS.frame(_fit(str(kind), own) for kind, own in whole.groupby("kind", sort=True))


def _whole(steps: pd.DataFrame) -> pd.DataFrame:
    known = steps[steps["kind"].notna() & ~steps["left_out"].isin(EDGES)]
    split = (known["exposed_unsplit_ns"] == 0) | (known[_SPLIT].sum(axis=1) > 0)
    exposed = known[_EXPOSED].sum(axis=1)
    return known.assign(exposed_comm_ns=exposed, **{name: known[name].astype("Int64").where(split) for name in _SPLIT})


def _of_tokens(steps: pd.DataFrame) -> Row:
    """Tokens a second, and exposed communication of a token; NA if tokens of any step are not known."""
    tokens = 0 if steps["tokens"].isna().any() else int(steps["tokens"].sum())
    total_ns = int(steps["window_ns"].sum())
    return {
        "tokens_per_s": tokens / total_ns * 1e9 if tokens and total_ns else None,
        "exposed_us_per_token": int(steps["exposed_comm_ns"].sum()) / tokens / 1e3 if tokens else None,
    }


def _fit(kind: str, steps: pd.DataFrame) -> Row:
    own = steps[steps["tokens"].notna()]
    tokens, length_us = own["tokens"].to_numpy(np.float64), own["window_ns"].to_numpy(np.float64) / 1e3
    sizes = len(np.unique(tokens))
    row: Row = {
        "kind": kind,
        "steps": len(own),
        "sizes": sizes,
        "tokens_min": int(tokens.min()) if len(own) else None,
        "tokens_max": int(tokens.max()) if len(own) else None,
        **_of_tokens(own),
    }
    if not sizes:
        return {**row, "note": "no annotation of its steps says how many tokens it has"}
    if sizes < _LEAST_SIZES:
        return {**row, "note": f"{counted(sizes, 'number')} of tokens, and a fit needs {_LEAST_SIZES} different ones"}
    slope, intercept = np.polyfit(tokens, length_us, 1)
    spread = float(((length_us - length_us.mean()) ** 2).sum())
    missed = float(((length_us - intercept - slope * tokens) ** 2).sum())
    return {
        **row,
        "intercept_us": float(intercept),
        "slope_us_per_token": float(slope),
        "r2_frac": 1 - missed / spread if spread else None,
    }
