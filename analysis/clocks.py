"""How far each rank's clock is ahead: known on one host, else estimated from the collectives themselves.

The ends of a collective nearly coincide on all ranks, which gives the offset; and nobody ends a synchronising
collective before everybody has begun it, which bounds it. Over long windows clocks also drift apart. A clock probe, if
there is one, is heard after that. Definitions: docs/metrics.md, "Clocks" and "Clock probe".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .alignment import COINCIDE_NS, ClockFrame, Ints, link_by_ends, trend
from .nccl_tests import SYNCHRONISING
from .probes import AGREE, Witnessed, witnessed
from .schema import CLOCK_PROBES, CLOCKS, Row

# What a trace can show: timestamps of torch 2.3 and older are whole microseconds.
RESOLUTION_NS = 2_000
_ROWS_USED = 400_000
_ROUNDS = 30
_UNBOUND = 1e18


@dataclass(frozen=True)
class _Ends:
    """Matched synchronising calls, one row per collective and clock: its latest start and earliest end."""

    collective: Ints
    clock: Ints
    start_ns: Ints
    end_ns: Ints


def clocks(
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    hosts: Mapping[int, str | None],
    probes: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row per rank: its clock's offset and drift, and how uncertain they are.

    `hosts` gives the host of each rank, None where it is not known; ranks of one host share a clock. Clocks are
    compared only where collectives or the clock `probes` link them: offsets are against the first rank of those linked.
    """
    ranks = np.array(sorted(hosts), dtype=np.int64)
    names = [hosts[int(r)] or f"rank {r}" for r in ranks]
    clock_of, keys = pd.factorize(np.array(names, dtype=object))
    ends = _ends(calls, matches, clock_of.astype(np.int64), ranks)
    model = _estimated(ends, len(keys))
    _move_into_bounds(ends, model)
    model, uncertainty = _settled(ends, model, *_bounds(ends, model))
    known = dict(zip(ranks.tolist(), clock_of.tolist(), strict=True))
    found = witnessed(model, uncertainty, CLOCK_PROBES.empty() if probes is None else probes, known, calls)
    return CLOCKS.frame(_row(rank, hosts[rank], clock, found, ranks, clock_of) for rank, clock in known.items())


def _row(rank: int, host: str | None, clock: int, found: Witnessed, ranks: Ints, clock_of: NDArray[np.intp]) -> Row:
    """One rank's row; the reference of linked clocks is that of their first rank."""
    model = found.model
    linked = model.component[clock_of] == model.component[clock]
    one_clock = bool((clock_of[linked] == clock).all())
    probe, bound = found.probe.ns[clock, 0], found.probe.uncertainty_ns[clock].max()
    return {
        "rank": rank,
        "host": host,
        "linked": int(ranks[linked][0]),
        "offset_ns": round(float(model.offset_ns[clock])),
        "drift_ppm": float(model.drift[clock]) * 1e6,
        "origin_ns": model.origin_ns,
        "uncertainty_ns": int(found.uncertainty_ns[clock]),
        "probe_offset_ns": None if np.isnan(probe) else round(float(probe)),
        "probe_uncertainty_ns": None if np.isnan(bound) else round(float(bound)),
        "basis": found.basis.get(clock) or _basis(clock, model, host, one_clock, int(linked.sum())),
    }


def _basis(clock: int, model: ClockFrame, host: str | None, one_clock: bool, linked: int) -> str:
    if one_clock and linked > 1:
        return f"all linked ranks ran on {host}"
    if one_clock:
        return "no collective links it to another rank"
    if model.offset_ns[clock] != 0 or model.drift[clock] != 0:
        return "estimated from collectives"
    return AGREE


def aligned(times_ns: pd.Series[int], rank: pd.Series[int], clocks: pd.DataFrame) -> pd.Series[int]:
    """Times without the error of each rank's clock, comparable among linked ranks."""
    own = clocks.set_index("rank").loc[rank]
    drift = own["drift_ppm"].to_numpy() / 1e6 * (times_ns.to_numpy() - own["origin_ns"].to_numpy())
    error = own["offset_ns"].to_numpy() + np.rint(drift).astype(np.int64)
    return pd.Series(times_ns.to_numpy() - error, index=times_ns.index)


