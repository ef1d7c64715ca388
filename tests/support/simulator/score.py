"""How far an analysis is right: its tables beside the truth of a simulated world."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .clock import EPOCH_NS
from .compared import Compared
from .truth import Truth

_NONE = (float("nan"), float("nan"), float("nan"))
_CLEARLY_LATE_US, _CLEARLY_LAST_US = 100.0, 50.0
BECAUSE = {
    "kernel": "compute", "slower": "compute", "copies": "memory", "comm": "comm",
    "block": "cpu", "data": "data", "python": "cpu", "op": "cpu",
}  # fmt: skip
"""Kind of an injection -> the word for it in the table `lateness`."""


@dataclass(frozen=True)
class Score:
    """Calls and collectives of an analysis against the truth; fractions of nothing are 1.

    calls, unknown, missed: rows of the truth, calls of the analysis that are none, and the reverse.
    wrong, wrong_certain: collectives of which two calls, or two certain calls, share no true collective.
    right_frac: of the calls with another shown member, those in a collective of exactly the shown members of a true
    one of theirs; found_frac: likewise of pairs of call and true collective; certain_frac: of the same calls.
    split_frac: calls with a wait, of those whose collectives all ranks show.
    wait_error_us, offset_error_us: median, 95th percentile and largest. offsets_covered: of so many ranks, those whose
    offset is no farther from the truth than its uncertainty. transfer_ratio: transfer time of the analysis / true one,
    5th percentile, median, 95th, over the right collectives. busbw_ratio: by (ranks, collective, bytes), likewise.
    late_named, late_because: of so many collectives that an injection made clearly late, those for which `lateness`
    names the rank, and for that the right reason.
    """

    calls: int = 0
    unknown: int = 0
    missed: int = 0
    wrong: int = 0
    wrong_certain: int = 0
    right_frac: float = 1.0
    found_frac: float = 1.0
    certain_frac: float = 1.0
    split_frac: float = 1.0
    wait_error_us: tuple[float, float, float] = _NONE
    offset_error_us: tuple[float, float, float] = _NONE
    offsets_covered: tuple[int, int] = (0, 0)
    transfer_ratio: tuple[float, float, float] = _NONE
    late_named: tuple[int, int] = (0, 0)
    late_because: tuple[int, int] = (0, 0)
    busbw_ratio: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(f"{f.name:16} {_told(getattr(self, f.name))}" for f in fields(self))


def score(analysis: Any, truth: Truth) -> Score:
    """The score of `analysis.analyse(folder)`."""
    compared = Compared(analysis, truth)
    right, found = compared.right
    together, whole = compared.calls_together, compared.calls_whole
    certain = set(compared.rows["call"][compared.rows["certain"]])
    covered, offset_error = _offsets(analysis.clocks, truth)
    named, because = _lateness(analysis, compared)
    return Score(
        calls=len(truth.calls),
        unknown=compared.unknown,
        missed=len(truth.calls) - compared.rows["call"].nunique(),
        wrong=sum(compared.is_wrong(calls) for calls in compared.by_collective.values()),
        wrong_certain=sum(compared.is_wrong(calls) for calls in compared.certain_by_collective.values()),
        right_frac=_part(right, together),
        found_frac=_part(found, compared.pairs_together),
        certain_frac=_part(certain, together),
        split_frac=_part(set(compared.waits.index), whole),
        wait_error_us=_spread(np.abs(compared.wait_errors_ns) / 1000, (50, 95, 100)),
        offset_error_us=_spread(offset_error, (50, 95, 100)),
        offsets_covered=covered,
        transfer_ratio=_spread(_transfers(analysis, compared), (5, 50, 95)),
        late_named=named,
        late_because=because,
        busbw_ratio=_busbw(analysis.bandwidth, truth),
    )


def _part(some: set[Any], of: set[Any]) -> float:
    return len(some & of) / len(of) if of else 1.0


def _spread(values: NDArray[np.float64], percentiles: tuple[int, int, int]) -> tuple[float, float, float]:
    if not len(values):
        return _NONE
    low, middle, high = np.percentile(values, percentiles).tolist()
    return low, middle, high


def _offsets(clocks: pd.DataFrame, truth: Truth) -> tuple[tuple[int, int], NDArray[np.float64]]:
    """Of how many ranks offset and drift are covered by their uncertainty, and errors in us, the largest of each."""
    errors = clock_errors(clocks, truth)
    return (int(errors["covered"].sum()), len(errors)), errors["line_us"].to_numpy(dtype=np.float64)


def clock_errors(clocks: pd.DataFrame, truth: Truth) -> pd.DataFrame:
    """The largest error of every clock against the one it is linked with, over the calls that its rank shows.

    `line_us`: of offset and drift alone; `covered` if it is within `uncertainty_ns`. `time_us`: of times without all
    that is known of the clock, but where the table says that it is not known; `time_covered` likewise.
    """
    rows = []
    for row in clocks.to_dict("records"):
        rank, reference = row["rank"], row["linked"]
        own = truth.calls[truth.calls["rank"] == rank]
        if rank == reference or not len(own):
            continue
        true_us = _compared_us(truth, own, reference)
        if not len(true_us):
            continue
        shown, right = (_gpu_shown_ns(truth, which, true_us) for which in (rank, reference))
        line = row["offset_ns"] + row["drift_ppm"] / 1e6 * (shown - (row["origin_ns"] - EPOCH_NS))
        bend, unclear = _bent(row.get("bends"), shown)
        line_ns = np.abs(shown - right - line).max()
        time_ns = np.abs(np.where(unclear, 0.0, shown - right - line - bend)).max()
        within = row.get("bent_uncertainty_ns", row["uncertainty_ns"])
        rows.append(
            (rank, line_ns / 1000, line_ns <= row["uncertainty_ns"], time_ns / 1000, time_ns <= within, within / 1000)
        )
    return pd.DataFrame(rows, columns=["rank", "line_us", "covered", "time_us", "time_covered", "stated_us"])


def _compared_us(truth: Truth, own: pd.DataFrame, reference: int) -> NDArray[np.float64]:
    """When calls of a rank begin and end, from the first to the last time that anything links its clock.

    Those are the ends of what it shares with ranks of other hosts, or of the host of the clock that it is linked with.
    """
    host = truth.clocks.set_index("rank")["host"]
    near = set(host.index[host == host[reference]])
    members = truth.collectives.set_index("collective")["members"]
    links = [any(near & set(members[number]) for number in numbers) for numbers in own["collectives"]]
    ends = own["true_end_us"][links]
    times = own[["true_start_us", "true_end_us"]].to_numpy(dtype=np.float64).ravel()
    inside: NDArray[np.float64] = times[(times >= ends.min()) & (times <= ends.max())]
    return inside


def _gpu_shown_ns(truth: Truth, rank: int, true_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the times of a rank's GPU say, in ns since `EPOCH_NS`."""
    clock = truth.shown_by[rank]
    return np.array([clock.shown_us(time + clock.gpu_error_us) * 1000 for time in true_us])


