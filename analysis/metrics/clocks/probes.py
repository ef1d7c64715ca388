"""The clock probe: a second witness, beside the collectives, of how far clocks are ahead.

When a capture begins and ends, one rank of every host exchanges messages with rank 0. That bounds how far its clock is
ahead of rank 0's at two moments, without any collective, so neither late ends nor wrong matches can mislead it. Between
the two moments it knows nothing, so its uncertainty grows with the distance from both. Where both witnesses overlap,
the overlap is believed; where they contradict each other, neither is, and the uncertainty covers both. Definitions:
docs/metrics/clock-probe.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...core.arrays import Floats, Ints
from .frame import LARGEST_DRIFT, ClockFrame

AGREE = "raw clocks agree within the uncertainty"
CONTRADICTION = "clock probe and collectives contradict each other"
_BOTH = "estimated from collectives and clock probe"
_LINKED = "estimated from clock probe"

# How much that may change during a capture, because of temperature or a time service that corrects it.
WANDER = 1e-6
# Linux lets no time service slew a clock faster (adjtimex(2)): a clock that changed more was set.
_LARGEST_SLEW = 500e-6


@dataclass(frozen=True)
class Ahead:
    """How far clocks are ahead when the window begins and ends, and how uncertain that is; both (clocks, 2), in ns."""

    ns: Floats
    uncertainty_ns: Floats

    def bounds(self, clock: int) -> tuple[Floats, Floats]:
        """The least and the most that a clock can be ahead, when the window begins and when it ends."""
        return self.ns[clock] - self.uncertainty_ns[clock], self.ns[clock] + self.uncertainty_ns[clock]


@dataclass(frozen=True)
class Witnessed:
    """Clocks by both witnesses, and `basis` by clock where the probe contributed.

    `probe` is what the probe says alone, NaN where it says nothing.
    """

    model: ClockFrame
    uncertainty_ns: Ints
    basis: Mapping[int, str]
    probe: Ahead


def probed(probes: pd.DataFrame, clock_of: Mapping[int, int], count: int, calls: pd.DataFrame) -> Ahead:
    """What the probe alone says about each of `count` clocks against rank 0's, NaN where it says nothing.

    `probes` and `calls` are the tables of these names; `clock_of` gives the clock of each rank.
    """
    moments = _moments(probes, clock_of)
    nothing = np.full((count, 2), np.nan)
    if len(moments) < 2:
        return Ahead(nothing, nothing)
    unlinked = ClockFrame.unlinked(np.arange(count), 0)
    return _against_rank_0(moments, _window(unlinked, moments, clock_of, calls))


def witnessed(
    model: ClockFrame, uncertainty_ns: Ints, probes: pd.DataFrame, clock_of: Mapping[int, int], calls: pd.DataFrame
) -> Witnessed:
    """Combine clocks by collectives with the probes.

    Where both know a clock, they are checked against each other, and the probe narrows its offset; where collectives do
    not link clocks, the probe does. `model` and `uncertainty_ns` are what collectives say. `clock_of` gives the clock
    of each rank; probes of other ranks are ignored.
    """
    moments = _moments(probes, clock_of)
    nothing = np.full((len(uncertainty_ns), 2), np.nan)
    if len(moments) < 2:
        return Witnessed(model, uncertainty_ns, {}, Ahead(nothing, nothing))
    measured = np.array(sorted(moments))
    touched = np.isin(model.component, model.component[measured])
    times = _window(model, moments, clock_of, calls)
    probe = _against_rank_0(moments, times)
    collective = _against_first(model, uncertainty_ns, times)
    anchors = _anchors(model, probe, collective, measured)
    first = int(np.flatnonzero(touched)[0])
    probe = _moved(probe, collective, anchors[model.component[first]])
    placed = _placed(model, probe, collective, anchors, int(model.component[first]))
    return _combined(Witnessed(model, uncertainty_ns, {}, probe), times, placed, first)


def _moments(probes: pd.DataFrame, clock_of: Mapping[int, int]) -> dict[int, list[tuple[int, int, int]]]:
    """(time on the clock, offset, uncertainty) of each measurement, in order of time, by clock; none for rank 0's."""
    known = probes[probes["rank"].isin(list(clock_of))]
    table = known.assign(clock=known["rank"].map(clock_of)).sort_values("uncertainty_ns", kind="stable")
    table = table.drop_duplicates(["clock", "at"]).sort_values("unix_ns", kind="stable")
    moments: dict[int, list[tuple[int, int, int]]] = {}
    for row in table[["clock", "unix_ns", "offset_ns", "uncertainty_ns"]].itertuples(index=False):
        moments.setdefault(int(row[0]), []).append((int(row[1]), int(row[2]), int(row[3])))
    if moments and 0 in clock_of:
        moments[clock_of[0]] = []
    return moments


