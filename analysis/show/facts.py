"""Facts about a run: what was read, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ...common.nccl_tests import SYNCHRONISING
from ...common.wording import counted, ranges_of
from ..core.schema import records
from ..core.tables.columns import HOW_TO_MARK
from ..core.tables.communication import SUMMARY
from ..metrics.clocks.frame import Bends
from ..metrics.clocks.probes import CONTRADICTION
from ..metrics.clocks.table import JUMPS
from ..metrics.ends_apart import APART_NS, ends_apart
from ..metrics.matching.state import SAME_CLOCK_SLACK_NS
from ..metrics.step_doubts import step_doubts
from ..render.units import clock_text
from ..results.analysis import Analysis
from .step_kinds import kinds_in_words

_MOST_GROUPS = 12
_NO_OTHER_RANK = "no other rank has a trace"


def facts(analysis: Analysis) -> pd.DataFrame:
    """One row per fact: files, ranks, steps, device, versions, calls, matching, clocks, warnings."""
    return SUMMARY.frame({"item": item, "value": value} for item, value in _facts(analysis))


def _facts(analysis: Analysis) -> Iterator[tuple[str, str]]:
    run = analysis.run
    first = records(analysis.verdicts.head(1))
    yield from (("hang", row["because"]) for row in first if row["verdict"] == "hang")
    yield "run", run.name
    yield "files", counted(len(run.traces), "trace") + _completeness(analysis)
    yield "bytes", _bytes(run.traces)
    yield "ranks", _ranks(analysis)
    yield "steps", _steps(analysis)
    yield "device", ", ".join(run.models) or "not named in the traces"
    yield "backend", ", ".join(sorted(set(run.traces["backend"].dropna()))) or "not named in the traces"
    yield "versions", "; ".join(sorted(set(run.traces["versions"].dropna()))) or "not in the traces"
    yield "calls", _calls(analysis)
    yield "collectives", _collectives(analysis)
    for group, text in _matching(analysis):
        yield f"group {group}", text
    yield "clocks", _clocks(analysis)
    if analysis.link_counters is not None:
        yield "NVLinks", analysis.link_counters
    if analysis.ceiling is not None:
        yield "ceiling", _ceiling(analysis.ceiling.name, analysis.bandwidth_ceiling)
    yield from (("verdict", f"{row['verdict']}: {row['because']}") for row in first if row["verdict"] != "hang")
    yield from (("not known", row["not_known"]) for row in first if row["not_known"])
    for warning in warnings(analysis):
        yield "warning", warning


def warnings(analysis: Analysis) -> Iterator[str]:
    """Yield what a reader of the numbers must know, one sentence each."""
    run = analysis.run
    yield from run.notes
    yield from analysis.ceiling.notes if analysis.ceiling is not None else ()
    damaged = set(run.traces["incomplete_reason"][run.traces["partial"].fillna(False)])
    yield from (f"{'used in part' if f in damaged else 'left out'}: {f}" for f in run.failed)
    yield from run.partial_because
    if run.missing_ranks:
        who = (
            "rank {} has no trace: wait and transfer of its"
            if len(run.missing_ranks) == 1
            else ("ranks {} have no trace: wait and transfer of their")
        )
        yield f"{who.format(ranges_of(run.missing_ranks))} collectives are known only where other ranks show enough"
    without = sorted(set(run.ranks) - {rank for rank, _ in run.devices})
    launched = [rank for rank in without if rank in run.launched]
    if launched:
        count = sum(run.launched[rank] for rank in launched)
        yield (
            f"rank {ranges_of(launched)}: no kernels were recorded, although {count:,} launches were, so nothing is "
            "computed; end other profilers (Nsight, DCGM) or allow access to CUPTI, then capture again"
        )
    without = sorted(set(without) - set(launched))
    if without:
        yield f"rank {ranges_of(without)}: the trace shows no device activity; capture with ProfilerActivity.CUDA"
    if run.has_starts and len(analysis.breakdown):
        with_gradients = {step for ran in run.tables.ran for step in ran.marked.with_gradients}
        yield from step_doubts(analysis.steps, analysis.calls, with_gradients)
    impossible = _impossible(analysis.collectives, analysis.clocks)
    if impossible:
        yield (
            f"{counted(impossible, 'collective')} ended on one rank before another rank began, by more than the clocks "
            "are uncertain: these calls were matched wrongly, or a clock is wrong"
        )
    for row in records(analysis.clocks[analysis.clocks["basis"].str.startswith(CONTRADICTION)]):
        yield f"rank {row['rank']}: {row['basis']}; one of them is wrong, and the uncertainty covers both"
    jumping = analysis.clocks[analysis.clocks["basis"] == JUMPS]
    for (linked, bends), own in jumping.groupby(["linked", "bends"], sort=False):
        by_ms = Bends.parsed(str(bends)).largest_ns / 1e6
        clock = "the clock of rank" if len(own) == 1 else "the clocks of ranks"
        yield (
            f"{clock} {ranges_of(own['rank'].tolist())} jumped by up to {by_ms:.3f} ms against that of rank {linked}: "
            "times are corrected, and collectives that begin just then are not split"
        )
    yield from _apart(analysis)
    unmatched = analysis.collectives[analysis.collectives["matched_by"] == "none"]
    whys = unmatched["note"].value_counts().items() if len(run.ranks) > 1 else [(_NO_OTHER_RANK, len(unmatched))]
    yield from (f"{counted(int(count), 'call')} unmatched: {why}" for why, count in whys if count)
    no_size = int(analysis.collectives["size_bytes"].isna().sum())
    if no_size:
        count = len(analysis.collectives)
        of_all = f"{no_size:,} of {counted(count, 'collective')} {'has' if no_size == 1 else 'have'}"
        yield f"{of_all} no size in any trace, so there is no bandwidth for {'it' if no_size == 1 else 'them'}"


def _apart(analysis: Analysis) -> Iterator[str]:
    if not (analysis.collectives["end_skew_ns"] >= APART_NS).any():
        return
    found = ends_apart(analysis.participation, analysis.collectives, analysis.clocks, analysis.run.sharing)
    for rank, times, of, by_ns in sorted(found, key=lambda apart: -abs(apart.by_ns) * apart.times):
        yield (
            f"rank {rank} ended {times:,} of {counted(of, 'collective')} {clock_text(abs(by_ns))} "
            f"{'after' if by_ns > 0 else 'before'} other ranks of its host, where less than 1 ms is usual: "
            "its GPU was held up, its times are wrong, or it is of another run"
        )


def _impossible(collectives: pd.DataFrame, clocks: pd.DataFrame) -> int:
    """Number of certain synchronising collectives that contradict the clocks beyond their uncertainty.

    Two clocks are each uncertain against the same reference, so a collective may be off by the sum of the two largest
    uncertainties of its ranks, and by what GPUs of one host differ.
    """
    synchronising = collectives[collectives["collective"].isin(SYNCHRONISING) & collectives["certain"].fillna(False)]
    # Earliest end - latest start, from columns that are there.
    met_ns = synchronising["last_arrival_to_last_end_ns"] - synchronising["end_skew_ns"]
    suspect = synchronising[(met_ns < -SAME_CLOCK_SLACK_NS).fillna(False).to_numpy(dtype=bool)]
    if not len(suspect):
        return 0
    uncertain = clocks.set_index("rank")["bent_uncertainty_ns"]
    ranks = suspect["ranks"].str.split()
    allowed_ns = [SAME_CLOCK_SLACK_NS + uncertain.reindex([int(r) for r in own]).nlargest(2).sum() for own in ranks]
    return int((met_ns.loc[suspect.index].to_numpy(dtype="float64") < -np.array(allowed_ns)).sum())


def _completeness(analysis: Analysis) -> str:
    traces = analysis.run.traces
    partial = traces["partial"].fillna(False)
    ended_early = int((~traces["complete"].fillna(True) & ~partial).sum())
    contradicting = int(analysis.run.contradicting.sum())
    counts = (
        (ended_early, "of captures that ended early"),
        (int(partial.sum()) - contradicting, "damaged and used in part"),
        (contradicting, "that contradict themselves"),
    )
    return "".join(f", {count} {what}" for count, what in counts if count)


def _bytes(traces: pd.DataFrame) -> str:
    read, unknown = int(traces["read_bytes"].sum()), traces["not_understood_bytes"]
    hidden = "; an unknown number behind broken compression" if unknown.isna().any() else ""
    verified = traces["verified_events"]
    decoded = f"; all {counted(int(verified.sum()), 'event')} decoded twice" if verified.notna().all() else ""
    return f"{read:,} read, {int(unknown.sum()):,} not understood{hidden}{decoded}"


def _ranks(analysis: Analysis) -> str:
    run = analysis.run
    of = f"of {run.world_size}" if run.world_size is not None else "(the traces do not say how many there were)"
    return f"{len(run.ranks)} {of}: {ranges_of(run.ranks)}"


def _steps(analysis: Analysis) -> str:
    steps = analysis.run.steps
    outside = sum(ran.outside_steps for ran in analysis.run.tables.ran)
    found = f"none marked: {HOW_TO_MARK}; --steps names other marks"
    if steps:
        found = f"{len(steps)} ({ranges_of(steps)}){kinds_in_words(analysis.table('steps'))}"
    activities = "activity" if outside == 1 else "activities"
    return found + (f"; {outside:,} {activities} outside every step" if outside and steps else "")


def _calls(analysis: Analysis) -> str:
    calls = analysis.calls
    if not len(calls):
        return "none: no communication in the profiled window"
    sources = calls["metadata_from"].value_counts().to_dict()
    return f"{len(calls):,}, metadata from " + ", ".join(f"{source} {count:,}" for source, count in sources.items())


def _collectives(analysis: Analysis) -> str:
    found = analysis.collectives
    if not len(found):
        return "none"
    matched = found["matched_by"] != "none"
    partial = int((matched & ~found["complete"].astype(bool)).sum())
    uncertain = int((matched & ~found["certain"].astype(bool)).sum())
    return (
        f"{int(matched.sum()):,} matched across ranks, {partial:,} of them partial, {uncertain:,} not certain; "
        f"{counted(len(found) - int(matched.sum()), 'call')} unmatched"
    )


def _matching(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Yield, for each process group, how its calls were matched, and how many are partial or uncertain.

    The warnings say why calls are unmatched.
    """
    whole = analysis.collectives[["collective_id", "complete"]]
    joined = analysis.calls.merge(analysis.matches, on="call_id").merge(whole, on="collective_id")
    if not len(joined):
        return
    groups = list(joined.groupby(["process_group", "pg_ranks"], dropna=False, sort=True))
    for (name, ranks), own in groups[:_MOST_GROUPS]:
        rungs = ", ".join(f"{count:,} by {rung}" for rung, count in own["matched_by"].value_counts().items())
        known = name if isinstance(name, str) else "not known"
        of = f" (ranks {ranges_of([int(r) for r in ranks.split()])})" if isinstance(ranks, str) else ""
        matched = own["matched_by"] != "none"
        partial = int((matched & ~own["complete"].astype(bool)).sum())
        uncertain = int((matched & ~own["certain"].astype(bool)).sum())
        doubts = [f"{n} {what}" for n, what in ((partial, "in partial collectives"), (uncertain, "not certain")) if n]
        yield known, f"{counted(len(own), 'call')}{of}: " + "; ".join([rungs.replace("by none", "unmatched"), *doubts])
    if len(groups) > _MOST_GROUPS:
        yield "...", f"{len(groups) - _MOST_GROUPS} more"


def _clocks(analysis: Analysis) -> str:
    clocks = analysis.clocks
    if not analysis.run.has_starts:
        return str(clocks["basis"].iloc[0])
    if len(clocks) < 2:
        return "only one rank has a trace, so wait and transfer are not known"
    if clocks["linked"].nunique() == len(clocks):
        return "not comparable, so no wait and transfer: no collective links two ranks, and no clock probe ran"
    bases = ", ".join(dict.fromkeys(clocks["basis"]))
    moved, uncertain = clocks["offset_ns"].abs().max(), clocks["bent_uncertainty_ns"].max()
    probe = clocks["probe_uncertainty_ns"].max()
    probed = "" if pd.isna(probe) else f"; clock probe: +-{clock_text(probe)}"
    return f"{bases}; largest offset {clock_text(moved)}, uncertain by at most {clock_text(uncertain)}{probed}"


def _ceiling(name: str, compared: pd.DataFrame) -> str:
    reached = compared["of_ceiling_frac"].dropna()
    of = f"{name}: {len(reached)} of {counted(len(compared), 'row')} of bandwidth can be compared"
    return of + (f", and reach {reached.min():.0%} to {reached.max():.0%} of it" if len(reached) else "")
