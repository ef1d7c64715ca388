"""Steps by kind and size: how long each takes, tokens a second, and what a token costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...common.wording import counted
from ..core.schema import Row, grouped, records
from ..core.tables.serving import SERVING, SERVING_FITS, SERVING_RANKS
from .typical_step import EDGES, Replicas, without_unseen

_SPLIT = ["exposed_wait_ns", "exposed_transfer_ns"]
_EXPOSED = [*_SPLIT, "exposed_unsplit_ns"]
_MEDIANS = ["window_ns", *_EXPOSED, "exposed_comm_ns", "idle_ns"]
_SIZE = ["kind", "requests", "tokens"]
_LEAST_SIZES = 3
"""A line goes through two sizes whatever they are. The note on it says three."""


def serving(steps: pd.DataFrame, step_marks: pd.DataFrame, replicas: Replicas) -> pd.DataFrame:
    """One row per kind, number of requests and of tokens, from the table `steps`. Steps of no known kind are left out.

    A step that is longer than others of its kind counts: its size may be the reason. `step_marks` and `replicas` tell
    why tokens are not known.
    """
    whole, gpus = _whole(steps), _gpus(steps, replicas)
    return SERVING.frame(
        {
            **dict(zip(_SIZE, size, strict=True)),
            "steps": len(own),
            **{name: None if own[name].isna().all() else round(float(own[name].median())) for name in _MEDIANS},
            **_of_tokens(own, gpus),
            "exposed_frac": _exposed_frac(own),
            "note": _note(_no_tokens(own, step_marks, replicas), *_unseen(own)),
        }
        for size, own in whole.groupby(_SIZE, sort=True, dropna=False)
    )


def of_engines(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables of several engines, by their names, as one."""
    named = (own.assign(engine=pd.array([name] * len(own), dtype="string")) for name, own in tables.items())
    return pd.concat(named, ignore_index=True)


def serving_ranks(
    steps: pd.DataFrame, breakdown_steps: pd.DataFrame, step_marks: pd.DataFrame, replicas: Replicas
) -> pd.DataFrame:
    """One row per rank and kind of its own steps: with data parallelism, one rank may decode while another prefills.

    Steps at the edges of a capture that are not whole are left out.
    """
    marks = step_marks[step_marks["kind"].notna()]
    lengths = breakdown_steps.groupby(["rank", "step"], as_index=False)["window_ns"].mean()
    edges = steps["step"][steps["left_out"].isin(EDGES)]
    own_steps = marks.merge(lengths[~lengths["step"].isin(edges)], on=["rank", "step"])
    return SERVING_RANKS.frame(
        {
            "replica": (replicas.of_rank or {}).get(rank),
            "rank": rank,
            "kind": kind,
            "steps": len(own),
            "requests": None if own["requests"].isna().any() else round(float(own["requests"].median())),
            "tokens": None if own["tokens"].isna().any() else int(own["tokens"].sum()),
            "window_ns": round(float(own["window_ns"].median())),
            "tokens_per_s": _per_s(own),
        }
        for (rank, kind), own in grouped(own_steps, ["rank", "kind"])
    )


def serving_fits(steps: pd.DataFrame, step_marks: pd.DataFrame, replicas: Replicas) -> pd.DataFrame:
    """One row per kind of step: a straight line through the lengths of its steps over their tokens, by least squares.

    Source: numpy.polyfit; r2 = 1 - sum of squared residuals / sum of squared deviations from the mean. The standard
    deviation of the residuals of n steps divides by n - 2, as the line has two parameters.
    """
    gpus = _gpus(steps, replicas)
    return SERVING_FITS.frame(
        _of_kind(str(kind), own, _no_tokens(own, step_marks, replicas), gpus)
        for kind, own in _whole(steps).groupby("kind", sort=True)
    )


def _whole(steps: pd.DataFrame) -> pd.DataFrame:
    known = steps[steps["kind"].notna() & ~steps["left_out"].isin(EDGES)]
    split = (known["exposed_unsplit_ns"] == 0) | (known[_SPLIT].sum(axis=1) > 0)
    exposed = known[_EXPOSED].sum(axis=1)
    return known.assign(exposed_comm_ns=exposed, **{name: known[name].astype("Int64").where(split) for name in _SPLIT})


def _gpus(steps: pd.DataFrame, replicas: Replicas) -> int | None:
    """How many devices serve the tokens; None if some have no trace."""
    return int(steps["devices"].max()) if len(steps) and replicas.are_all else None


