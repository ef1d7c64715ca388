"""How fast operators computed, by the shapes and types of their inputs. Definitions: docs/metrics/compute.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from statistics import harmonic_mean
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from ...core.arrays import Ints
from ...core.given_peaks import MEMORY_PEAK
from ...core.schema import Row, bare, combined, flags_of_texts, records, text_codes
from .categories import category, takes_float32_as_tf32, uses_tensor_cores
from .flops import causally_masked_frac, flops, most_flops, multiplied_dtype
from .moved_bytes import moved_bytes
from .operators import Amount, NotRecorded, ProfiledOperator, list_item_bytes
from .peaks import DevicePeaks, Peak

TF32 = "tf32"
_MOST_LISTED = 4
_MOST, _IMPLAUSIBLE = 1 << 80, "its shapes are implausible"
SHORT_NS = 10_000
"""A kernel shorter than that is over before the next one can be launched."""


class Formula(NamedTuple):
    """What shapes say of each call of an operator: FLOPs and bytes, None with the reason, and its dtype.

    `most_flop` is how many FLOPs there can be at most, None where that is not known. Of `flop`, a causal mask
    leaves out `masked_flop`.
    """

    flop: int | None
    most_flop: int | None
    reason: str
    moved_bytes: int | None
    dtype: str | None
    shapes: str
    masked_flop: int = 0


@lru_cache(maxsize=1 << 14)  # few operators of a model differ, and all ranks have the same
def formula_of(name: str, inputs: str, item_bytes: int | None = None) -> Formula:
    """Evaluate the formulas of an operator; `inputs` is the JSON of shapes, types and values.

    `item_bytes` are those of an element in its lists of tensors, if known.
    """
    dims, types, values = (each if isinstance(each, list) else None for each in msgspec.json.decode(inputs))
    texts = None if types is None else [kind if isinstance(kind, str) else "" for kind in types]
    operator = ProfiledOperator(name, dims, texts, values, item_bytes)
    flop, moved = flops(operator), moved_bytes(operator)
    most = most_flops(operator) if flop.value is None else flop.value
    if max(most or 0, moved.value or 0) > _MOST:
        flop, moved, most = Amount(None, _IMPLAUSIBLE), Amount(None, _IMPLAUSIBLE), None
    try:
        tensors = [tensor for tensor in operator.tensors_alone() if tensor.shape]
    except NotRecorded:
        tensors = []
    dtype = multiplied_dtype(operator) or next((tensor.dtype for tensor in tensors), None)
    shapes = " ".join(filter(None, map(_shape, dims or ())))
    masked = 0 if flop.value is None else round(flop.value * causally_masked_frac(operator))
    return Formula(flop.value, most, flop.reason, moved.value, dtype, shapes, masked)


def _shape(dims: Any) -> str:
    """`8x16` for a tensor, `[8x16 8]` for a list of tensors; empty for anything else."""
    if not isinstance(dims, list) or not dims:
        return ""
    if not all(isinstance(each, list) for each in dims):
        return "x".join(map(str, dims))
    more = [f"and {len(dims) - _MOST_LISTED} more"] if len(dims) > _MOST_LISTED else []
    return f"[{' '.join([*filter(None, map(_shape, dims[:_MOST_LISTED])), *more])}]"


def shape_sums(work: pd.DataFrame) -> pd.DataFrame:
    """One row per operator, inputs and device: what the calls took, those that ran as TF32 by themselves.

    `work` is from `compute_work`, with the `company` of each row. Bytes of an element are NA where some call does not
    say them.
    """
    known = work.dropna(subset=["operator", "inputs", "call"])
    kernel = known["kernel"]
    item_bytes = {name: list_item_bytes(name) for name in kernel.dropna().unique()}
    codes = [text_codes(known[name])[0] for name in ("operator", "inputs")]
    # Groups of many texts are slow to make of the texts, and slower to make names of rows of.
    call, first = combined([*codes, bare(known["rank"]), known["call"].to_numpy(dtype=np.int64)])
    calls = pd.DataFrame({
        "device": known["device"],
        "total_ns": known["dur_ns"],
        "kernel": kernel,
        "tensor_ns": known["dur_ns"].where(flags_of_texts(kernel, lambda name: uses_tensor_cores(name) is True), 0),
        "told_ns": known["dur_ns"].where(flags_of_texts(kernel, lambda name: uses_tensor_cores(name) is not None), 0),
        "tf32": flags_of_texts(kernel, takes_float32_as_tf32),
        "item_bytes": kernel.map(item_bytes).astype("Float64"),
        "alone": (known["beside"] == "").fillna(value=False).astype(bool),
    }).groupby(call, sort=False).agg(
        device=("device", "first"),
        total_ns=("total_ns", "sum"),
        kernels=("kernel", "count"),
        kernel=("kernel", "first"),
        tensor_ns=("tensor_ns", "sum"),
        told_ns=("told_ns", "sum"),
        tf32=("tf32", "any"),
        least_bytes=("item_bytes", "min"),
        most_bytes=("item_bytes", "max"),
        alone=("alone", "all"),
    )  # fmt: skip
    calls["alone_ns"] = calls["total_ns"].where(calls["alone"], 0)
    named = known[["operator", "inputs", "rank"]].iloc[first].reset_index(drop=True)
    same = [*(each[first] for each in codes), bare(named["rank"]), text_codes(calls["device"])[0]]
    number, kinds = combined([*same, bare(calls["tf32"]).astype(int)])
    alike = calls.groupby(number, sort=False)
    told = alike["least_bytes"].count() == alike.size()
    sums = alike.agg(
        calls=("total_ns", "size"),
        total_ns=("total_ns", "sum"),
        min_ns=("total_ns", "min"),
        max_ns=("total_ns", "max"),
        kernels=("kernels", "sum"),
        tensor_ns=("tensor_ns", "sum"),
        told_ns=("told_ns", "sum"),
        least_bytes=("least_bytes", "min"),
        most_bytes=("most_bytes", "max"),
        alone_calls=("alone", "sum"),
        alone_ns=("alone_ns", "sum"),
    ).assign(least_bytes=lambda sums: sums["least_bytes"].where(told))  # fmt: skip
    of_first = calls[["device", "kernel", "tf32"]].iloc[kinds].reset_index(drop=True)
    return pd.concat([named.iloc[kinds].reset_index(drop=True), of_first, sums.reset_index(drop=True)], axis=1)


def shape_rows(sums: pd.DataFrame, peaks: DevicePeaks) -> list[Row]:
    """One row per operator and inputs over all ranks and devices, the one that took longest first.

    What ran as TF32 in some calls and as float32 in others has a row for each. `sums` are `shape_sums` of all ranks;
    `peaks` are those of each device.
    """
    whole_ns = int(sums["total_ns"].sum())
    rows = [
        _row(str(name), str(inputs), dtype, of_shape, whole_ns, peaks)
        for (name, inputs), of_both in sums.groupby(["operator", "inputs"], sort=False)
        for dtype, of_shape in _by_precision(formula_of(str(name), str(inputs)).dtype, of_both)
    ]
    rows.sort(key=lambda row: (-row["total_ns"], row["operator"], row["inputs"] or ""))
    return rows


def time_by_shape(work: pd.DataFrame) -> pd.DataFrame:
    """The rows of `work` with the shapes of inputs in the words of `shapes`, and their dtype.

    All three are NA where no operator with shapes launched it.
    """
    number, pairs = combinations_of(work, ["operator", "inputs"])
    formulas = [formula_of(row["operator"], row["inputs"]) if row["inputs"] is not None else None for row in pairs]
    said = {
        "operator": [
            None if formula is None else row["operator"] for row, formula in zip(pairs, formulas, strict=True)
        ],
        "inputs": [None if formula is None else formula.shapes or None for formula in formulas],
        "dtype": [None if formula is None else formula.dtype for formula in formulas],
    }
    return work.assign(**{name: pd.array(texts, dtype="string").take(number) for name, texts in said.items()})


def combinations_of(table: pd.DataFrame, texts: list[str]) -> tuple[Ints, list[Row]]:
    """The number of each row's combination of these columns, and the combinations in order of first use.

    Names and inputs repeat in every step and on every rank: what depends on them is worked out once for each.
    """
    number, first = combined(text_codes(table[column])[0] for column in texts)
    return number, records(table[texts].iloc[first])


def category_sums(work: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, category and operator of what ran; `work` is from `compute_work`."""
    number, distinct = combinations_of(work, ["operator", "inputs", "kernel"])
    kind = pd.array([category(row["operator"], row["kernel"]) for row in distinct], dtype="string")
    flop = pd.array([_flop(row["operator"], row["inputs"]) for row in distinct], dtype="Float64")
    # A call with several kernels has its FLOPs once, all its kernels are of known FLOPs.
    first = ~work.duplicated(["rank", "call"]) & work["call"].notna()
    of_call = pd.Series(flop.take(number), work.index)
    table = work.assign(
        category=kind.take(number),
        flop=of_call.where(first, other=0.0),
        known_ns=work["dur_ns"].where(of_call.notna(), other=0),
        short=(work["dur_ns"] < SHORT_NS) & work["kernel"].notna(),
    )
    return table.groupby(["rank", "category", "operator"], dropna=False, sort=False).agg(
        kernels=("dur_ns", "size"),
        total_ns=("dur_ns", "sum"),
        known_ns=("known_ns", "sum"),
        flop=("flop", "sum"),
        short=("short", "sum"),
    ).reset_index()  # fmt: skip


