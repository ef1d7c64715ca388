"""Make the table `verdicts`. Thresholds and rules: docs/metrics/verdicts.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from ....common.nccl_tests import POINT_TO_POINT, SYNCHRONISING, bus_factor
from ...core.schema import Row, records
from ..causes.blame import kernel_of
from ..causes.cpu_work import InPython
from ..compute.contention import Slowdown, usual_slowdown
from ..device.largest_gaps import HeldBy, LargestGaps
from ..device.longer import Longer
from ..prices import Prices
from ..roles.names import group_in_words
from ..roles.table import with_roles
from ..typical_step import TypicalStep
from . import words
from .culprits import Culprits
from .devices import Unequal
from .durations import of_durations, run_of_durations, waiting_of
from .of_run import Fastest, KnownCalls, Step, of_run
from .thresholds import HIDDEN_BELOW, LATENCY_FACTOR, LEAST_SPLIT, LITTLE_BYTES, SKEW_FROM
from .unsplit import reason

_KEYS = ["process_group", "pg_ranks", "collective", "dtype", "size_bytes"]


class Measured(NamedTuple):
    """What verdicts rest on: tables of these names, and more.

    `ranks` have a trace, `missing` ones of the job have none; `world_size` is None if it is not known. The verdict on
    the run rests on the `typical` step, and on the rows of `participation` in its steps, `of_typical`. Both are None
    where the files do not say when calls started, since then it is not known what was exposed.

    Of these steps, `culprits` are the ranks that others waited for, `idle` the causes of idle time in ns, and `gaps`
    what the largest gaps come before; `prices` is what a step would gain without each cause, None where the run cannot
    be replayed. `culprits_in` gives the culprits in other steps, taken as one event. `on_cpus` is whether CPUs
    communicated beside GPUs, `idle_gpus` are listed in the traces without any activity; `unequal_devices` are
    those of a process, None if they are not unequal. `ranges` is the idle time in NVTX ranges where programs are
    known to be in other languages than Python, by name in ns, else None; `holders` are what CPUs were in for most of
    a part of idle time; `longer` gives what says why steps are longer, None where that is not known;
    `threads` is what threads did in idle time on CPUs, None if that is not known. `slowdowns` gives how many times as
    long compute of each rank takes beside communication, as far as that was measured.
    """

    collectives: pd.DataFrame
    groups: pd.DataFrame
    participation: pd.DataFrame
    fits: pd.DataFrame
    hangs: pd.DataFrame
    clocks: pd.DataFrame
    ranks: Collection[int]
    missing: list[int]
    world_size: int | None
    steps: pd.DataFrame
    by_device: pd.DataFrame
    typical: TypicalStep | None
    of_typical: pd.DataFrame | None
    culprits: Culprits
    culprits_in: Callable[[Collection[int]], Culprits]
    idle: dict[str, float] | None
    gaps: LargestGaps
    syncs_steps: pd.DataFrame
    prices: Prices | None
    on_cpus: bool
    idle_gpus: Sequence[str]
    unequal_devices: Unequal | None
    ranges: Mapping[str, float] | None
    holders: Mapping[str, HeldBy]
    longer: Callable[[], Longer | None]
    threads: InPython | None
    slowdowns: Callable[[], Mapping[int, Slowdown]]

    @property
    def has_starts(self) -> bool:
        """Whether it is known when calls started."""
        return self.of_typical is not None


def verdict_rows(measured: Measured) -> list[Row]:
    """The rows of `verdicts`: the run first, then a row per process group, collective, dtype and size.

    Those with most exposed time come first.
    """
    calls = measured.participation.merge(measured.collectives[["collective_id", *_KEYS]], on="collective_id")
    if not len(calls) and not len(measured.hangs) and measured.typical is None:
        return []
    rows: list[tuple[int, Row]] = []
    for keys, calls_of_size in calls.groupby(_KEYS, dropna=False):
        row = _measured(dict(zip(_KEYS, keys, strict=True)), calls_of_size)
        is_split = row["split_frac"] is not None and row["split_frac"] >= LEAST_SPLIT
        why = "" if is_split else _reason(calls_of_size, measured)
        latency_us = _latency_us(row, measured.fits)
        if measured.has_starts:
            row["verdict"] = _of_size(row, latency_us)
            slowed = _slowed(row, calls_of_size, measured)
            row["because"] = words.size_in_words(row["verdict"], row, latency_us, why, slowed)
        else:
            row |= _NOTHING_EXPOSED
            waiting = waiting_of(calls_of_size)
            row["verdict"] = of_durations(row, waiting, latency_us, is_split=is_split)
            row["because"] = words.durations_in_words(row["verdict"], row, waiting, latency_us, why)
        rows.append((row["exposed_ns"] or 0 if measured.has_starts else int(calls_of_size["dur_ns"].sum()), row))
    run = _measured({"collective": "run"}, calls)
    if not measured.has_starts:
        run |= _NOTHING_EXPOSED
    verdict = _of_run(measured, run, calls)
    run |= {
        "verdict": verdict.verdict,
        "headline": verdict.headline or verdict.because,
        "headline_ranks": " ".join(map(str, verdict.ranks)) or None,
        "why": verdict.why or None,
        "because": verdict.because,
        "not_known": verdict.not_known or None,
    }
    rows.sort(key=lambda row: -row[0])
    return [run, *(row for _, row in rows)]


_NOTHING_EXPOSED: Row = {"exposed_ns": None, "exposed_wait_frac": None, "hidden_frac": None}


def _reason(calls: pd.DataFrame, measured: Measured) -> str:
    are_whole = measured.typical is not None and bool(measured.typical.steps)
    return reason(
        calls,
        measured.collectives,
        measured.clocks,
        set(measured.ranks),
        in_whole_steps=measured.of_typical["call_id"] if measured.of_typical is not None and are_whole else (),
        some_missing=bool(measured.missing),
        has_starts=measured.has_starts,
    )


def _measured(row: Row, calls: pd.DataFrame) -> Row:
    """Counts and shares of the calls of a row. Sends and receives of one kernel count once."""
    kernels = calls[~kernel_of(calls).duplicated()]
    split = kernels[kernels["wait_ns"].notna()]
    wait, transfer = int(split["exposed_wait_ns"].sum()), int(split["exposed_transfer_ns"].sum())
    spent, every = int(split["dur_ns"].sum()), int(kernels["dur_ns"].sum())
    return row | {
        "calls": len(calls),
        "split_calls": int(calls["wait_ns"].notna().sum()),
        "split_frac": spent / every if every else None,
        "exposed_ns": wait + transfer if len(split) else None,
        "exposed_wait_frac": wait / (wait + transfer) if wait + transfer else None,
        "hidden_frac": 1 - (wait + transfer) / spent if spent else None,
        "transfer_us": float(split["transfer_ns"].median()) / 1000 if len(split) else None,
    }


def _slowed(row: Row, calls: pd.DataFrame, measured: Measured) -> float | None:
    """How many times as long compute takes beside communication on the ranks of calls that it hides, if measured."""
    if row["verdict"] != "hidden":
        return None
    return usual_slowdown(measured.slowdowns(), set(calls["rank"].tolist()))


def _latency_us(row: Row, fits: pd.DataFrame) -> float | None:
    same = fits["collective"] == row["collective"]
    for key in ("process_group", "pg_ranks"):
        same &= (fits[key] == row[key]).fillna(False) | (fits[key].isna() & pd.isna(row[key]))
    return float(fits.loc[same, "latency_us"].iloc[0]) if same.any() else None


def _of_size(row: Row, latency_us: float | None) -> str:
    if (row["split_frac"] or 0) < LEAST_SPLIT:
        return "inconclusive"
    waiting, hidden = row["exposed_wait_frac"], row["hidden_frac"]
    if hidden is not None and hidden > 1 - HIDDEN_BELOW:
        return "hidden"
    if waiting is not None and waiting >= SKEW_FROM:
        return "skew-bound"
    if latency_us is not None and row["transfer_us"] < LATENCY_FACTOR * latency_us:
        return "latency-bound"
    return "transfer-bound"


def _beyond_fastest(participation: pd.DataFrame) -> float | None:
    """The part of the calls' time by which they took longer than the fastest similar call; None if none is similar."""
    known = participation[participation["excess_ns"].notna()]
    spent = int(known["dur_ns"].sum())
    return int(known["excess_ns"].sum()) / spent if spent else None


