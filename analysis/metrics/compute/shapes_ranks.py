"""What the device of a rank is slower at than those of the others, which ran the same operators on the same shapes.

A device that is slower at everything by one factor is throttled or shared with somebody. One that is slower at
products of matrices only has a lower clock, as what is bound by memory does not follow that. One that is slower at a
shape may run another kernel there. Definitions: docs/metrics/compute.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.schema import Row, grouped, records, text_codes
from .categories import category
from .gpu_clocks import Clock, clock_beside
from .shapes import formula_of

AT_EVERYTHING, AT_PRODUCTS, AT_SHAPE, AT_KERNEL = (
    "everything",
    "products of matrices",
    "a shape",
    "a shape, by another kernel",
)
_KEYS = ["rank", "device"]
_SHAPE = ["operator", "inputs", "beside"]
"""Only what runs beside the same kind of collective, or beside none, is compared: who overlaps more is not slower."""
_OF_PRODUCTS = ("GEMM", "convolution", "attention forward", "attention backward")
_LEAST_CALLS = 3
"""Of a shape on a rank: with fewer, one call that was disturbed makes the median."""
_LEAST_NS = 5_000
"""Of a call: some traces have times to a microsecond."""
_SLOWER = 0.05
_MANY = 4
"""Shapes that have to agree before a device is called slower at all of them."""
_AGREEING = 0.8
_MOST_OF_IT = 0.5
_NOT_SLOWER = 0.4
"""Part of the slowness at products that the other shapes may show where only products are slow."""
_OUTSIDE = 3.0
"""A device must differ from the others this many times as much as they differ among themselves."""


def rows_of_devices(
    usual: pd.DataFrame,
    clocks: Mapping[tuple[int, str], Clock],
    device_names: Mapping[tuple[int, str], str | None],
) -> list[Row]:
    """One row per rank and device that ran shapes which other ranks ran too, the slowest first.

    `usual` are `usual_of_devices` of all ranks; `clocks`, where they are known, and `device_names` are by rank and
    device.
    """
    compared = _compared(usual)
    if not len(compared):
        return []
    devices = [_Device(key[0], key[1], own, int(own["ran_ns"].iloc[0])) for key, own in grouped(compared, _KEYS)]
    rows = [_row(one, [other for other in devices if other is not one], clocks, device_names) for one in devices]
    rows.sort(key=lambda row: (-row["typical_over_frac"], row["rank"]))
    return rows


def usual_of_devices(work: pd.DataFrame) -> pd.DataFrame:
    """One row per rank, device, shape and company: the median of its calls, and what most of them ran.

    That is: first kernel, number of kernels and the sum of their `codes`, which all ranks have alike for a name.
    `ran_ns` is what the device ran in all. `work` is from `compute_work`, with the `company` of each row. Calls whose
    kernels do not all have the same are left out.
    """
    known = work[work["inputs"].notna()]
    company, names_of_company = text_codes(known["beside"])
    code, names = pd.factorize(known["kernel"].fillna(""))
    codes = [crc32(str(name).encode("utf-8", "surrogatepass")) for name in names]
    code = np.array(codes, dtype=np.int64)[code]
    calls = known.assign(code=code, company=company).groupby([*_KEYS, "call"], sort=False).agg(
        operator=("operator", "first"), inputs=("inputs", "first"), took_ns=("dur_ns", "sum"),
        code=("code", "first"), kernels=("code", "size"), codes=("code", "sum"),
        least=("company", "min"), company=("company", "max"),
    )  # fmt: skip
    calls = calls[(calls["least"] == calls["company"]) & (calls["least"] >= 0)]
    beside = pd.array(names_of_company, dtype="string").take(calls["company"].to_numpy(), allow_fill=True)
    calls = calls.assign(beside=beside)
    medians = calls.groupby([*_SHAPE, *_KEYS], sort=False).agg(calls=("took_ns", "size"), took_ns=("took_ns", "median"))
    ran = calls.groupby([*_SHAPE, *_KEYS, "code", "kernels", "codes"], sort=False).size().rename("times").reset_index()
    usual = ran.sort_values("times", kind="stable").drop_duplicates([*_SHAPE, *_KEYS], keep="last")
    medians = medians[medians["calls"] >= _LEAST_CALLS].reset_index()
    medians = medians.merge(usual.drop(columns="times"), on=[*_SHAPE, *_KEYS])
    name_of = dict(zip(codes, map(str, names), strict=True))
    medians["kernel"] = pd.array([name_of[number] for number in medians["code"].tolist()], dtype="string")
    ran_ns = work.groupby(_KEYS, as_index=False).agg(ran_ns=("dur_ns", "sum"))
    return medians.merge(ran_ns, on=_KEYS)


def _compared(usual: pd.DataFrame) -> pd.DataFrame:
    """The rows of shapes that other ranks ran, too, with the median of the others' medians."""
    medians = usual[usual.groupby(_SHAPE)["rank"].transform("size") > 1]
    medians = medians[medians.groupby(_SHAPE)["took_ns"].transform("median") >= _LEAST_NS]
    parts = [_beside_others(of_shape) for _, of_shape in medians.groupby(_SHAPE, sort=False) if len(of_shape) > 1]
    return pd.concat(parts, ignore_index=True) if parts else medians[:0]