def _bent(bends: object, shown: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """What `bends` of a clock adds at these times, and where it says that a clock jumps, at an unknown moment."""
    if not isinstance(bends, str):
        return np.zeros(len(shown)), np.zeros(len(shown), dtype=bool)
    at, by = np.array([knot.split(":") for knot in bends.replace(">", " ").split()], dtype=np.int64).T
    jumps = np.array([mark == ">" for mark in bends if mark in "> "])
    at = at - EPOCH_NS
    part = np.searchsorted(at, shown).clip(1, len(at) - 1)
    inside = (shown > at[0] + 1) & (shown < at[-1] - 1) & (shown - at[part - 1] > 1) & (at[part] - shown > 1)
    return np.interp(shown, at, by), inside & jumps[part - 1]


def _transfers(analysis: Any, compared: Compared) -> NDArray[np.float64]:
    """Transfer time / true one, of the collectives that are right."""
    took = analysis.collectives.dropna(subset=["transfer_ns"]).set_index("collective_id")["transfer_ns"]
    true_us = compared.truth.collectives["T_us"].to_numpy()
    known = [(took[c] / 1000, true_us[number]) for c, number in compared.true_number.items() if c in took.index]
    return np.array([own / true for own, true in known], dtype=np.float64)


def _busbw(bandwidth: pd.DataFrame, truth: Truth) -> dict[tuple[str, str, int], float]:
    """Bus bandwidth / true one, by ranks of the group, collective and size in bytes."""
    names = ["pg_ranks", "collective", "size_bytes"]
    true = truth.collectives.drop(columns="collective").rename(columns={"op": "collective"})
    by_key = true.groupby(names)
    expected = (by_key["size_bytes"].sum() * by_key["bus_factor"].first() / by_key["T_us"].sum() / 1000).to_dict()
    measured = bandwidth.dropna(subset=["busbw_gb_per_s", "pg_ranks"])
    keys = zip(*(measured[name].tolist() for name in names), measured["busbw_gb_per_s"].tolist(), strict=True)
    return {key: value / expected[key] for *parts, value in keys if (key := tuple(parts)) in expected}


def _lateness(analysis: Any, compared: Compared) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the collectives that an injection made clearly late: those whose rank is named, and then the reason."""
    expected = _clearly_late(compared)
    if not expected:
        return (0, 0), (0, 0)
    numbers = {number: collective for collective, number in compared.true_number.items()}
    told = analysis.lateness.drop_duplicates("collective_id").set_index("collective_id")
    named = because = 0
    for number, (rank, kind) in expected.items():
        collective = numbers.get(number)
        if collective in told.index and told.loc[collective, "rank"] == rank:
            named += 1
            reason = told.loc[collective, "because"]
            because += bool(reason == BECAUSE[kind]) if isinstance(reason, str) else 0
    return (named, len(expected)), (because, named)


def _clearly_late(compared: Compared) -> dict[int, tuple[int, str]]:
    """True collective -> last rank and why: shown by all, with a last rank that an injection of its own made late."""
    calls, found = compared.truth.calls, {}
    known = compared.truth.collectives
    starts, late = calls["true_start_us"].to_numpy(), calls["late_us"].to_numpy()
    for number, members in compared.shown.items():
        if not known["synchronising"][number] or len(members) != len(known["members"][number]) or len(members) < 2:
            continue
        *_, second, last = sorted(members, key=lambda call: starts[call])
        own = calls["late_from"][last] == calls["rank"][last]
        clearly = late[last] > _CLEARLY_LATE_US and starts[last] - starts[second] > _CLEARLY_LAST_US
        if clearly and own is not pd.NA and own:
            found[number] = (int(calls["rank"][last]), str(calls["label"][last]))
    return found


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(_told(each) for each in value)
    if isinstance(value, dict):
        worst = sorted(value.items(), key=lambda item: -abs(item[1] - 1))
        return f"{len(worst)} groups and sizes" + "".join(f"; {ratio:.3f} {key}" for key, ratio in worst[:3])
    return f"{value:.4g}" if isinstance(value, float) else str(value)
