"""What people see first of a run, the same on a page, a terminal and in a notebook: headline, tiles, parts, remedies.

Here is what is said; `overview` and `report` say how it looks. All numbers are those of a typical step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from ...common.nccl_tests import POINT_TO_POINT
from ...common.wording import bytes_text, counted, ranges_of
from ..ceilings.one_host import why_not_one_host
from ..ceilings.yardsticks import Yardstick, yardstick
from ..core.escaping import printable
from ..core.given_peaks import BY_MEASUREMENT, BY_USER
from ..core.schema import Row, records
from ..metrics.compute.contention import Hiding
from ..metrics.typical_step import STEP_PARTS
from ..metrics.verdicts.of_idle import idle_rows
from ..metrics.verdicts.thresholds import LITTLE_BYTES
from ..render.units import TimeUnit, three_digits
from ..results.analysis import Analysis
from .memory import limit_of
from .step_kinds import kinds_in_words

_WORTH_TRYING = 0.01
"""Of a step: changes that gain less, or are about less, are left out."""
_SHOWN_FROM = 0.01
_LEAST_MFU = 0.001
_MOST_WITHOUT_FLOP, _WIDEST_MFU = 0.5, 0.2
"""Of the time of products and attention: where FLOPs of more are not known, the rest says little."""
_LARGE_BYTES = 1 << 20
"""Calls of less are limited by latency: beside what links carry at most, they say nothing of links."""
_OF_CPUS = ("idle", "idle_steps", "syncs_steps", "nearly_full")
"""On what it rests if operators and calls were read."""
COMMUNICATION = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unsplit_ns")


@dataclass(frozen=True)
class Tile:
    """A number that people look for first: `value` with its unit, and what to compare it with."""

    label: str
    value: str
    unit: str
    detail: str = ""


@dataclass(frozen=True)
class StepShare:
    """A part of a step: a column of `steps`, its name for people, ns, and fraction of the step."""

    column: str
    name: str
    ns: float
    frac: float


@dataclass(frozen=True)
class Remedy:
    """A change worth a try: what a step would gain, in ns; or, where that is not known, how much it is about."""

    name: str
    what: str
    how: str
    gain_ns: int | None
    low_ns: int | None
    high_ns: int | None
    gain_frac: float | None
    is_bound: bool
    concerned_ns: int | None
    concerned_frac: float | None


@dataclass(frozen=True)
class Rate:
    """Bus bandwidth of calls of one collective, size and number of ranks: all groups together, the slowest to fastest.

    `time_us` is the median transfer time of the slowest. `of_yardstick_frac` is that of the fastest; `ceiling` whether
    the yardstick was measured. Others get `normal_gb_per_s` at that size, of which the slowest reaches
    `of_normal_frac`; both None where that is not known.
    """

    collective: str
    size_bytes: int
    ranks: int
    calls: int
    groups: int
    time_us: float
    slowest_gb_per_s: float
    fastest_gb_per_s: float
    of_yardstick_frac: float | None
    yardstick: str
    normal_gb_per_s: float | None
    of_normal_frac: float | None

    @property
    def what(self) -> str:
        """`all_gather of 144 MiB`."""
        return f"{self.collective} of {bytes_text(self.size_bytes)}"

    @property
    def is_latency(self) -> bool:
        """Whether a call is too small for its time to say anything of links."""
        return self.size_bytes < LITTLE_BYTES

    @property
    def amount(self) -> tuple[str, str]:
        """`287` and `GB/s`, or `24.1` and `us a call` where that is latency."""
        return (three_digits(self.time_us), "us a call") if self.is_latency else (self.gb_per_s, "GB/s")

    @property
    def gb_per_s(self) -> str:
        """`287`, `120 to 287`."""
        low, high = map(three_digits, (self.slowest_gb_per_s, self.fastest_gb_per_s))
        return low if low == high else f"{low} to {high}"

    @property
    def beside(self) -> str:
        """`64% of NVLink 4`; empty without a yardstick."""
        if self.of_yardstick_frac is None:
            return "latency" if self.is_latency else ""
        share = f"{self.of_yardstick_frac:.0%}" if self.of_yardstick_frac >= _SHOWN_FROM else "under 1%"
        return f"{share} of {self.yardstick}"

    @property
    def others(self) -> str:
        """`others get 406 (71%)`; empty where nobody measured that."""
        if self.normal_gb_per_s is None or self.of_normal_frac is None or self.is_latency:
            return ""
        share = f"{self.of_normal_frac:.0%}" if self.of_normal_frac >= _SHOWN_FROM else "under 1%"
        return f"others get {three_digits(self.normal_gb_per_s)} ({share})"


@dataclass(frozen=True)
class Mfu:
    """Model FLOPs utilisation of a typical step; `most_frac` had kernels of unknown FLOPs run at the peak."""

    frac: float
    most_frac: float
    peak: str
    """`dense peak`, `given peak` or `measured peak`."""

    @property
    def said(self) -> str:
        """`MFU is 22.3 to 27.1% of the dense peak: FLOPs of some kernels are not known.`"""
        why = ": FLOPs of some kernels are not known" if self.is_bound else ""
        return f"MFU is {self.percent}% of the {self.peak}{why}."

    @property
    def is_bound(self) -> bool:
        """Whether more than `frac` is possible, in the digits that are shown."""
        return f"{100 * self.frac:.1f}" != f"{100 * self.most_frac:.1f}"

    @property
    def percent(self) -> str:
        """`22.3`, `under 0.1`, `22.3 to 27.1`, or `0.04 to 9.4`."""
        if not self.is_bound:
            return f"{100 * self.frac:.1f}" if self.frac >= _LEAST_MFU else f"under {100 * _LEAST_MFU:.1f}"
        least = f"{100 * self.frac:.1f}" if self.frac >= _LEAST_MFU else f"{100 * self.frac:.1g}"
        return f"{least} to {100 * self.most_frac:.1f}"


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a run; `unit` is that of its times, `idle` the causes of idle time, the largest first.

    The headline is about `headline_ranks`, if about any. `memory` is a sentence if memory is what limits.
    """

    name: str
    facts: tuple[str, ...]
    verdict: str
    headline: str
    headline_ranks: tuple[int, ...]
    why: str
    not_known: str
    unit: TimeUnit
    tiles: tuple[Tile, ...]
    parts: tuple[StepShare, ...]
    idle: tuple[StepShare, ...]
    remedies: tuple[Remedy, ...]
    is_priced: bool
    rates: tuple[Rate, ...]
    mfu: Mfu | None
    hiding: str
    memory: str

    @property
    def nothing_to_gain(self) -> str:
        """A sentence for runs in which no change is worth a try; empty for others, and where that is not known."""
        is_known = self.is_priced and self.parts and not self.remedies
        return f"No change that commtrace knows gains {_WORTH_TRYING:.0%} of a step or more." if is_known else ""