def _ends(calls: pd.DataFrame, matches: pd.DataFrame, clock_of: Ints, ranks: Ints) -> _Ends:
    usable = calls["collective"].isin(SYNCHRONISING) | calls["collective"].isna()
    joined = calls.loc[usable, ["call_id", "rank", "start_ns", "dur_ns"]].merge(
        matches.loc[matches["certain"].fillna(False), ["call_id", "collective_id"]], on="call_id"
    )
    every = -(-len(joined) // _ROWS_USED) or 1
    joined = joined[joined["collective_id"] % every == 0]
    table = pd.DataFrame({
        "collective": joined["collective_id"],
        "clock": clock_of[np.searchsorted(ranks, joined["rank"])],
        "start": joined["start_ns"],
        "end": joined["start_ns"] + joined["dur_ns"],
    }).groupby(["collective", "clock"], as_index=False).agg({"start": "max", "end": "min"})  # fmt: skip
    table = table[table.groupby("collective")["clock"].transform("size") > 1]
    return _Ends(*(table[c].to_numpy(dtype=np.int64) for c in ("collective", "clock", "start", "end")))


def _estimated(ends: _Ends, count: int) -> ClockFrame:
    """Offset and drift of every clock: ends and clocks in turn, each the median of what the others say."""
    model = ClockFrame.unlinked(count, int(ends.end_ns.min()) if len(ends.end_ns) else 0)
    link_by_ends(model, ends.collective, ends.clock, ends.end_ns)
    if not len(ends.collective):
        return model
    for _ in range(_ROUNDS):
        apart = _apart(ends, model)
        change = pd.Series(apart).groupby(ends.clock).median()
        model.offset_ns[change.index.to_numpy(dtype=np.int64)] += change.to_numpy()
        drifted = _add_drift(ends, model)
        if not drifted and np.abs(change.to_numpy()).max() < RESOLUTION_NS / 10:
            break
    _refer(model)
    return model


def _apart(ends: _Ends, model: ClockFrame) -> NDArray[np.float64]:
    """Each end against the median end of its collective, in ns, on the clocks of the model."""
    times = (ends.end_ns - model.origin_ns) - model.ahead(ends.clock, ends.end_ns)
    series = pd.Series(times)
    result: NDArray[np.float64] = (series - series.groupby(ends.collective).transform("median")).to_numpy()
    return result


def _refer(model: ClockFrame) -> None:
    """Let the first clock be right."""
    for component in np.unique(model.component):
        own = np.flatnonzero(model.component == component)
        model.offset_ns[own] -= model.offset_ns[own[0]]
        model.drift[own] -= model.drift[own[0]]


def _add_drift(ends: _Ends, model: ClockFrame) -> bool:
    """A slope for every clock that shows one; did any?"""
    drifted = False
    apart = _apart(ends, model)
    for clock in np.unique(ends.clock):
        own = ends.clock == clock
        drift = trend(ends.end_ns[own] - model.origin_ns, apart[own])
        if drift is not None:
            model.correct(int(clock), *drift)
            drifted = True
    return drifted


def _move_into_bounds(ends: _Ends, model: ClockFrame) -> None:
    """Offsets by which nobody leaves before everybody has arrived; half way at a time, for the others move too."""
    for _ in range(2 * _ROUNDS):
        low, high = _bounds(ends, model)
        low, high = np.maximum(low, -_UNBOUND), np.minimum(high, _UNBOUND)
        step = np.where(low > high, (low + high) / 2, np.clip(0, low, high)) / 2
        if np.abs(step).max() < 1:
            break
        model.offset_ns += step
    _refer(model)


def _bounds(ends: _Ends, model: ClockFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each offset could be moved down (<= 0) and up before somebody leaves before everybody has arrived."""
    count = len(model.offset_ns)
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    if not len(ends.collective):
        return low, high
    table = pd.DataFrame({
        "collective": ends.collective,
        "clock": ends.clock,
        "start": (ends.start_ns - model.origin_ns) - model.ahead(ends.clock, ends.start_ns),
        "end": (ends.end_ns - model.origin_ns) - model.ahead(ends.clock, ends.end_ns),
    })  # fmt: skip
    table["arrived"] = _of_others(table, "start", largest=True)
    table["left"] = _of_others(table, "end", largest=False)
    grouped = table.assign(low=table["start"] - table["left"], high=table["end"] - table["arrived"]).groupby("clock")
    clocks = grouped["low"].max().index.to_numpy(dtype=np.int64)
    low[clocks], high[clocks] = grouped["low"].max().to_numpy(), grouped["high"].min().to_numpy()
    return low, high


def _of_others(table: pd.DataFrame, column: str, *, largest: bool) -> pd.Series[float]:
    """The largest, or smallest, value among the other clocks of the same collective."""
    sign = 1 if largest else -1
    ordered = (sign * table[column]).sort_values(ascending=False, kind="stable")
    place = ordered.groupby(table["collective"].reindex(ordered.index)).cumcount()
    best = ordered[place == 0]
    second = ordered[place == 1]
    of_best = pd.Series(best.to_numpy(), index=table["collective"].reindex(best.index).to_numpy())
    of_second = pd.Series(second.to_numpy(), index=table["collective"].reindex(second.index).to_numpy())
    is_best = pd.Series(False, index=table.index)
    is_best[best.index] = True
    return sign * table["collective"].map(of_second).where(is_best, table["collective"].map(of_best))


def _against_reference(
    ends: _Ends, model: ClockFrame, centre: NDArray[np.float64], uncertainty: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The uncertainty against the reference: by way of all the others, or from the collectives shared with it."""
    references = np.array([np.flatnonzero(model.component == c)[0] for c in model.component])
    is_reference = references == np.arange(len(references))
    total = np.where(is_reference, 0, uncertainty + uncertainty[references])
    first = is_reference[ends.clock]
    frame = pd.DataFrame(
        {"start": _at(ends.start_ns, ends, model, centre), "end": _at(ends.end_ns, ends, model, centre)}
    )
    of_first = frame[first].set_axis(ends.collective[first])
    of_first = of_first[~of_first.index.duplicated()]
    low = frame["start"] - pd.Series(ends.collective).map(of_first["end"])
    high = frame["end"] - pd.Series(ends.collective).map(of_first["start"])
    direct = pd.DataFrame({"low": low, "high": high})[~first].dropna()
    grouped = direct.groupby(ends.clock[direct.index])
    lowest, highest = grouped["low"].max(), grouped["high"].min()
    proven = np.maximum(-lowest, highest)[(lowest <= 0) & (highest >= 0)]
    clocks = proven.index.to_numpy(dtype=np.int64)
    total[clocks] = np.minimum(total[clocks], proven.to_numpy())
    at_least: NDArray[np.float64] = np.maximum(total, RESOLUTION_NS)
    return at_least


def _at(times_ns: Ints, ends: _Ends, model: ClockFrame, centre: NDArray[np.float64]) -> NDArray[np.float64]:
    since_ns: Ints = times_ns - model.origin_ns - model.ahead(ends.clock, times_ns)
    on_clock: NDArray[np.float64] = since_ns.astype(np.float64) - centre[ends.clock]
    return on_clock


def _settled(
    ends: _Ends, model: ClockFrame, low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[ClockFrame, Ints]:
    """Offsets moved into their bounds, or left at 0 where the raw clocks agree; and the uncertainty of each in ns."""
    apart = pd.Series(np.abs(_apart(ends, model))).groupby(ends.clock).quantile(0.9)
    spread = np.zeros(len(low))
    spread[apart.index.to_numpy(dtype=np.int64)] = apart.to_numpy()
    low, high = np.where(np.isfinite(low), low, -_UNBOUND), np.where(np.isfinite(high), high, _UNBOUND)
    contradiction = np.maximum(low - high, 0)
    centre = np.where(contradiction > 0, (low + high) / 2, np.clip(0, low, high))
    proven = np.maximum(high - centre, centre - low)
    # Ends coincide to within COINCIDE_NS on one host; where they scatter more, so does what they tell.
    uncertainty = np.minimum(proven, np.maximum(COINCIDE_NS, 2 * spread)) + contradiction
    uncertainty = _against_reference(ends, model, centre, uncertainty)
    centre = centre - centre[[np.flatnonzero(model.component == c)[0] for c in model.component]]
    offset = model.offset_ns + centre
    raw = (np.abs(offset) <= uncertainty) & (-model.offset_ns >= low) & (-model.offset_ns <= high)
    raw &= model.drift == 0
    settled = ClockFrame(np.where(raw, 0.0, offset), model.drift, model.component, model.origin_ns)
    return settled, np.rint(uncertainty).astype(np.int64)