def category_rows(sums: pd.DataFrame) -> list[Row]:
    """One row per category of what ran, the one that took longest first; what no operator launched is in it, too.

    `sums` are `category_sums` of all ranks.
    """
    whole_ns = int(sums["total_ns"].sum())
    rows: list[Row] = []
    for name, own in sums.groupby("category", sort=False):
        total_ns, known_ns, flops_known = (own[column].sum() for column in ("total_ns", "known_ns", "flop"))
        total_ns, known_ns, flops_known = int(total_ns), int(known_ns), float(flops_known)
        rows.append({
            "category": str(name),
            "operators": int(own["operator"].nunique()),
            "kernels": int(own["kernels"].sum()),
            "total_ns": total_ns,
            "share_frac": _frac(total_ns, whole_ns),
            "with_flop_frac": _frac(known_ns, total_ns),
            "tflop": flops_known / 1e12 if known_ns else None,
            "tflop_per_s": flops_known / known_ns / 1e3 if known_ns else None,
            "short_kernels": int(own["short"].sum()),
            **_slowest(own.groupby("rank")["total_ns"].sum()),
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["total_ns"], row["category"]))
    return rows


def _flop(operator: str | None, inputs: str | None) -> int | None:
    return None if operator is None or inputs is None else formula_of(operator, inputs).flop


