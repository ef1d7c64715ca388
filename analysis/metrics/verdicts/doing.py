"""What a late rank was doing, from the table `late_work` alone, so that the two cannot differ."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from ...core.markers import LOADING
from ...core.schema import records
from ..causes.cpu_work import (
    BLOCKED,
    COMPUTING,
    IN_CALL,
    IN_FUNCTION,
    IN_MODULE,
    IN_OPERATOR,
    IN_PYTHON,
    NO_CPU,
    OF_THREAD,
    OUTSIDE,
    RANGE,
    WORK,
)
from ..causes.late_work import ALL_COMPUTE, ALL_CPU, BY_KERNEL, BY_REGION, TOTAL

_MOST_OF_IT = 0.5  # of the extra time: what takes less is not called the reason
_WORTH_SAYING = 0.1  # of the extra time: what takes less is not named at all
_LEAST_STEPS = 2  # with fewer, none can stand out
_STANDS_OUT = 2  # times as much slower as elsewhere a rank is in a region that is named
_AS_GOOD = 0.9  # of two nested ranges the inner one is named if it takes that part of what the outer one does


class Doing(NamedTuple):
    """What the CPU of a late rank did for most of the time by which it fell behind; `frac` is the part of that time.

    `what` is a blocking call or operator, and `operator` the operator around it. `inside` is the range around both, or
    the nn.Module where no range is, and `function` says in which function of the user's code they are, or `mostly` are.
    None for none. `python` is what a thread outside of operators mostly does, None if that is not known, and
    `python_frac` the part of that time.
    """

    what: str | None
    operator: str | None
    inside: str | None
    frac: float
    python: str | None = None
    python_frac: float = 1.0
    function: str | None = None
    mostly: bool = False


class RegionOf(NamedTuple):
    """The path of a region, the outermost name first, and the part of the extra time on a device that it took."""

    path: str
    frac: float


def on_cpu(late_work: pd.DataFrame, rank: int) -> Doing | None:
    """What the CPU of a rank did for most of the time in which its device, unlike others, had no work.

    The most exact answer that holds for half of that time, of nested operators or ranges the innermost; else the one
    that holds for most of it. None if nothing takes a tenth of it. `late_work` is the table.
    """
    extra = _extra(late_work, rank, ALL_CPU)
    if extra is None:
        return None
    best: Doing | None = None
    for kind in (WORK, IN_CALL, IN_OPERATOR, RANGE):
        rows = extra[(extra["kind"] == kind) & (extra["frac"] > 0)]
        if not len(rows):
            continue
        most = rows[rows["frac"] >= min(_MOST_OF_IT, _AS_GOOD * rows["frac"].max())]
        row = most.sort_values(["frac", "took_ns"], kind="stable").iloc[0]
        what, operator, around = (None if pd.isna(row[key]) else str(row[key]) for key in ("what", "operator", "range"))
        frac = min(float(row["frac"]), 1.0)
        doing = Doing(None, None, what, frac) if kind == RANGE else Doing(what, operator, around, frac)
        if what == OUTSIDE:
            python, python_frac = _python(extra)
            doing = doing._replace(python=python, python_frac=python_frac)
        if doing.inside is None:
            found = _module(extra, frac)
            doing = doing if found is None else doing._replace(inside=found[0])
        function, mostly = _function(extra, frac, is_outside=what == OUTSIDE)
        doing = doing._replace(function=function, mostly=mostly)
        if frac >= _MOST_OF_IT:
            return doing
        if best is None or frac > best.frac:
            best = doing
    if best is not None and best.frac >= _WORTH_SAYING:
        return best
    module = _module(extra, _MOST_OF_IT)
    return None if module is None else Doing(None, None, module[0], module[1])


def _function(extra: pd.DataFrame, frac: float, *, is_outside: bool) -> tuple[str | None, bool]:
    """The innermost of the user's functions that takes half of the extra time, and whether only most of that part is.

    Of what takes this part of the time: in an operator, only a function that takes nearly all of that part is around
    it. None if there is none.
    """
    rows = extra[(extra["kind"] == IN_FUNCTION) & (extra["frac"] >= (_MOST_OF_IT if is_outside else _AS_GOOD * frac))]
    if not len(rows):
        return None, False
    row = rows.sort_values(["took_ns", "frac"], kind="stable").iloc[0]
    return str(row["what"]), bool(row["frac"] < _AS_GOOD * frac)


def _python(extra: pd.DataFrame) -> tuple[str | None, float]:
    """What a rank outside of operators does for most of that time, and for which part; None and 1 if not known."""
    parts = extra[extra["kind"] == IN_PYTHON].sort_values("extra_ns", kind="stable")
    outside = extra.loc[(extra["kind"] == IN_OPERATOR) & (extra["what"] == OUTSIDE), "extra_ns"].sum()
    known = parts["extra_ns"].sum()  # of some steps it may not be
    if not len(parts) or known < _MOST_OF_IT * outside or parts["extra_ns"].iloc[-1] < _MOST_OF_IT * known:
        return None, 1.0
    return str(parts["what"].iloc[-1]), float(parts["extra_ns"].iloc[-1] / known)


def _module(extra: pd.DataFrame, least_frac: float) -> tuple[str, float] | None:
    """The innermost module that takes nearly this part of the extra time, with its part; None if none does."""
    rows = extra[(extra["kind"] == IN_MODULE) & (extra["frac"] >= _AS_GOOD * least_frac)]
    if not len(rows):
        return None
    row = rows.sort_values(["frac", "took_ns"], kind="stable").iloc[0]
    return str(row["what"]), min(float(row["frac"]), 1.0)


def on_device(late_work: pd.DataFrame, rank: int) -> str | None:
    """The kernel that took most of the extra time on a device; None if none took more than half."""
    extra = _extra(late_work, rank, ALL_COMPUTE)
    by_kernel = None if extra is None else extra[extra["kind"] == BY_KERNEL].sort_values("frac", kind="stable")
    if by_kernel is None or not len(by_kernel) or by_kernel["frac"].iloc[-1] < _MOST_OF_IT:
        return None
    return str(by_kernel["what"].iloc[-1])


def instead_of_computing(late_work: pd.DataFrame, rank: int) -> str | None:
    """What the thread of a rank does whose operators take longer, if it does not compute longer: BLOCKED, or NO_CPU.

    COMPUTING if it does none of these longer: it computes no longer than theirs. None if it does, and where that is not
    known. Without a GPU an operator lasts as long as its thread takes, whatever that does.
    """
    of_rank = late_work[late_work["rank"] == rank]
    longer_ns = of_rank["extra_ns"][(of_rank["kind"] == TOTAL) & (of_rank["what"] == ALL_COMPUTE)].sum()
    by_what = of_rank[of_rank["kind"] == OF_THREAD].groupby("what")["extra_ns"].sum()
    if not len(by_what) or longer_ns <= 0 or by_what[COMPUTING] >= _MOST_OF_IT * longer_ns:
        return None
    others = by_what.drop(COMPUTING)
    if others.max() < _MOST_OF_IT * longer_ns:
        return COMPUTING
    return BLOCKED if others.idxmax() == BLOCKED else NO_CPU


def region_on_device(late_work: pd.DataFrame, rank: int) -> RegionOf | None:
    """The region whose kernels took most of the extra time, the innermost one that did.

    None if none took half of it, or if kernels elsewhere are slower by as large a part:
    then the device is slow at everything, and a region that holds most of the model would say nothing.
    """
    extra = _extra(late_work, rank, ALL_COMPUTE)
    if extra is None:
        return None
    [whole] = records(extra[(extra["kind"] == TOTAL) & (extra["what"] == ALL_COMPUTE)])
    usual, elsewhere_ns = extra["took_ns"] - extra["extra_ns"], whole["extra_ns"] - extra["extra_ns"]
    usual_elsewhere = whole["took_ns"] - whole["extra_ns"] - usual
    stands_out = extra["extra_ns"] * usual_elsewhere >= _STANDS_OUT * elsewhere_ns * usual
    rows = extra[(extra["kind"] == BY_REGION) & (extra["frac"] >= _MOST_OF_IT) & stands_out]
    if not len(rows):
        return None
    near = rows[rows["frac"] >= _AS_GOOD * rows["frac"].max()]
    row = near.sort_values(["took_ns", "frac"], kind="stable").iloc[0]
    return RegionOf(str(row["what"]), float(row["frac"]))


def only_step(late_work: pd.DataFrame, rank: int, because: str, steps: int) -> int | None:
    """The single step in which a rank lost nearly all its time, out of several; None if it lost time in more."""
    of = {"cpu": ALL_CPU, "data": ALL_CPU, "compute": ALL_COMPUTE}.get(because)
    of_rank = late_work[late_work["rank"] == rank]
    rows = of_rank[(of_rank["kind"] == TOTAL) & (of_rank["what"] == of)]
    loading = of_rank[(of_rank["kind"] == RANGE) & of_rank["what"].str.startswith(LOADING)]
    if because == "data" and len(loading):  # what else a CPU does may hide in a step that it waits for a batch, too
        rows = loading
    extra = rows.groupby("step")["extra_ns"].sum().clip(lower=0)
    if steps < _LEAST_STEPS or not len(extra) or extra.max() < _AS_GOOD * extra.sum():
        return None
    return int(extra.idxmax())


def longer_on_cpu(late_work: pd.DataFrame, rank: int) -> float:
    """How much longer than others a rank gave its device no work, over all steps, in ms; 0 where that is not known."""
    of_rank = late_work[(late_work["rank"] == rank) & (late_work["kind"] == TOTAL) & (late_work["what"] == ALL_CPU)]
    return float(of_rank["extra_ns"].sum()) / 1e6


def _extra(late_work: pd.DataFrame, rank: int, of: str) -> pd.DataFrame | None:
    """The extra time of a rank by activity, over all steps, with `frac`, its share of all extra time of its CPU or GPU.

    None if the rank did not take longer than others.
    """
    of_rank = late_work[late_work["rank"] == rank]
    keys = ["kind", "what", "operator", "range"]
    added = of_rank.groupby(keys, dropna=False, sort=False)[["took_ns", "extra_ns"]].sum().reset_index()
    whole = added.loc[(added["kind"] == TOTAL) & (added["what"] == of), "extra_ns"].sum()
    return added.assign(frac=added["extra_ns"] / whole) if whole > 0 else None