def _window(
    model: ClockFrame,
    moments: Mapping[int, list[tuple[int, int, int]]],
    clock_of: Mapping[int, int],
    calls: pd.DataFrame,
) -> Ints:
    """What each clock showed when the first call of any rank began, and when the last one ended; (clocks, 2), in ns."""
    rough = np.zeros(len(model.offset_ns), dtype=np.int64)
    parts, anchors = np.unique(model.component[sorted(moments)], return_index=True)
    for part, anchor in zip(parts, anchors, strict=True):
        linked, clock = model.component == part, sorted(moments)[anchor]
        ahead = moments[clock][0][1] if moments[clock] else 0
        rough[linked] = ahead + np.rint(model.offset_ns[linked] - model.offset_ns[clock]).astype(np.int64)
    of_call = calls["rank"].map(clock_of).to_numpy(dtype=np.int64)
    here = np.isin(model.component[of_call], model.component[list(moments)])
    start = calls["start_ns"].to_numpy(dtype=np.int64)[here] - rough[of_call[here]]
    end = start + calls["dur_ns"].to_numpy(dtype=np.int64)[here]
    if not len(start):
        start = end = np.array([time - ahead for measurements in moments.values() for time, ahead, _ in measurements])
    times: Ints = rough[:, np.newaxis] + np.array([start.min(), end.max()])
    return times


def _against_rank_0(moments: Mapping[int, list[tuple[int, int, int]]], times: Ints) -> Ahead:
    """What the probe says about each clock against rank 0's, at `times` by that clock, of shape (clocks, 2)."""
    ahead, uncertainty = np.full(times.shape, np.nan), np.full(times.shape, np.nan)
    for clock, measurements in moments.items():
        if not measurements:
            ahead[clock] = uncertainty[clock] = 0
        elif len(measurements) == 1:
            ((time, offset, bound),) = measurements
            ahead[clock] = offset
            uncertainty[clock] = bound + LARGEST_DRIFT * np.abs(times[clock] - time).max()
        else:
            ahead[clock], uncertainty[clock] = _between(measurements[0], measurements[-1], times[clock])
    return Ahead(ahead, uncertainty)