def _of_tokens(steps: pd.DataFrame, gpus: int | None) -> Row:
    """Tokens a second, and exposed communication of a token; NA if tokens of any step are not known."""
    tokens, per_s = 0 if steps["tokens"].isna().any() else int(steps["tokens"].sum()), _per_s(steps)
    return {
        "tokens_per_s": per_s,
        "tokens_per_s_per_gpu": None if per_s is None or gpus is None else per_s / gpus,
        "exposed_us_per_token": _us_per(tokens, steps["exposed_comm_ns"]),
    }


def _per_s(steps: pd.DataFrame) -> float | None:
    tokens = 0 if steps["tokens"].isna().any() else int(steps["tokens"].sum())
    total_ns = float(steps["window_ns"].sum())
    return tokens / total_ns * 1e9 if tokens and total_ns else None


def _us_per(tokens: int, times_ns: pd.Series[int]) -> float | None:
    return int(times_ns.sum()) / tokens / 1e3 if tokens and times_ns.notna().all() else None


def _exposed_frac(steps: pd.DataFrame) -> float | None:
    total_ns = int(steps["window_ns"].sum())
    return int(steps["exposed_comm_ns"].sum()) / total_ns if total_ns else None


def _no_tokens(steps: pd.DataFrame, step_marks: pd.DataFrame, replicas: Replicas) -> str | None:
    """Why tokens of some of these steps are not known; None if they are."""
    without = steps["step"][steps["tokens"].isna()]
    if not len(without):
        return None
    said = step_marks[step_marks["step"].isin(without)]["tokens"].notna().any()
    why = "no annotation says how many tokens"
    if said and len({*(replicas.of_rank or {}).values()}) > 1 and not replicas.are_all:
        why = "ranks serve requests of their own, and some have no trace,"
    elif said:
        why = "ranks have different numbers of tokens"
    elif (steps["kind"] == "decode").all() and steps["requests"].notna().all():
        why += ", at least one for each request,"
    return f"{why} in {f'{len(without):,} of ' if len(without) < len(steps) else ''}{counted(len(steps), 'step')}"


def _of_kind(kind: str, steps: pd.DataFrame, no_tokens: str | None, gpus: int | None) -> Row:
    own = steps[steps["tokens"].notna()]
    tokens, length_us = own["tokens"].to_numpy(np.float64), own["window_ns"].to_numpy(np.float64) / 1e3
    sizes = len(np.unique(tokens))
    notes = [no_tokens, *_unseen(steps)]
    row: Row = {
        "kind": kind,
        "steps": len(steps),
        "exposed_frac": _exposed_frac(steps),
        "steps_with_tokens": len(own),
        "sizes": sizes,
        "tokens_min": int(tokens.min()) if len(own) else None,
        "tokens_max": int(tokens.max()) if len(own) else None,
        **_of_tokens(own, gpus),
        **{f"{name.removesuffix('_ns')}_us_per_token": _us_per(int(tokens.sum()), own[name]) for name in _SPLIT},
    }
    if sizes >= _LEAST_SIZES:
        row |= _fit(tokens, length_us)
    elif sizes:
        such = "all steps" if len(own) == len(steps) else "all others"
        few = f"{such} have the same number" if sizes == 1 else f"there are only {sizes} different numbers"
        notes.append(f"{few} of tokens; a fit needs three")
    return {**row, "note": _note(*notes)}


def _note(*parts: str | None) -> str | None:
    return "; ".join(filter(None, parts)) or None


def _unseen(steps: pd.DataFrame) -> Iterator[str]:
    """Yield for each step that waited for work from before the trace how long, which is no part of it."""
    for row in records(steps[steps["unseen_ns"].notna()]):
        yield f"step {row['step']} {without_unseen(row['unseen_ns'])}"


def _fit(tokens: NDArray[np.float64], length_us: NDArray[np.float64]) -> Row:
    slope, intercept = np.polyfit(tokens, length_us, 1)
    spread = float(((length_us - length_us.mean()) ** 2).sum())
    missed = float(((length_us - intercept - slope * tokens) ** 2).sum())
    return {
        "intercept_us": float(intercept),
        "slope_us_per_token": float(slope),
        "r2_frac": 1 - missed / spread if spread else None,
        "residual_us": math.sqrt(missed / (len(tokens) - 2)),
    }
