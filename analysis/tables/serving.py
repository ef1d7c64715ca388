"""Steps by kind and size: how long each takes, tokens a second, and what a token costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...common.wording import counted
from ..core.declaring import TableEntry, Topic, each_rank, value
from ..core.frames import np, pd
from ..core.schema import Row, Schema, grouped, records
from ..core.tables.columns import KIND, PARTIAL, PARTIAL_RUN, RANK, REQUESTS, TOKENS
from ..metrics.compute.peaks import DevicePeaks
from ..metrics.typical_step import EDGES, Replicas, without_unseen

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENGINE = ("string", "which of several engines whose traces were found together; NA if there is one")
_PER_GPU = ("Float64", "the same / number of devices; NA also if ranks have no trace")

SERVING = Schema("serving", "engine, kind and size of steps, all devices together", {
    "engine": _ENGINE,
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "steps": ("int64", "steps of this kind and size, without those at the edges of a capture that are not whole"),
    "window_ns": ("int64", "length of a step, median over these steps, of which each is a mean over the devices"),
    "exposed_wait_ns": ("Int64", "exposed communication that waits for other ranks, median; NA if nothing was split"),
    "exposed_transfer_ns": ("Int64", "exposed communication that moves data, median; NA if nothing was split"),
    "exposed_unsplit_ns": ("int64", "exposed communication that may be waiting or transfer, median"),
    "exposed_comm_ns": ("int64", "all three, median: medians do not add up"),
    "idle_ns": ("int64", "nothing runs, median"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths; NA if the tokens are not known"),
    "tokens_per_s_per_gpu": _PER_GPU,
    "exposed_us_per_token": ("Float64", "exposed communication of all these steps / their tokens"),
    "exposed_frac": ("Float64", "exposed communication of all these steps / their lengths"),
    "note": ("string", "why tokens are not known, and what is not counted of a step; else NA"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

SERVING_RANKS = Schema("serving_ranks", "engine, rank and kind of the rank's own steps", {
    "engine": _ENGINE,
    "replica": (
        "Int64",
        "which replica of the engine it is of, from 0: ranks of one serve the same requests; NA if that is not known",
    ),
    "rank": RANK,
    "kind": KIND,
    "steps": ("int64", "steps that are of this kind on this rank, without those at the edges that are not whole"),
    "requests": ("Int64", "requests of a step, median; NA if an annotation does not say"),
    "tokens": ("Int64", "tokens of all these steps; NA if an annotation does not say"),
    "window_ns": ("int64", "length of a step on this rank, median"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths: ranks of one replica have the same tokens"),
    "partial": PARTIAL,
})  # fmt: skip

SERVING_FLOORS = Schema("serving_floors", "engine, kind and size of steps, mean over the devices", {
    "engine": _ENGINE,
    "kind": KIND,
    "requests": REQUESTS,
    "tokens": TOKENS,
    "steps": ("int64", "steps of this kind and size, without those at the edges of a capture that are not whole"),
    "window_ns": ("int64", "length of a step, median over these steps"),
    "weights_bytes": ("Int64", "weights that a device multiplies with in a step, median; NA if no shapes are known"),
    "cache_bytes": ("Int64", "keys and values that attention reads at least, median; NA if nothing tells"),
    "cache_most_bytes": ("Int64", "those that it reads at most: all that the pages hold; NA if no shape tells"),
    "floor_ns": ("Int64", "what reading these takes at least; NA if no bandwidth of memory is known of the device"),
    "floor_most_ns": ("Int64", "the same if attention reads cache_most_bytes"),
    "floor_frac": ("Float64", "floor_ns / window_ns: the part of a step that no faster kernel would save"),
    "note": ("string", "what is not known, and why"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

SERVING_FITS = Schema("serving_fits", "engine and kind of step, all devices together", {
    "engine": _ENGINE,
    "kind": KIND,
    "steps": ("int64", "steps of this kind, without those at the edges that are not whole"),
    "exposed_frac": ("Float64", "exposed communication of all these steps / their lengths"),
    "steps_with_tokens": ("int64", "those of them whose tokens are known; what follows is of these"),
    "sizes": ("int64", "different numbers of tokens among them"),
    "tokens_min": ("Int64", "the fewest tokens of a step"),
    "tokens_max": ("Int64", "the most"),
    "tokens_per_s": ("Float64", "tokens of all these steps / their lengths"),
    "tokens_per_s_per_gpu": _PER_GPU,
    "exposed_us_per_token": (
        "Float64",
        "exposed communication of all these steps / their tokens: what tensor parallelism costs a token",
    ),
    "exposed_wait_us_per_token": ("Float64", "the part of it that waits; NA if nothing was split in some step"),
    "exposed_transfer_us_per_token": ("Float64", "the part of it that moves data; NA likewise"),
    "intercept_us": ("Float64", "of length = intercept + slope x tokens: what a step takes however few tokens it has"),
    "slope_us_per_token": ("Float64", "what each token adds"),
    "r2_frac": ("Float64", "part of the variance of the lengths that the fit explains"),
    "residual_us": ("Float64", "standard deviation of the lengths from the fit"),
    "note": ("string", "why tokens are not known, or why there is no fit, and what is not counted of a step"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_NO_KINDS = (
    "no annotation gives the kind of a step, or ranks disagree on it; vLLM, SGLang and others annotate it; "
    "otherwise name it with --steps and a group named kind"
)

_SPLIT = ["exposed_wait_ns", "exposed_transfer_ns"]
_EXPOSED = [*_SPLIT, "exposed_unsplit_ns"]
_MEDIANS = ["window_ns", *_EXPOSED, "exposed_comm_ns", "idle_ns"]
_SIZE = ["kind", "requests", "tokens"]
_LEAST_SIZES = 3
"""A line goes through two sizes whatever they are. The note on it says three."""


@TableEntry(
    SERVING,
    Topic.time,
    "Steps by kind and size: time, tokens a second, what a token costs.",
    "serving.md#by-kind-and-size",
    command="serving",
    after="steps",
    none_measured=_NO_KINDS,
    optional=("engine",),
    narrow=(
        "engine",
        "kind",
        "tokens",
        "steps",
        "window_ns",
        "tokens_per_s",
        "exposed_us_per_token",
        "exposed_frac",
        "note",
    ),
    below="note",
)
def serving(steps: pd.DataFrame, step_marks: pd.DataFrame, engine_replicas: Replicas) -> pd.DataFrame:
    """One row per kind and size of steps: how long they take, tokens a second, and what a token costs.

    Steps of no known kind are left out. A step that is longer than others of its kind counts: its size may be the
    reason. `step_marks` and `engine_replicas` tell why tokens are not known.
    """
    whole, gpus = _whole(steps), _gpus(steps, engine_replicas)
    return SERVING.frame(
        {
            **dict(zip(_SIZE, size, strict=True)),
            "steps": len(own),
            **{name: None if own[name].isna().all() else round(float(own[name].median())) for name in _MEDIANS},
            **_of_tokens(own, gpus),
            "exposed_frac": _exposed_frac(own),
            "note": _note(_no_tokens(own, step_marks, engine_replicas), *_unseen(own)),
        }
        for size, own in whole.groupby(_SIZE, sort=True, dropna=False)
    )


def of_engines(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables of several engines, by their names, as one."""
    named = (own.assign(engine=pd.array([name] * len(own), dtype="string")) for name, own in tables.items())
    return pd.concat(named, ignore_index=True)