def _between(first: tuple[int, int, int], last: tuple[int, int, int], times: Ints) -> tuple[Floats, Floats]:
    """The offset of a clock at these times, by the line through two measurements, and its uncertainty.

    That includes how far the clock may `WANDER` in between, and drift outside of the two.
    """
    (time, offset, bound), (last_time, last_offset, last_bound) = first, last
    span, change = last_time - time, last_offset - offset
    if abs(change) - bound - last_bound > _LARGEST_SLEW * span:  # it was set, at an unknown time
        low, high = min(offset - bound, last_offset - last_bound), max(offset + bound, last_offset + last_bound)
        return np.full(2, (low + high) / 2), np.full(2, (high - low) / 2)
    inside = times.clip(time, last_time)
    middle = min(max(time + span // 2, int(inside[0])), int(inside[1]))
    away = max(min(t - time, last_time - t) for t in (int(inside[0]), middle, int(inside[1])))
    outside = np.abs(times - inside).max()
    share = (inside - time) / max(span, 1)
    uncertainty: Floats = (1 - share) * bound + share * last_bound + WANDER * away + LARGEST_DRIFT * outside
    return offset + share * change, uncertainty


def _against_first(model: ClockFrame, uncertainty_ns: Ints, times: Ints) -> Ahead:
    """What the collectives say about each clock against the first one that they link it with."""
    since = times - model.origin_ns[:, np.newaxis]
    ahead = model.offset_ns[:, np.newaxis] + model.drift[:, np.newaxis] * since
    others = pd.Series(model.component).duplicated().to_numpy()
    return Ahead(ahead, np.where(others, uncertainty_ns, 0)[:, np.newaxis] + np.zeros((1, 2)))


def _anchors(model: ClockFrame, probe: Ahead, collective: Ahead, measured: Ints) -> dict[int, int]:
    """For each component that collectives link, the measured clock that both witnesses together know best."""
    total = (probe.uncertainty_ns + collective.uncertainty_ns).max(axis=1)
    ordered = measured[np.argsort(total[measured], kind="stable")]
    return {int(model.component[clock]): int(clock) for clock in ordered[::-1]}


def _moved(probe: Ahead, collective: Ahead, anchor: int) -> Ahead:
    """What the probe says, against the first clock instead of rank 0's; both witnesses know the `anchor`."""
    by = collective.ns[anchor] - probe.ns[anchor]
    uncertain = collective.uncertainty_ns[anchor] + probe.uncertainty_ns[anchor]
    return Ahead(probe.ns + by, probe.uncertainty_ns + uncertain)


def _placed(model: ClockFrame, probe: Ahead, collective: Ahead, anchors: Mapping[int, int], base: int) -> Ahead:
    """The collectives' offsets against the first clock: those of other components begin where the probe puts them."""
    ahead, uncertainty = collective.ns.copy(), collective.uncertainty_ns.copy()
    for component, anchor in anchors.items():
        if component == base:
            continue
        clocks = model.component == component
        ahead[clocks] += probe.ns[anchor] - collective.ns[anchor]
        uncertainty[clocks] += probe.uncertainty_ns[anchor] + collective.uncertainty_ns[anchor]
        uncertainty[anchor] = probe.uncertainty_ns[anchor]
    return Ahead(ahead, uncertainty)


def _combined(before: Witnessed, times: Ints, placed: Ahead, first: int) -> Witnessed:
    """What both witnesses together say about every clock; `placed` comes from `_placed`."""
    model, probe = before.model, before.probe
    origin_ns = np.where(model.origin_ns == 0, times[:, 0], model.origin_ns)
    frame = ClockFrame(model.offset_ns.copy(), model.drift.copy(), origin_ns, model.component.copy())
    total, basis = before.uncertainty_ns.copy(), {}
    measured = ~np.isnan(probe.ns[:, 0])
    linked = np.isin(model.component, model.component[measured])
    by_probe = linked & (model.component != model.component[first])
    frame.component[linked] = model.component[first]
    for clock in np.flatnonzero(linked & (measured | by_probe)).tolist():
        if clock == first:
            continue
        one = placed.bounds(clock)
        other = probe.bounds(clock) if measured[clock] else one
        both = np.maximum(one[0], other[0]), np.minimum(one[1], other[1])
        apart_ns = float((both[0] - both[1]).max())
        if apart_ns > 0:
            # One of the two is wrong, and nothing says which: the collectives' line stays, uncertain by both.
            line, basis[clock] = placed.ns[clock], f"{CONTRADICTION} by {apart_ns / 1e6:.3f} ms"
            either = np.minimum(one[0], other[0]), np.maximum(one[1], other[1])
            total[clock] = round(float(np.maximum(either[1] - line, line - either[0]).max()))
        else:
            line, total[clock] = _line(*both, drifts=bool(model.drift[clock]))
            basis[clock] = (_LINKED if by_probe[clock] else _BOTH) if line.any() else AGREE
        _draw(frame, clock, times[clock], line)
    return Witnessed(frame, total, basis, probe)


def _line(low: Floats, high: Floats, *, drifts: bool) -> tuple[Floats, int]:
    """The simplest offset between two bounds, when the window begins and ends, and its uncertainty, in ns.

    It is 0 if the bounds allow that, else constant, else changing. A clock that `drifts`, as collectives say, changes.
    """
    at_least, at_most = low.max(), high.min()
    if drifts or at_least > at_most:
        return (low + high) / 2, round(float((high - low).max() / 2))
    constant = 0.0 if at_least <= 0 <= at_most else (at_least + at_most) / 2
    return np.full(2, constant), round(float(max(high.max() - constant, constant - low.min())))


def _draw(frame: ClockFrame, clock: int, times: Ints, ahead: Floats) -> None:
    """Set the offset and drift of a clock so that it is ahead by this at these two times. Changes `frame`."""
    drift = (ahead[1] - ahead[0]) / max(int(times[1] - times[0]), 1)
    frame.drift[clock] = drift
    frame.offset_ns[clock] = ahead[0] + drift * int(frame.origin_ns[clock] - times[0])
