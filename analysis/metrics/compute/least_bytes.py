"""Bytes that a step of serving must read whatever it computes: weights of its products, and cached keys and values.

A step that decodes reads each weight once for all of its requests, and the keys and values of each. So it takes at
least these bytes by the bandwidth of memory, however few requests there are. Docs: docs/metrics/serving.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec
import pandas as pd

from ....common.wording import counted
from ...core.schema import Row, grouped
from ...core.tables.serving import SERVING_FLOORS
from ..typical_step import EDGES
from .categories import category
from .flops import ATTENTION_FORWARD, counts
from .operators import NotRecorded, ProfiledOperator
from .peaks import DevicePeaks

_ATTENTION = "attention forward"
_SIZE = ["kind", "requests", "tokens"]
_READ = ["weights_bytes", "cache_bytes", "floor_ns", "unknown_attention"]
_NO_SHAPES = "no product with shapes is known: capture with record_shapes, and graphs with a trace of their capture"
_NO_CACHE = "how much of its cache attention reads is in no shape: the least time is of weights alone"


class Read(NamedTuple):
    """What a call of an operator reads: bytes of weights, and of keys and values; None where it is not known."""

    weights: int | None
    cache: int | None


@lru_cache(maxsize=1 << 14)
def least_read(name: str, inputs: str) -> Read:
    """The bytes by name and recorded inputs, JSON of shapes, types and values. A product of two matrices has weights.

    Those are its second matrix. Of experts and batches of matrices only some may be read.
    """
    dims, types, values = (each if isinstance(each, list) else None for each in msgspec.json.decode(inputs))
    texts = None if types is None else [kind if isinstance(kind, str) else "" for kind in types]
    operator = ProfiledOperator(name, dims, texts, values)
    try:
        if name in ATTENTION_FORWARD:
            first = ATTENTION_FORWARD[name].first
            return Read(None, sum(operator.tensor(first + place, "keys and values").size_bytes for place in (1, 2)))
        matrices = [tensor for tensor in operator.tensors_alone() if len(tensor.shape) > 1]
    except NotRecorded:
        return Read(None, None)
    is_product = counts(name) and category(name) == "GEMM" and len(matrices) > 1 and len(matrices[1].shape) == 2
    return Read(matrices[1].size_bytes if is_product else None, None)


def serving_floors(steps: pd.DataFrame, work: pd.DataFrame, peaks: DevicePeaks) -> pd.DataFrame:
    """One row per kind and size of steps: what each device must read in a step, and how long that takes at least.

    `work` is a row per kernel with its operator, `peaks` are those of each device.
    """
    known = steps[steps["kind"].notna() & ~steps["left_out"].isin(EDGES)]
    of_step = dict(iter(work[work["step"].isin(known["step"])].groupby("step")))
    read = pd.DataFrame(
        [_of_step(of_step.get(step, work[:0]), peaks) for step in known["step"]], columns=_READ, index=known.index
    )
    sizes = known[[*_SIZE, "window_ns"]].join(read).groupby(_SIZE, sort=True, dropna=False)
    return SERVING_FLOORS.frame(_row(dict(zip(_SIZE, size, strict=True)), own) for size, own in sizes)


def _of_step(work: pd.DataFrame, peaks: DevicePeaks) -> Row:
    """Means over the devices."""
    rows: list[Row] = []
    for (rank, device), ran in grouped(work, ["rank", "device"]):
        calls = ran.dropna(subset=["operator", "inputs"]).drop_duplicates("call")
        read = [least_read(name, inputs) for name, inputs in zip(calls["operator"], calls["inputs"], strict=True)]
        weights = sum(one.weights or 0 for one in read)
        cache = sum(one.cache or 0 for one in read)
        attention = ran[["operator", "inputs", "kernel"]].drop_duplicates()
        unknown = any(
            category(_text(row.operator), _text(row.kernel)) == _ATTENTION and not _has_cache(row.operator, row.inputs)
            for row in attention.itertuples()
        )
        peak = peaks.get((rank, device))
        tb_per_s = None if peak is None else peak.tb_per_s
        rows.append({
            "weights_bytes": weights,
            "cache_bytes": None if unknown else cache,
            "floor_ns": None if not tb_per_s else (weights + cache) / tb_per_s / 1e3,
            "unknown_attention": float(unknown),
        })  # fmt: skip
    return {name: _mean([row[name] for row in rows]) for name in _READ}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _has_cache(operator: object, inputs: object) -> bool:
    return isinstance(operator, str) and isinstance(inputs, str) and least_read(operator, inputs).cache is not None


def _row(size: Row, own: pd.DataFrame) -> Row:
    def median(name: str) -> int | None:
        return None if own[name].isna().any() else round(float(own[name].astype("float64").median()))

    weights, window_ns = median("weights_bytes"), round(float(own["window_ns"].median()))
    row: Row = {**size, "steps": len(own), "window_ns": window_ns}
    if not weights:
        return {**row, "note": f"{_NO_SHAPES} ({counted(len(own), 'step')})"}
    floor_ns = median("floor_ns")
    notes = [
        _NO_CACHE if own["unknown_attention"].astype("float64").gt(0).any() else "",
        "no bandwidth of memory is known of the device: --peak memory=TB/s gives it" if floor_ns is None else "",
    ]
    return {
        **row,
        "weights_bytes": weights,
        "cache_bytes": median("cache_bytes"),
        "floor_ns": floor_ns,
        "floor_frac": floor_ns / window_ns if floor_ns is not None and window_ns else None,
        "note": "; ".join(filter(None, notes)) or None,
    }