def _slowest(by_rank: pd.Series[float]) -> Row:
    """The rank with the largest value, and by how much that is more than the median; nothing for one rank."""
    if len(by_rank) < 2:
        return {}
    usual = float(by_rank.median())
    over = float(by_rank.max()) / usual - 1 if usual else None
    return {"slowest_rank": int(by_rank.idxmax()), "slowest_over_frac": over}


def _by_precision(dtype: str | None, calls: pd.DataFrame) -> Iterator[tuple[str | None, pd.DataFrame]]:
    """Yield the calls that had their inputs in float32 multiplied as TF32, and the others; of another type all."""
    if dtype != "float32" or not calls["tf32"].any():
        yield dtype, calls
    else:
        yield from ((TF32 if tf32 else dtype, own) for tf32, own in calls.groupby("tf32"))


def _row(name: str, inputs: str, dtype: str | None, calls: pd.DataFrame, whole_ns: int, peaks: DevicePeaks) -> Row:
    formula = formula_of(name, inputs, _item_bytes(calls))
    total_ns, count = int(calls["total_ns"].sum()), int(calls["calls"].sum())
    # One that overlaps more is not slower: what is beside communication takes longer on all ranks.
    alone = calls[calls["alone_calls"] > 0].groupby("rank")[["alone_ns", "alone_calls"]].sum()
    kernel = calls["kernel"].iloc[0]
    row: Row = {
        "operator": name,
        "category": category(name, None if pd.isna(kernel) else str(kernel)),
        "inputs": formula.shapes or None,
        "dtype": dtype,
        "calls": count,
        "kernels": int(calls["kernels"].sum()),
        "total_ns": total_ns,
        "share_frac": total_ns / whole_ns if whole_ns else None,
        "mean_us": total_ns / count / 1e3,
        "min_us": float(calls["min_ns"].min()) / 1e3,
        "max_us": float(calls["max_ns"].max()) / 1e3,
        "gflop_per_call": None if formula.flop is None else formula.flop / 1e9,
        "mb_per_call": None if formula.moved_bytes is None else formula.moved_bytes / 1e6,
        "tensor_core_frac": _frac(calls["tensor_ns"].sum(), total_ns) if calls["told_ns"].sum() else None,
        "ranks": int(calls["rank"].nunique()),
        "note": formula.reason if formula.flop is None else _left_by_mask(formula.flop, formula.masked_flop),
    }
    devices = Counter[tuple[int, str]]()
    for rank, device, ran in zip(*(calls[column].tolist() for column in ("rank", "device", "calls")), strict=True):
        devices[rank, device] += ran
    row |= _speed(formula, row, [(peaks.get(device), ran) for device, ran in devices.items()])
    return row | _slowest(alone["alone_ns"] / alone["alone_calls"])


