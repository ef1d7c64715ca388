"""Bytes that a step of serving must read whatever it computes: weights of its products, and cached keys and values.

A step that decodes reads each weight once for all of its requests, and the keys and values of each. So it takes at
least these bytes by the bandwidth of memory, however few requests there are. Docs: docs/metrics/serving.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec
import pandas as pd

from ....common.wording import counted
from ...core.schema import Row, grouped, records
from ..typical_step import EDGES
from .cached import Cached, cache_written, read_in_pages
from .categories import category
from .flops import ATTENTION_FORWARD, counts
from .operators import NotRecorded, ProfiledOperator
from .peaks import DevicePeaks, Peak

_ATTENTION = "attention forward"
_WHO = ["operator", "inputs", "kernel"]
_SIZE = ["kind", "requests", "tokens"]
_READ = ["weights_bytes", "cache_bytes", "cache_most_bytes", "floor_ns", "floor_most_ns", "unknown_attention"]
_NO_SHAPES = "no product with shapes is known: capture with record_shapes, and graphs with a trace of their capture"
_NO_CACHE = "how much of its cache attention reads is in no shape"


class Read(NamedTuple):
    """What a call of an operator reads: bytes of weights, and of keys and values; None where it is not known."""

    weights: int | None = None
    cache: int | None = None
    paged: Cached | None = None
    """Of attention in pages, whose `cache` is not known."""
    written: Cached | None = None
    """The cache into which it writes."""


@lru_cache(maxsize=1 << 14)
def least_read(name: str, inputs: str) -> Read:
    """The bytes by name and recorded inputs, JSON of shapes, types and values. A product of two matrices has weights.

    Those are its second matrix. Of experts and batches of matrices only some may be read.
    """
    dims, types, values = (each if isinstance(each, list) else None for each in msgspec.json.decode(inputs))
    texts = None if types is None else [kind if isinstance(kind, str) else "" for kind in types]
    operator = ProfiledOperator(name, dims, texts, values)
    paged = read_in_pages(operator)
    if paged is not None:
        return Read(paged=paged)
    try:
        if name in ATTENTION_FORWARD:
            first = ATTENTION_FORWARD[name].first
            return Read(cache=sum(operator.tensor(first + place, "keys and values").size_bytes for place in (1, 2)))
        matrices = [tensor for tensor in operator.tensors_alone() if len(tensor.shape) > 1]
    except NotRecorded:
        return Read()
    is_product = counts(name) and category(name) == "GEMM" and len(matrices) > 1 and len(matrices[1].shape) == 2
    return Read(weights=matrices[1].size_bytes if is_product else None, written=cache_written(operator))


def reads_of_devices(
    steps: pd.DataFrame, step_marks: pd.DataFrame, work: pd.DataFrame, peaks: DevicePeaks
) -> Iterator[Row]:
    """Yield what each device must read in each of its steps, in order of rank, device and step.

    `work` is a row per kernel with its operator, `peaks` are those of each device. `step_marks` say how many requests
    each rank itself decodes.
    """
    own = work[work["step"].isin(_known(steps)["step"])]
    decoding = step_marks[(step_marks["kind"] == "decode") & step_marks["requests"].notna()]
    requests = {(row["rank"], row["step"]): row["requests"] for row in records(decoding[["rank", "step", "requests"]])}
    for (rank, device, step), ran in grouped(own, ["rank", "device", "step"]):
        read = _of_device(ran, requests.get((rank, step), 0), peaks.get((rank, device)))
        yield {"rank": rank, "device": device, "step": step, **read}


def floors(steps: pd.DataFrame, reads: Iterable[Row]) -> Iterator[Row]:
    """Yield a row per kind and size of steps: what each device must read in a step, and how long that takes at least.

    `reads` are `reads_of_devices` of all ranks.
    """
    known, of_step = _known(steps), defaultdict[int, list[Row]](list)
    for row in reads:
        of_step[row["step"]].append(row)
    read = pd.DataFrame(
        [{name: _mean([row[name] for row in of_step[step]]) for name in _READ} for step in known["step"].tolist()],
        columns=_READ,
        index=known.index,
    )
    sizes = known[[*_SIZE, "window_ns"]].join(read).groupby(_SIZE, sort=True, dropna=False)
    return (_row(dict(zip(_SIZE, size, strict=True)), own) for size, own in sizes)


def _known(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["kind"].notna() & ~steps["left_out"].isin(EDGES)]


def _of_device(ran: pd.DataFrame, requests: int, peak: Peak | None) -> Row:
    calls = ran.dropna(subset=["operator", "inputs"]).drop_duplicates("call")
    read = [least_read(name, inputs) for name, inputs in zip(calls["operator"], calls["inputs"], strict=True)]
    attention = [_read_of(row["operator"], row["inputs"]) for row in records(_attention(ran))]
    weights = sum(one.weights or 0 for one in read)
    caches = [one.written for one in read if one.written is not None]
    cache, most = _bounds(attention, caches, requests)
    tb_per_s = None if peak is None else peak.tb_per_s
    return {
        "weights_bytes": weights,
        "cache_bytes": cache,
        "cache_most_bytes": most,
        "floor_ns": (weights + (cache or 0)) / tb_per_s / 1e3 if tb_per_s else None,
        "floor_most_ns": (weights + most) / tb_per_s / 1e3 if tb_per_s and most is not None else None,
        "unknown_attention": float(any(one.cache is None for one in attention)),
    }


def _attention(ran: pd.DataFrame) -> pd.DataFrame:
    """A row per call of attention; a kernel that no operator launched counts as one."""
    distinct = ran[_WHO].drop_duplicates()
    is_attention = [
        category(row["operator"], row["kernel"]) == _ATTENTION
        or _read_of(row["operator"], row["inputs"]).paged is not None
        for row in records(distinct)
    ]
    rows = ran.merge(distinct[is_attention], on=_WHO)
    return rows[rows["call"].isna() | ~rows["call"].duplicated()]


def _bounds(attention: list[Read], caches: list[Cached], requests: int) -> tuple[int | None, int | None]:
    """How many bytes of keys and values are read at least and at most; None where nothing tells.

    A request that decodes has a token in the cache at least. Where shapes of attention do not tell, each call reads one
    of the caches that operators write to, all of it at most.
    """
    exact = sum(one.cache for one in attention if one.cache is not None)
    paged = [one.paged for one in attention if one.paged is not None]
    other = sum(one.cache is None and one.paged is None for one in attention)
    token, most = sum(one.token for one in paged), exact + sum(one.most for one in paged)
    if other and caches:
        tokens, wholes = [one.token for one in caches], [one.most for one in caches]
        token += sum(tokens) if other >= len(caches) else other * min(tokens)
        most += sum(wholes) if other <= len(caches) else other * max(wholes)
    least = exact + requests * token
    return least if least or not (other or paged) else None, most if caches or not other else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _read_of(operator: str | None, inputs: str | None) -> Read:
    return Read() if operator is None or inputs is None else least_read(operator, inputs)


def _row(size: Row, own: pd.DataFrame) -> Row:
    def median(name: str) -> int | None:
        return None if own[name].isna().any() else round(float(own[name].astype("float64").median()))

    weights, window_ns = median("weights_bytes"), round(float(own["window_ns"].median()))
    row: Row = {**size, "steps": len(own), "window_ns": window_ns}
    if not weights:
        return {**row, "note": f"{_NO_SHAPES} ({counted(len(own), 'step')})"}
    row |= {name: median(name) for name in _READ if name != "unknown_attention"}
    floor_ns = row["floor_ns"]
    least = "the least time is of weights alone" if row["cache_bytes"] is None else "at least a token of each request"
    most = "" if row["cache_most_bytes"] is None else ", at most all that its pages hold"
    notes = [
        f"{_NO_CACHE}: {least}{most}" if own["unknown_attention"].astype("float64").gt(0).any() else "",
        "no bandwidth of memory is known of the device: --peak memory=TB/s gives it" if floor_ns is None else "",
    ]
    return {
        **row,
        "floor_frac": floor_ns / window_ns if floor_ns is not None and window_ns else None,
        "note": "; ".join(filter(None, notes)) or None,
    }