def first_screen(analysis: Analysis) -> FirstScreen:
    """What to say first of a run."""
    analysis.want("verdicts", "late_work", *(_OF_CPUS if analysis.run.details else ()))
    verdicts = records(analysis.verdicts.head(1))
    nothing = dict.fromkeys(("verdict", "why", "not_known", "headline_ranks"), "")
    first = verdicts[0] if verdicts else nothing | {"headline": "Nothing was measured"}
    has_step = len(analysis.table("breakdown")) > 0
    parts = tuple(_parts(analysis)) if has_step else ()
    unit = TimeUnit.of(analysis.typical_step.parts["window_ns"] if has_step else 1e6)
    remedies = () if len(analysis.table("hangs")) else tuple(_remedies(analysis))
    rates = tuple(first_rates(analysis))
    mfu = _mfu(analysis.part) if has_step else None
    return FirstScreen(
        name=printable(analysis.run.name),
        facts=tuple(map(printable, facts_of(analysis))),
        verdict=first["verdict"],
        headline=printable(first["headline"]),
        headline_ranks=tuple(map(int, (first["headline_ranks"] or "").split())),
        why=printable(first["why"] or ""),
        not_known=printable(first["not_known"] or ""),
        unit=unit,
        tiles=tuple(_tiles(analysis, unit, parts, remedies, rates, mfu)) if has_step else (),
        parts=parts,
        idle=tuple(_idle(analysis)) if has_step else (),
        remedies=remedies,
        is_priced=analysis.prices is not None,
        rates=rates,
        mfu=mfu,
        hiding=hiding_in_words(analysis.part.hiding, analysis.typical_step.parts["window_ns"], unit)
        if has_step
        else "",
        memory=_memory(analysis),
    )


def _memory(analysis: Analysis) -> str:
    """`Memory is nearly full: peak 78.1 GiB of 79.6 GiB on rank 3: activations 61%.`; empty if no device is."""
    limit = limit_of(analysis) if analysis.run.details else None
    return "" if limit is None else f"Memory is nearly full: {printable(limit.said)}."


