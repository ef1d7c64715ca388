"""A run played again from what waits for what: its steps, and how much slower jitter makes them. See `replay/`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ..core.declaring import Later, TableEntry, Topic, played, value
from ..core.frames import np, pd
from ..core.intervals import Spans, spans
from ..core.markers import DATA_LOADER
from ..core.schema import Schema, grouped
from ..core.tables.columns import PARTIAL_RUN
from ..errors import NothingMeasured
from .values import NO_TIMES, WITH_DETAILS

if TYPE_CHECKING:
    from ..metrics.compute.contention import Slowdown
    from ..metrics.device.idle import HostTables
    from ..metrics.typical_step import TypicalStep
    from ..replay.cycles import Played
    from ..replay.links import Links
    from ..replay.table import Replay
    from ..run.run import Run

REPLAY_STEPS = Schema("replay_steps", "step, played again from what waits for what", {
    "step": ("int64", "number of the step; 0 if none are marked"),
    "ranks": ("int64", "ranks that have it"),
    "measured_ns": ("int64", "its length, mean over devices"),
    "with_delays_ns": ("int64", "the same played again, each activity as long after what it waits for as measured"),
    "replayed_ns": ("int64", "the same, with no more than the usual delays"),
    "error_frac": ("Float64", "replayed_ns / measured_ns - 1"),
    "exposed_comm_ns": ("int64", "communication that nothing hides, mean over devices"),
    "blocking_ns": ("int64", "so much later is its compute done because it waits for communication, by the replay"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

ATTRIBUTION = Schema("attribution", "part of the run whose jitter makes steps longer", {
    "of": ("string", (
        "compute, operation (activities of a name), cpu (its work before launches), data (what of it loads data), "
        "collective, group (of processes), rank, host, program (ranks that call the same collectives equally often), "
        "coordinate (ranks at the same place of groups that are alike)"
    )),
    "part": ("string", "which of these, NA for all; ranks separated by blanks, of more than 32 the 16 most waited for"),
    "slowdown_frac": ("Float64", "length of a step if this part alone were as it is / if nothing had jitter - 1"),
    "gain_ns": ("int64", "by how much a step were shorter if this part alone had no jitter, mean over steps"),
    "gain_frac": ("Float64", "gain_ns / length of a step as it is"),
    "partial": PARTIAL_RUN,
})  # fmt: skip

_MOST_ATTRIBUTED = 16
"""Of many ranks, the slowdown of so many is attributed one by one: those that make others wait most."""


@value
@played
def played_tables(
    run: Run,
    calls: pd.DataFrame,
    members: pd.DataFrame,
    collectives: pd.DataFrame,
    clocks: pd.DataFrame,
    host_tables: HostTables,
    slowdowns: Later[dict[int, Slowdown]],
    typical_step: TypicalStep,
) -> Played:
    """What a replay needs. Raises NothingMeasured."""
    from ..replay.cycles import Played

    if not run.has_starts:
        raise NothingMeasured(f"{run.name}: {NO_TIMES}, so no step can be played again")
    if not run.details:
        raise NothingMeasured(f"{run.name}: was read without calls of the runtime; {WITH_DETAILS}")
    return Played(
        activities=run.activities,
        runtime_calls=run.runtime_calls,
        calls=calls,
        participation=members,
        collectives=collectives,
        clocks=clocks,
        hosts=host_tables,
        stream_waits=run.stream_waits,
        annotations=run.annotations,
        slowdown=cache(slowdowns),
        period=typical_step.period,
    )


@value
@played
def is_playable(run: Run) -> bool:
    """Whether all that a replay needs was recorded, and read."""
    return run.has_starts and run.details


@value
@played
def replayed(
    run: Run,
    played_tables: Played,
    breakdown_steps: pd.DataFrame,
    recorded_breakdown: pd.DataFrame,
    typical_step: TypicalStep,
) -> Replay:
    """The run played again from what waits for what. Raises NothingMeasured."""
    from ..replay.table import Replay

    known = breakdown_steps if len(breakdown_steps) else recorded_breakdown.assign(step=0)
    exposed = known.groupby("step")["exposed_comm_ns"].mean()
    by_step = dict(zip(exposed.index.tolist(), exposed.tolist(), strict=True))
    return Replay.of(run.name, played_tables, by_step, typical_step.steps)


@value
def links(run: Run, collectives: pd.DataFrame, fits: pd.DataFrame) -> Links:
    """The tables that describe this run's links, for scenarios that change them."""
    from ..replay.links import Links

    return Links(collectives=collectives, fits=fits, hosts=run.hosts, nccl=not run.is_of_cpus)


@TableEntry(
    REPLAY_STEPS,
    Topic.foresight,
    "Every step replayed from its dependencies, beside the measured one.",
    "replay.md#the-replay",
    command="table replay",
    after="remedies",
    none_measured="nothing ran on a device",
)
def replay_steps(replayed: Replay) -> pd.DataFrame:
    """One row per step that is played again, and measured."""
    return REPLAY_STEPS.frame(replayed.steps())


@TableEntry(
    ATTRIBUTION,
    Topic.foresight,
    "How much slower jitter in each part makes a step.",
    "replay.md#attribution",
    command="table attribution",
    negligible=("slowdown_frac", "gain_frac"),
    none_measured="nothing ran on a device",
)
@played
def attribution(run: Run, replayed: Replay, links: Links, ranks: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """One row per part of the run: how much slower its jitter makes a step. Needs a run with `details`."""
    from ..replay.attribution import PartNames
    from ..replay.links import links_of

    linked = links_of(links) if len(links.collectives) else {}
    late = ranks.sort_values("caused_wait_ns", ascending=False, kind="stable")["rank"].head(_MOST_ATTRIBUTED)
    names = pd.factorize(run.activities["name"], sort=True)[1]
    labels = PartNames(run.hosts, linked, names.tolist(), frozenset(late.tolist()), _loading(run, clocks))
    return ATTRIBUTION.frame(replayed.attribution(labels))


def _loading(run: Run, clocks: pd.DataFrame) -> dict[int, Spans]:
    """When the CPU of each rank waited for its next batch, on the common clock."""
    from ..metrics.clocks.table import aligned

    marks = run.annotations
    marks = marks[marks["name"].str.startswith(DATA_LOADER).fillna(False).astype(bool)]
    starts = aligned(marks["start_ns"], marks["rank"], clocks)
    loading = marks.assign(start_ns=starts, end_ns=starts + marks["dur_ns"])
    return {
        int(rank): spans(batches["start_ns"].to_numpy(np.int64), batches["end_ns"].to_numpy(np.int64))
        for (rank,), batches in grouped(loading, ["rank"])
    }