def _fastest(calls: pd.DataFrame, collectives: pd.DataFrame) -> Fastest | None:
    """The fastest call of the size that takes most time; None if few sizes are known."""
    sized = calls.merge(collectives[["collective_id", "group_size"]], on="collective_id")
    sized = sized[~kernel_of(sized).duplicated()]
    spent = int(sized["dur_ns"].sum())
    sized = sized.dropna(subset=["collective", "size_bytes", "group_size"])
    sized = sized[(sized["size_bytes"] > 0) & (sized["group_size"] > 1) & sized["collective"].isin(SYNCHRONISING)]
    if not len(sized) or int(sized["dur_ns"].sum()) < LEAST_SPLIT * spent:
        return None
    of_size = sized.groupby(["collective", "size_bytes", "group_size"], as_index=False)["dur_ns"].agg(["sum", "min"])
    (most,) = records(of_size.sort_values("sum", kind="stable").tail(1))
    if most["size_bytes"] < LITTLE_BYTES:
        return None
    gb_per_s = most["size_bytes"] * bus_factor(most["collective"], most["group_size"]) / most["min"]
    return Fastest(most["collective"], most["size_bytes"], gb_per_s)


def _of_run(measured: Measured, row: Row, calls: pd.DataFrame) -> words.RunVerdict:
    if len(measured.hangs):
        row = records(with_roles(measured.hangs, measured.groups).head(1))[0]
        ranks = [int(rank) for rank in (row["pg_ranks"] or "").split()]
        return words.hang(row, group_in_words(row["role"], ranks) if row["role"] is not None else None)
    if measured.typical is None or measured.of_typical is None:
        return words.run_of_durations_in_words(run_of_durations(calls, measured.culprits, _reason(calls, measured)))
    if measured.idle_gpus:
        return words.without_gpu(Step.of(measured.typical), measured.idle_gpus)
    communication = KnownCalls(
        calls=row["calls"],
        split_calls=row["split_calls"],
        why=_reason(measured.participation, measured),
        waited_at_least_ns=measured.typical.parts["exposed_wait_ns"]
        + _unsplit_waited_at_least(measured.of_typical) / measured.typical.windows,
        beyond_fastest=_beyond_fastest(measured.participation),
        fastest=_fastest(calls, measured.collectives),
        seen_ranks=len(measured.ranks),
        world_size=measured.world_size,
        some_missing=bool(measured.missing),
        on_cpus=measured.on_cpus,
        sends_little=_sends_little(calls),
    )
    found = of_run(
        typical=measured.typical,
        steps=measured.steps,
        by_device=measured.by_device,
        communication=communication,
        culprits=measured.culprits,
        culprits_in=measured.culprits_in,
        idle=measured.idle,
        ranges=measured.ranges,
        holders=measured.holders,
        threads=measured.threads,
        gaps=measured.gaps,
        syncs_steps=measured.syncs_steps,
        longer=measured.longer,
        prices=measured.prices,
        unequal=measured.unequal_devices,
    )
    return words.run_in_words(found)


def _sends_little(calls: pd.DataFrame) -> bool:
    """Whether most of the exposed transfer is in messages between two ranks that are smaller than bandwidth matters."""
    moved = calls["exposed_transfer_ns"].fillna(0)
    is_message = calls["collective"].isin(POINT_TO_POINT) & (calls["size_bytes"] < LITTLE_BYTES).fillna(False)
    return bool(moved[is_message].sum() > moved.sum() / 2)


def _unsplit_waited_at_least(participation: pd.DataFrame) -> float:
    """How long calls that could not be split waited exposed at least, in ns."""
    kernels = participation[~kernel_of(participation).duplicated()]
    return float(kernels["exposed_wait_low_ns"][kernels["wait_ns"].isna()].sum())
