"""The table of clocks, and times without the errors of clocks.

There are three witnesses. Collectives come first, as they need nothing but the trace: their ends coincide, which gives
offsets, and no rank ends before all have begun, which bounds them. Messages link what no collective links. A clock
probe, if there is one, narrows or contradicts both, and links what is left. `basis` says on which of them an offset
rests. Definitions: docs/metrics/clocks.md and docs/metrics/clock-probe.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ....common.nccl_tests import SYNCHRONISING
from ...core.arrays import Flags, Ints
from ...core.schema import Row
from ...core.tables.communication import CLOCK_PROBES
from .ends import RESOLUTION_NS, Ends, alike_codes
from .estimate import ClockEstimate, estimated
from .frame import Bends, ClockFrame
from .messages import Bounded, bounded, messages_of
from .probes import AGREE, Witnessed, witnessed

_ROWS_USED = 400_000
_ALIKE = ["process_group", "pg_ranks", "collective"]


def clock_rows(
    calls: pd.DataFrame,
    matches: pd.DataFrame,
    hosts: Mapping[int, str | None],
    probes: pd.DataFrame | None,
    sharing: Collection[int],
) -> Iterator[Row]:
    """Rows of the table of clocks, one per rank: the offset and drift of its clock, and how uncertain they are.

    `calls`, `matches` and `probes` are the tables of these names. `hosts` gives the host of each rank, None where it is
    not known; ranks of one host share a clock, but GPUs convert it differently; `sharing` are ranks that share a GPU.
    Clocks are compared only where collectives, messages or probes link them; offsets are against the first rank of
    those linked.
    """
    ranks = np.array(sorted(hosts), dtype=np.int64)
    names = [hosts[int(r)] or f"rank {r}" for r in ranks]
    host_of, _ = pd.factorize(np.array(names, dtype=object))
    named = np.array([hosts[int(r)] is not None for r in ranks])
    # Where all ranks of a host share GPUs, it is taken to have one GPU, and so one clock.
    alone = np.isin(host_of, host_of[~np.isin(ranks, list(sharing))])
    estimate = _estimate(calls, matches, ranks, host_of.astype(np.int64), named, ~alone)
    by_messages = bounded(estimate.frame, estimate.uncertainty_ns, messages_of(calls, matches, ranks))
    estimate = replace(estimate, frame=by_messages.frame, uncertainty_ns=by_messages.uncertainty_ns)
    probes = CLOCK_PROBES.empty() if probes is None else probes
    known = _with_probe(estimate, by_messages, host_of, ranks, probes, calls)
    return (_row(clock, ranks, hosts, host_of, known) for clock in range(len(ranks)))


def rows_without_starts(hosts: Mapping[int, str | None]) -> Iterator[Row]:
    """Rows of the table of clocks of a run that does not say when calls began: nothing is compared by them.

    Durations are known to within `RESOLUTION_NS`.
    """
    plain = {"offset_ns": 0, "drift_ppm": 0.0, "origin_ns": 0, "basis": NO_STARTS}
    plain |= {"uncertainty_ns": RESOLUTION_NS, "bent_uncertainty_ns": RESOLUTION_NS}
    return ({"rank": rank, "host": hosts[rank], "linked": rank, **plain} for rank in sorted(hosts))


@dataclass(frozen=True)
class _Known:
    """The clocks of ranks by all witnesses; `of_hosts` is the same by host, with what the probe alone says."""

    frame: ClockFrame
    uncertainty_ns: Ints
    late: Flags
    by_messages: Bounded
    of_hosts: Witnessed


def _estimate(
    calls: pd.DataFrame, matches: pd.DataFrame, ranks: Ints, host_of: Ints, named: Flags, of_one_gpu: Flags
) -> ClockEstimate:
    ends = matched_ends(calls, matches, ranks)
    on_cpu = calls.loc[calls["device"] == "cpu", "rank"].unique()
    zero_ns = int(ends.end_ns.min()) if len(ends.end_ns) else 0
    estimate = estimated(ends, host_of, zero_ns, shared=np.isin(ranks, on_cpu) | of_one_gpu, named=named)
    if not len(ends.end_ns):
        return estimate
    first_ns = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(first_ns, ends.clock, ends.end_ns)
    unseen = first_ns == np.iinfo(np.int64).max
    return replace(estimate, frame=estimate.frame.since(np.where(unseen, estimate.frame.origin_ns, first_ns)))


def matched_ends(calls: pd.DataFrame, matches: pd.DataFrame, ranks: Ints) -> Ends:
    """The calls that are evidence on clocks: matched for certain, and of kinds that no rank ends before all have begun.

    In a large run only some of the collectives. `ranks`, ascending, has the rank of each clock.
    """
    usable = calls["collective"].isin(SYNCHRONISING) | calls["collective"].isna()
    joined = calls.loc[usable, ["call_id", "rank", "start_ns", "dur_ns", *_ALIKE, "size_bytes"]].merge(
        matches.loc[matches["certain"].fillna(False), ["call_id", "collective_id"]], on="call_id"
    )
    every = -(-len(joined) // _ROWS_USED) or 1
    joined = joined[joined["collective_id"] % every == 0]
    several = joined.groupby("collective_id")["rank"].transform("nunique") > 1
    table = joined[several].sort_values(["collective_id", "rank"])
    number = pd.factorize(table["collective_id"])[0].astype(np.int64)
    group = table.groupby(_ALIKE[:-1], dropna=False, sort=False).ngroup().to_numpy(dtype=np.int64)
    kind = pd.factorize(table[_ALIKE[-1]])[0].astype(np.int64)
    size = table["size_bytes"].fillna(0).to_numpy(dtype=np.int64)
    return Ends(
        number,
        np.searchsorted(ranks, table["rank"]),
        table["start_ns"].to_numpy(dtype=np.int64),
        (table["start_ns"] + table["dur_ns"]).to_numpy(dtype=np.int64),
        alike_codes(number, group, kind, size),
    )


def _with_probe(
    estimate: ClockEstimate,
    by_messages: Bounded,
    host_of: Ints,
    ranks: Ints,
    probes: pd.DataFrame,
    calls: pd.DataFrame,
) -> _Known:
    """Combine the estimate with the clock probe, which measures hosts; how GPUs differ from their hosts stays."""
    frame = estimate.frame
    first = np.unique(host_of, return_index=True)[1]
    hosts = ClockFrame(frame.offset_ns[first], frame.drift[first], frame.origin_ns[first], _parts(frame, first))
    known = dict(zip(ranks.tolist(), host_of.tolist(), strict=True))
    of_hosts = witnessed(hosts, estimate.uncertainty_ns[first], probes, known, calls)
    more = estimate.uncertainty_ns - estimate.uncertainty_ns[first][host_of]
    level = frame.offset_ns - frame.offset_ns[first][host_of]
    return _Known(
        ClockFrame(
            of_hosts.model.offset_ns[host_of] + level,
            of_hosts.model.drift[host_of],
            of_hosts.model.origin_ns[host_of],
            of_hosts.model.component[host_of],
            frame.bends,
        ),
        np.maximum(of_hosts.uncertainty_ns[host_of] + np.maximum(more, 0), RESOLUTION_NS),
        estimate.late,
        by_messages,
        of_hosts,
    )


def _parts(frame: ClockFrame, first: Ints) -> Ints:
    """The components of the clocks at `first`, each as the position of its first member there."""
    _, begins, which = np.unique(frame.component[first], return_index=True, return_inverse=True)
    parts: Ints = begins[which]
    return parts


def _row(clock: int, ranks: Ints, hosts: Mapping[int, str | None], host_of: Ints, known: _Known) -> Row:
    """The row of one rank; the reference of linked clocks is that of their first rank."""
    frame, host = known.frame, int(host_of[clock])
    linked = frame.component == frame.component[clock]
    probe, bound = known.of_hosts.probe.ns[host, 0], known.of_hosts.probe.uncertainty_ns[host].max()
    rank = int(ranks[clock])
    bends = frame.bends.get(clock)
    return {
        "rank": rank,
        "host": hosts[rank],
        "linked": int(ranks[linked][0]),
        "offset_ns": round(float(frame.offset_ns[clock])),
        "drift_ppm": float(frame.drift[clock]) * 1e6,
        "origin_ns": int(frame.origin_ns[clock]),
        "uncertainty_ns": int(known.uncertainty_ns[clock]) + (bends.largest_ns if bends is not None else 0),
        "bends": None if bends is None else str(bends),
        "bent_uncertainty_ns": int(known.uncertainty_ns[clock]),
        "probe_offset_ns": None if np.isnan(probe) else round(float(probe)),
        "probe_uncertainty_ns": None if np.isnan(bound) else round(float(bound)),
        "basis": _basis(clock, hosts[rank], host_of, linked, known),
    }


def _basis(clock: int, host: str | None, host_of: Ints, linked: Flags, known: _Known) -> str:
    """Which evidence the offset of a clock rests on, in words."""
    by_probe = known.of_hosts.basis.get(int(host_of[clock]))
    if by_probe:
        return by_probe
    frame = known.frame
    one_host = bool((host_of[linked] == host_of[clock]).all())
    if one_host and known.by_messages.one_side[clock]:
        return ONE_SIDE
    if one_host and linked.sum() == 1:
        return "no collective links it to another rank"
    bends = frame.bends.get(clock)
    if bends is not None:
        return JUMPS if bends.jumps.any() else CURVED
    if known.by_messages.linked[clock]:
        return BOTH_SIDES
    if known.late[clock]:
        return LATE
    if frame.offset_ns[clock] != 0 or frame.drift[clock] != 0:
        return "GPU's clock differs from its host's, estimated from collectives" if one_host else _ESTIMATED
    return f"all linked ranks ran on {host}" if one_host else AGREE


NO_STARTS = "not used: durations alone are known, and ranks are taken to end each collective together"
ONE_SIDE = "messages in one direction only: its clock is bounded on one side, and cannot be compared"
BOTH_SIDES = "bounded by messages in both directions"
JUMPS = "estimated from collectives in parts: it jumps against the clock it is compared with"
CURVED = "estimated from collectives in parts: it does not run evenly"
LATE = "raw clock; its calls always end late, or the clock is off, and nothing tells which"
_ESTIMATED = "estimated from collectives"


def aligned(times_ns: pd.Series[int], rank: pd.Series[int], clocks: pd.DataFrame) -> pd.Series[int]:
    """Times on a common clock, in ns: without the error of each rank's clock, comparable among linked ranks.

    `rank` is the rank whose clock showed each time, `clocks` the table.
    """
    known = ["offset_ns", "drift_ppm", "origin_ns"]
    of_time = clocks.set_index("rank")[known].loc[rank]  # an error for a rank without a clock
    offset_ns, drift_ppm, origin_ns = (of_time[key].to_numpy() for key in known)
    common = on_common_clock(times_ns.to_numpy(), offset_ns, drift_ppm, origin_ns)
    for rows, bends in _bends(clocks, rank):
        common[rows] -= bends.added(times_ns.to_numpy()[rows])
    return pd.Series(common, index=times_ns.index)


def unclear(times_ns: pd.Series[int], rank: pd.Series[int], clocks: pd.DataFrame) -> pd.Series[bool]:
    """Whether each time lies where the clock of its rank jumped, at an unknown moment, and so cannot be compared."""
    result = np.zeros(len(times_ns), dtype=bool)
    for rows, bends in _bends(clocks, rank):
        result[rows] = bends.unclear(times_ns.to_numpy()[rows])
    return pd.Series(result, index=times_ns.index)


def _bends(clocks: pd.DataFrame, rank: pd.Series[int]) -> Iterator[tuple[Ints, Bends]]:
    """Yield the positions of the times of each clock that bends, and its bends; `rank` is that of each time."""
    bent = clocks[clocks["bends"].notna()]
    if len(bent):
        positions = rank.groupby(rank.to_numpy()).indices
        for which, text in zip(bent["rank"], bent["bends"], strict=True):
            yield np.asarray(positions.get(which, []), dtype=np.int64), Bends.parsed(text)


def on_common_clock(
    times_ns: Ints, offset_ns: int | Ints, drift_ppm: float | NDArray[np.float64], origin_ns: int | Ints
) -> NDArray[np.int64]:
    """Times without the error of a clock, in ns, but for its bends; the error is given as in the table of clocks.

    One value for all times, or one per time.
    """
    drift = drift_ppm / 1e6 * (times_ns - origin_ns)
    common: NDArray[np.int64] = times_ns - (offset_ns + np.rint(drift).astype(np.int64))
    return common