def facts_of(analysis: Analysis) -> Iterator[str]:
    """Yield what a line on a run says beside its name: ranks, devices, hosts, steps, versions."""
    run = analysis.run
    names = run.models
    of_world = f" of {run.world_size}" if run.world_size not in (None, len(run.ranks)) else ""
    yield f"{counted(len(run.ranks), 'rank')}{of_world}" + (f" on {', '.join(names)}" if names else "")
    hosts = {host for host in run.hosts.values() if host is not None}
    if hosts and None not in run.hosts.values():
        yield counted(len(hosts), "host")
    steps = run.steps
    of_kinds = kinds_in_words(analysis.table("steps"))
    yield f"{'step' if len(steps) == 1 else 'steps'} {ranges_of(steps)}{of_kinds}" if steps else "no steps marked"
    yield from sorted({text for text in run.traces["versions"].dropna() for text in text.split(", ")})
    backends = sorted(set(run.traces["backend"].dropna()))
    if backends and not any("NCCL" in text for text in set(run.traces["versions"].dropna())):
        yield ", ".join(backends)


def _parts(analysis: Analysis) -> Iterator[StepShare]:
    parts = analysis.typical_step.parts
    whole = parts["window_ns"] or 1.0
    for column, name in STEP_PARTS.items():
        yield StepShare(column, name, parts[column], parts[column] / whole)


def _idle(analysis: Analysis) -> Iterator[StepShare]:
    whole = analysis.typical_step.parts["window_ns"] or 1.0
    for name, ns in idle_rows(analysis.idle_causes, runs_python=analysis.run.runs_python):
        yield StepShare("idle_ns", name, ns, ns / whole)


def _tiles(
    analysis: Analysis,
    unit: TimeUnit,
    parts: tuple[StepShare, ...],
    remedies: tuple[Remedy, ...],
    rates: tuple[Rate, ...],
    mfu: Mfu | None,
) -> Iterator[Tile]:
    typical = analysis.typical_step
    lengths = typical.lengths_ns
    spread = unit.between(min(lengths), max(lengths)) if len(lengths) > 1 else ""
    step = "Step" if typical.kind is None else printable(f"{typical.kind} step").capitalize()
    label = f"{step}, mean of {len(lengths)}" if len(lengths) > 1 else step if lengths else "Window"
    yield Tile(label, unit.number(typical.parts["window_ns"]), unit.name, spread)
    by_column = {part.column: part for part in parts}
    computing = by_column["compute_alone_ns"].frac + by_column["overlap_ns"].frac
    of_what = "of a step" if lengths else "of the window"
    yield Tile("Devices compute", f"{100 * computing:.0f}", "%", of_what)
    if mfu is not None:
        yield Tile("MFU", mfu.percent, "%", f"of the {mfu.peak}{', not all FLOPs known' if mfu.is_bound else ''}")
    exposed = sum(by_column[column].ns for column in COMMUNICATION)
    if len(analysis.table("calls")):
        waiting = by_column["exposed_wait_ns"].ns
        split = f"{waiting / exposed:.0%} waiting" if exposed and waiting else ""
        yield Tile("Exposed communication", unit.number(exposed), unit.name, split)
    else:
        yield Tile("Idle", unit.number(by_column["idle_ns"].ns), unit.name, f"{by_column['idle_ns'].frac:.0%}")
    first = next(iter(remedies), None)
    if first is not None and first.gain_ns is not None and first.gain_frac is not None:
        low, high = unit.number(first.low_ns or 0), unit.number(first.high_ns or 0)
        bound = "at most; " if first.is_bound else ""
        detail = f"{bound}{low} to {high}, {first.gain_frac:.0%} {of_what}"
        yield Tile(
            f"{first.what[:1].upper()}{first.what[1:]}", f"\u2212{unit.number(first.gain_ns)}", unit.name, detail
        )
    if rates:
        first_rate = next((rate for rate in rates if not rate.is_latency), rates[0])
        yield Tile(first_rate.what, *first_rate.amount, first_rate.beside)


def _mfu(analysis: Analysis) -> Mfu | None:
    """MFU of the typical step; None where shapes or the peak are not known, or too little is to tell it.

    Of devices of several models it is the share of what all of them do at their peaks.
    """
    if not (analysis.run.details and analysis.run.has_starts):
        return None
    steps = list(analysis.typical_step.steps)
    table = analysis.table("mfu_steps" if steps else "mfu")
    rows = table[table["step"].isin(steps)] if steps else table
    window_ns = rows["window_ns"].sum()
    if not len(rows) or rows["at_peak_ns"].isna().any() or not window_ns:
        return None
    models = [analysis.run.device_names.get(device) for device in zip(rows["rank"], rows["device"], strict=True)]
    of_model = rows.assign(
        model=pd.array(models, dtype="string"),
        most_ns=rows["mfu_most_frac"] * rows["window_ns"],
    ).groupby("model", dropna=False)[["window_ns", "at_peak_ns", "most_ns", "tflop"]].sum()  # fmt: skip
    if not of_model["at_peak_ns"].all():
        return None
    at_peaks = of_model.mul(of_model["tflop"] / of_model["at_peak_ns"], axis=0).sum()
    frac, most = (float(at_peaks[name] / at_peaks["window_ns"]) for name in ("at_peak_ns", "most_ns"))
    without = float(rows["without_flop_frac"].fillna(0.0).mean())
    if without > _MOST_WITHOUT_FLOP and most - frac > _WIDEST_MFU:
        return None
    peak = next((name for name in (BY_USER, BY_MEASUREMENT) if rows["peak_from"].str.contains(name).any()), "dense")
    return Mfu(frac, most, f"{peak} peak")