@TableEntry(
    SERVING_RANKS,
    Topic.time,
    "What each rank serves: of replicas, one may decode while another prefills.",
    "serving.md#replicas",
    command="serving --by rank",
    none_measured=_NO_KINDS,
    optional=("engine",),
)
def serving_ranks(
    steps: pd.DataFrame, breakdown_steps: pd.DataFrame, step_marks: pd.DataFrame, engine_replicas: Replicas
) -> pd.DataFrame:
    """One row per rank and kind of its own steps, which differ between replicas.

    Steps at the edges of a capture that are not whole are left out.
    """
    marks = step_marks[step_marks["kind"].notna()]
    lengths = breakdown_steps.groupby(["rank", "step"], as_index=False)["window_ns"].mean()
    edges = steps["step"][steps["left_out"].isin(EDGES)]
    own_steps = marks.merge(lengths[~lengths["step"].isin(edges)], on=["rank", "step"])
    return SERVING_RANKS.frame(
        {
            "replica": (engine_replicas.of_rank or {}).get(rank),
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


@value
@each_rank
def serving_reads(
    steps: pd.DataFrame, step_marks: pd.DataFrame, computed: pd.DataFrame, device_peaks: DevicePeaks
) -> list[Row]:
    """What each device must read in each step."""
    from ..metrics.compute.least_bytes import reads_of_devices

    return list(reads_of_devices(steps, step_marks, computed, device_peaks))


@TableEntry(
    SERVING_FLOORS,
    Topic.time,
    "How long a step takes at least: to read weights and cache.",
    "serving.md#the-least-that-a-step-takes",
    command="serving --by floor",
    none_measured=_NO_KINDS,
    optional=("engine",),
    below="note",
    by_launch=True,
)
def serving_floors(steps: pd.DataFrame, serving_reads: list[Row]) -> pd.DataFrame:
    """One row per kind and size of steps: how long reading weights and cache takes at least. Needs `details`."""
    from ..metrics.compute.least_bytes import floors

    return SERVING_FLOORS.frame(floors(steps, serving_reads))


@TableEntry(
    SERVING_FITS,
    Topic.time,
    "The same by kind, with a fit of time over tokens.",
    "serving.md#time-over-tokens",
    command="serving --by kind",
    none_measured=_NO_KINDS,
    optional=("engine",),
    narrow=(
        "engine",
        "kind",
        "steps",
        "exposed_us_per_token",
        "exposed_frac",
        "intercept_us",
        "slope_us_per_token",
        "note",
    ),
    below="note",
)
def serving_fits(steps: pd.DataFrame, step_marks: pd.DataFrame, engine_replicas: Replicas) -> pd.DataFrame:
    """One row per kind of step: its time over its tokens, as a straight line, by least squares.

    Source: numpy.polyfit; r2 = 1 - sum of squared residuals / sum of squared deviations from the mean. The standard
    deviation of the residuals of n steps divides by n - 2, as the line has two parameters.
    """
    gpus = _gpus(steps, engine_replicas)
    return SERVING_FITS.frame(
        _of_kind(str(kind), own, _no_tokens(own, step_marks, engine_replicas), gpus)
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