def _left_by_mask(flop: int, masked_flop: int) -> str | None:
    if not masked_flop:
        return None
    left = f"{1 - masked_flop / flop:.0%}"
    return f"counted in full, of which its causal mask leaves {'half' if left == '50%' else left}"


def _item_bytes(calls: pd.DataFrame) -> int | None:
    """Bytes of an element in lists of tensors; None where some call does not say, or they differ."""
    least, most = calls["least_bytes"].min(skipna=False), calls["most_bytes"].max(skipna=False)
    return None if pd.isna(least) or least != most else int(least)


def _speed(formula: Formula, row: Row, calls_at: list[tuple[Peak | None, int]]) -> Row:
    """The columns of speed, and how near to the peak that is. FLOPs per ns are 1e-3 TFLOP/s.

    `calls_at` is how many calls ran on devices of each peak.
    """
    flop, moved, total_ns = formula.flop, formula.moved_bytes, row["total_ns"]
    if not total_ns:
        return {}
    tflop_per_s = None if flop is None else flop * row["calls"] / total_ns / 1e3
    tb_per_s = None if moved is None else moved * row["calls"] / total_ns / 1e3
    best = _mean_rate((None if peak is None else peak.of(row["dtype"]), calls) for peak, calls in calls_at)
    memory = _mean_rate((None if peak is None else peak.tb_per_s, calls) for peak, calls in calls_at)
    speed: Row = {"tflop_per_s": tflop_per_s, "tb_per_s": tb_per_s}
    speed["peak_frac"] = tflop_per_s / best if tflop_per_s is not None and best else None
    speed["memory_frac"] = tb_per_s / memory if tb_per_s is not None and memory else None
    known = {"peak_frac": row["dtype"], "memory_frac": MEMORY_PEAK}
    names = [name for column, name in known.items() if speed[column] is not None]
    origins = {origin for peak, _ in calls_at if peak is not None and (origin := peak.origin(names))}
    speed["peak_from"] = " and ".join(sorted(origins)) or None
    if flop and moved and best and memory:
        speed["bound"] = "compute" if flop / best > moved / memory else "memory"
    return speed


def _mean_rate(calls_at: Iterable[tuple[float | None, int]]) -> float | None:
    """At which rate all calls, each of as much work, take as long as each at its own; None if one is not known."""
    calls_of: Counter[float | None] = Counter()
    for rate, calls in calls_at:
        calls_of[rate] += calls
    rates = [rate for rate in calls_of if rate]
    if len(rates) < len(calls_of):
        return None
    return rates[0] if len(rates) == 1 else harmonic_mean(rates, [calls_of[rate] for rate in rates])


def _frac(part: Any, whole: float) -> float | None:
    return float(part) / whole if whole else None