def hiding_in_words(hiding: Hiding | None, step_ns: float, unit: TimeUnit) -> str:
    """`Hiding 1.5 ms of communication slows compute by 0.4 ms: it gains 1.1 ms.`

    Empty where that is not known, or too little to speak of.
    """
    if hiding is None or not step_ns or hiding.hidden_ns < _SHOWN_FROM * step_ns:
        return ""
    cost_ns = hiding.hidden_ns - hiding.net_ns
    if cost_ns < _SHOWN_FROM * hiding.hidden_ns:
        return ""
    hidden, cost, net = map(unit.text, (hiding.hidden_ns, cost_ns, hiding.net_ns))
    return f"Hiding {hidden} of communication slows compute by {cost} (`table contention`): it gains {net}."


def _remedies(analysis: Analysis) -> Iterator[Remedy]:
    """Yield changes worth a try: by gain where the run could be played again, else by how much they are about."""
    priced = analysis.prices is not None
    for row in records(analysis.table("remedies")):
        if (row["gain_frac"] or 0) >= _WORTH_TRYING or (not priced and (row["concerned_frac"] or 0) >= _WORTH_TRYING):
            yield Remedy(
                name=row["remedy"],
                what=printable(row["what"]),
                how=row["how"],
                gain_ns=row["gain_ns"] if priced else None,
                low_ns=row["gain_low_ns"],
                high_ns=row["gain_high_ns"],
                gain_frac=row["gain_frac"] if priced else None,
                is_bound=priced and bool(row["is_bound"]),
                concerned_ns=row["concerned_ns"],
                concerned_frac=row["concerned_frac"],
            )


def first_rates(analysis: Analysis) -> Iterator[Rate]:
    """Yield bandwidth where most time is spent, but of small messages; groups of as many ranks together."""
    alike: dict[tuple[str, int, int], list[Row]] = {}
    for row in records(analysis.table("bandwidth" if analysis.ceiling is None else "bandwidth_ceiling")):
        if row["busbw_gb_per_s"] is not None and row["size_bytes"]:
            key = row["collective"], row["size_bytes"], len((row["pg_ranks"] or "").split())
            alike.setdefault(key, []).append(row)
    for key in sorted(alike, key=lambda key: -sum(row["calls"] * (row["time_us_median"] or 0) for row in alike[key])):
        collective, size, ranks = key
        if collective in POINT_TO_POINT and size < LITTLE_BYTES and analysis.ceiling is None:
            continue
        rows = alike[key]
        speeds = [row["busbw_gb_per_s"] for row in rows]
        reached = [row["of_ceiling_frac"] for row in rows if row.get("of_ceiling_frac") is not None]
        link = None if reached or size < _LARGE_BYTES else yardstick_of(analysis, rows)
        of = min(reached) if reached else max(speeds) / link.gb_per_s if link is not None else None
        # Groups that others could not be asked about say nothing of the rest; and all that were are of one setting.
        slowest = min(rows, key=lambda row: row["busbw_gb_per_s"])
        normal = slowest["normal_busbw_gb_per_s"] if all(row["of_normal_frac"] is not None for row in rows) else None
        yield Rate(
            collective=collective,
            size_bytes=size,
            ranks=ranks,
            calls=sum(row["calls"] for row in rows),
            groups=len(rows),
            time_us=max(row["time_us_median"] or 0.0 for row in rows),
            slowest_gb_per_s=min(speeds),
            fastest_gb_per_s=max(speeds),
            of_yardstick_frac=of,
            yardstick="the ceiling" if reached else link.name if link is not None else "",
            normal_gb_per_s=normal,
            of_normal_frac=None if normal is None else slowest["of_normal_frac"],
        )


def yardstick_of(analysis: Analysis, rows: list[Row]) -> Yardstick | None:
    """What links between the GPUs of these groups carry at most; None if not known, between hosts, or within one GPU.

    Where hosts have no name, groups as large as fit in one are taken to be in one.
    """
    run = analysis.run
    groups = ([int(rank) for rank in (row["pg_ranks"] or "").split()] or list(run.ranks) for row in rows)
    if any(why_not_one_host(members, run.hosts, run.sharing) is not None for members in groups):
        return None
    return yardstick(run.models[0]) if len(run.models) == 1 else None