def _beside_others(of_shape: pd.DataFrame) -> pd.DataFrame:
    """The devices that ran a shape, each with the median and the most of the others, and the kernel that these ran.

    `spread` is the median absolute deviation over the median of all; of two devices it is not known, and 0.
    """
    took = of_shape["took_ns"].to_numpy(dtype=np.float64)
    order, count = np.argsort(took, kind="stable"), len(took)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    in_order = took[order]

    def other(nth: int) -> NDArray[np.float64]:
        """The nth shortest of the others, by device."""
        return np.where(nth < place, in_order[nth], in_order[nth + 1])

    ran = list(zip(of_shape["code"], of_shape["kernels"], of_shape["codes"], of_shape["kernel"], strict=True))
    usual = [_usual_of_others(Counter(ran), one) for one in ran]
    middle = float(np.median(took))
    return of_shape.assign(
        usual_ns=(other((count - 2) // 2) + other((count - 1) // 2)) / 2,
        most_ns=other(count - 2),
        spread=float(np.median(np.abs(took - middle))) / middle if count > 2 else 0.0,
        differs=[of_others is not None and of_others != one for one, of_others in zip(ran, usual, strict=True)],
        usual_kernel=pd.array([None if of_others is None else of_others[-1] for of_others in usual], dtype="string"),
    )


_Ran = tuple[int, int, int, str]
"""What a call ran: codes of the first kernel, number and sum of codes of all, and the first one's name."""


def _usual_of_others(times: Counter[_Ran], own: _Ran) -> _Ran | None:
    """What more than half of the other devices ran; None where they differ."""
    times[own] -= 1
    usual, most = times.most_common(1)[0]
    return usual if 2 * most > times.total() else None


class _Slow(NamedTuple):
    """What a device is slower at, by how much, and the place of the shape if it is one."""

    at: str
    over_frac: float
    place: int | None = None


class _Device:
    """A device beside the others: arrays of shape (shapes,)."""

    def __init__(self, rank: int, device: str, own: pd.DataFrame, ran_ns: int) -> None:
        self.rank, self.device, self.own, self.ran_ns = rank, device, own, ran_ns
        self.took = own["took_ns"].to_numpy(dtype=np.float64)
        self.usual = own["usual_ns"].to_numpy(dtype=np.float64)
        self.calls = own["calls"].to_numpy(dtype=np.float64)
        self.over = self.took / self.usual - 1
        self.weight = self.usual * self.calls
        kernels = own["kernel"].tolist()
        kinds = [category(name, kernel or None) for name, kernel in zip(own["operator"].tolist(), kernels, strict=True)]
        self.of_products = np.array([kind in _OF_PRODUCTS for kind in kinds], dtype=bool)
        self.spread = own["spread"].to_numpy(dtype=np.float64)
        self.differs = own["differs"].to_numpy(dtype=bool)
        self.typical = weighted_median(self.over, self.weight)

    def agreeing(self, chosen: NDArray[np.bool_]) -> tuple[float, float]:
        """How much slower it typically is at these shapes, and the part of their time that shows half of it or more."""
        if not chosen.any():
            return 0.0, 0.0
        over, weight = self.over[chosen], self.weight[chosen]
        typical = weighted_median(over, weight)
        return typical, float(weight[over >= typical / 2].sum() / weight.sum())

    def slow(self) -> _Slow | None:
        """What it is slower at; None if nothing stands out from the differences between others."""
        least = max(_SLOWER, _OUTSIDE * weighted_median(self.spread, self.weight))
        same = ~self.differs
        typical, agreeing = self.agreeing(same)
        of_products, agreeing_products = self.agreeing(same & self.of_products)
        of_others, _ = self.agreeing(same & ~self.of_products)
        if (
            of_products >= least
            and agreeing_products >= _AGREEING
            and (same & self.of_products).sum() >= _MANY
            and (same & ~self.of_products).sum() >= _MANY
            and of_others < _NOT_SLOWER * of_products
        ):
            return _Slow(AT_PRODUCTS, of_products)
        if typical >= least and agreeing >= _AGREEING and same.sum() >= _MANY:
            return _Slow(AT_EVERYTHING, typical)
        slower = (self.over >= np.maximum(_SLOWER, _OUTSIDE * self.spread)) & (
            self.took > self.own["most_ns"].to_numpy(dtype=np.float64)
        )
        extra = np.where(slower, (self.took - self.usual) * self.calls, 0.0)
        if not extra.any() or extra.sum() < _SLOWER * self.weight.sum():
            return None
        by_kernel = np.where(self.differs, extra, 0.0)
        if by_kernel.sum() >= _MOST_OF_IT * extra.sum():
            return self._slow_shape(AT_KERNEL, by_kernel)
        return self._slow_shape(AT_SHAPE, extra) if extra.max() >= _MOST_OF_IT * extra.sum() else None

    def _slow_shape(self, at: str, extra: NDArray[np.float64]) -> _Slow:
        place = int(extra.argmax())
        return _Slow(at, float(self.over[place]), place)


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The smallest value that, with those below, has half of the weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _row(
    one: _Device,
    others: list[_Device],
    clocks: Mapping[tuple[int, str], Clock],
    device_names: Mapping[tuple[int, str], str | None],
) -> Row:
    slow = one.slow()
    extra = (one.took - one.usual) * one.calls
    row: Row = {
        "rank": one.rank,
        "device": one.device,
        "shapes": len(one.own[["operator", "inputs"]].drop_duplicates()),
        "compared_frac": float((one.took * one.calls).sum()) / one.ran_ns if one.ran_ns else None,
        "over_frac": float(extra.sum() / one.weight.sum()),
        "typical_over_frac": one.typical,
        "agreeing_frac": one.agreeing(~one.differs)[1],
        "extra_ns": round(float(extra.sum())),
    }
    if slow is not None:
        row |= {"slow_at": slow.at, "slow_over_frac": slow.over_frac}
    if slow is not None and slow.place is not None:
        shape = records(one.own.iloc[[slow.place]])[0]
        row |= {
            "operator": shape["operator"],
            "inputs": formula_of(shape["operator"], shape["inputs"]).shapes or None,
            "kernel": shape["kernel"] or None,
            "usual_kernel": shape["usual_kernel"] if one.differs[slow.place] else None,
        }
    return (
        row
        | clock_beside((one.rank, one.device), [(each.rank, each.device) for each in others], clocks)
        | _other_model(one, others, device_names)
    )


def _other_model(one: _Device, others: list[_Device], device_names: Mapping[tuple[int, str], str | None]) -> Row:
    own, *names = (device_names.get((each.rank, each.device)) for each in (one, *others))
    usual = max(names, key=names.count)
    differs = own is not None and usual is not None and own != usual
    return {"note": f"its device is {own}, most others are {usual}"} if differs else {}
