"""Which calls belong together, on what evidence, and how certain that is: a ladder, best evidence first.

- `comms_id`: the id that torch gives all ranks of a collective of a process group;
- `seq`: the sequence number within the process group;
- `step`: the place among what the group's ranks issued in the same training step;
- `order`: by times, all that a rank shows of the group laid onto one timeline, call for call;
- `time`: by times, call by call, because a trace lacks some in between.

Each rung looks at the calls that no rung above it has matched, and yields its findings; `matches_of` applies them, and
nothing else changes the state. So each rung may rest on all that is known before it, in whatever group: what is
matched for certain fixes clocks, and clocks say what coincides. What nothing confirms is shown, but it is not certain,
and no clock rests on it. A call that fits nowhere stays alone, and its note says why.

docs/metrics/ladder.md draws the ladder; docs/metrics/matching.md defines every rung.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...core.tables.communication import CLOCK_PROBES, MATCHES, PENDING, PROCESS_GROUPS
from .communicators import by_stream, communicators_apart, unknown
from .doubts import clocks_off_host, doubtful_groups, steps_contradicted
from .groups import by_membership
from .ids import by_id
from .pairs import by_message_order
from .state import ALONE, RUNGS, SENDS, UNMATCHED, Decision, Findings, State, codes, rows_by_key, state_of
from .steps import by_step
from .times import by_time, linked_clocks, rematched_by_time


class Evidence(NamedTuple):
    """What besides the calls says which of them belong together; None where it is missing.

    `probes` are measurements of clocks (table `clock_probes`), which confirm an offset that the calls alone leave in
    doubt; `pending` are calls that were issued and did not run, which count for the order; `groups` are the process
    groups that headers of traces name. Unless the traces have starts (`has_starts`), times say nothing.
    """

    probes: pd.DataFrame | None = None
    pending: pd.DataFrame | None = None
    groups: pd.DataFrame | None = None
    world_size: int | None = None
    has_starts: bool = True


def matches_of(calls: pd.DataFrame, hosts: Mapping[int, str | None], evidence: Evidence | None = None) -> pd.DataFrame:
    """Which collective each call belongs to: table `matches`, one row per call, collectives numbered by first start.

    `calls` is the table of that name. `hosts` gives the host of each rank, None where it is not known; ranks of one
    host share a clock, until their times contradict that.
    """
    if not len(calls):
        return MATCHES.empty()
    evidence = evidence or Evidence()
    state = state_of(calls, hosts, CLOCK_PROBES.empty() if evidence.probes is None else evidence.probes)
    world_size = evidence.world_size or len(hosts)
    rungs = _with_starts(state, calls, evidence, world_size) if evidence.has_starts else _without_starts(state, calls)
    for finding in rungs:
        state.apply(finding)
    return _table(state, calls)


def _with_starts(state: State, calls: pd.DataFrame, evidence: Evidence, world_size: int) -> Findings:
    """The whole ladder, from the best evidence to the weakest."""
    yield _copies_alone(state, calls)
    # A message is identified by its source and target, so without the peer nothing could contradict a pairing.
    yield state.alone(np.flatnonzero(_messages(calls) & calls["root"].isna()), "its peer is not known")

    # Ids need neither clocks nor order: torch gave the same one to all ranks of the call.
    yield from by_id(state, calls, "comms_id")
    yield from by_id(state, calls, "seq")

    # Steps need no clock either, but each rank counts its own. So times have a veto, and they have it before any clock
    # is linked: a wrong step would move the clock, and then all that times say would agree with it.
    yield from by_step(state, calls, PENDING.empty() if evidence.pending is None else evidence.pending)
    yield from steps_contradicted(state)
    yield state.clocks.on_own_hosts(clocks_off_host(state))

    # Which ranks take part must be settled before clocks are: two communicators taken for one would link ranks that
    # never waited for each other.
    yield from _who_takes_part(state, calls, world_size)

    if (state.collective >= 0).all() and not len(unknown(state, calls)):
        return  # nothing is left for clocks and times to decide

    # From here on times decide, on the clocks that all above has linked.
    yield linked_clocks(state)
    yield from by_membership(state, calls, PROCESS_GROUPS.empty() if evidence.groups is None else evidence.groups)
    yield from by_stream(state, calls)
    yield from by_time(state)
    yield from rematched_by_time(state)
    # What times have matched may be several communicators as well.
    yield from _who_takes_part(state, calls, world_size)

    # Messages between CPUs say nothing about clocks, as a send may end before it is received, but need them: so last.
    for rows in rows_by_key(state.group, np.flatnonzero((state.collective < 0) & state.pair_on_cpu)).values():
        yield by_message_order(state, rows)


def _without_starts(state: State, calls: pd.DataFrame) -> Findings:
    """The ladder of formats without starts: the ids they give to calls, and nothing else."""
    yield _copies_alone(state, calls)
    messages = np.flatnonzero(_messages(calls))
    yield state.alone(messages, "each rank numbers its own sends and receives, and times say nothing")
    yield state.alone(np.flatnonzero(_messages(calls) & calls["root"].isna()), "its peer is not known")
    yield from by_id(state, calls, "comms_id")
    yield state.alone(np.flatnonzero(state.collective < 0), "no other rank shows its number in this communicator")


def _copies_alone(state: State, calls: pd.DataFrame) -> Decision:
    """Leave copies between GPUs alone: one rank makes them, and no other takes part."""
    copies = np.flatnonzero(calls["collective"].isin(["peer_copy"]))
    return state.alone(copies, "a copy from one GPU to another, one rank's own")


def _messages(calls: pd.DataFrame) -> pd.Series[bool]:
    """Which calls are sends or receives."""
    return calls["collective"].isin(["send", "recv"])


def _who_takes_part(state: State, calls: pd.DataFrame, world_size: int) -> Findings:
    """Where no trace names the process group: split what are several, and doubt what need not be a whole one.

    Ranks take part in one collective if they waited for each other, and for nobody else.
    """
    yield from communicators_apart(state, calls)
    yield from doubtful_groups(state, unknown(state, calls), codes(calls["stream"]), world_size)


def _table(state: State, calls: pd.DataFrame) -> pd.DataFrame:
    """The table `matches` of what has been decided."""
    start = pd.Series(calls["start_ns"].to_numpy()).groupby(state.collective).min().sort_values(kind="stable")
    number = pd.Series(np.arange(len(start)), index=start.index)
    members = np.bincount(state.collective, minlength=state.collectives)[state.collective]
    single = (members == 1) & (state.group_size != 1)
    # A collective is no better known than the call that was hardest to match.
    rung = np.where(single, UNMATCHED, pd.Series(state.rung).groupby(state.collective).transform("max"))
    note = np.where(single & pd.isna(state.note), ALONE, state.note)
    # Kernels named SendRecv that three or more ranks run as one: then every rank sends to all others.
    exchanged = (state.calls.kind == SENDS) & (members > 2) & state.certain
    table = pd.DataFrame({
        "call_id": calls["call_id"].to_numpy(),
        "collective_id": number.reindex(state.collective).to_numpy(),
        "matched_by": [RUNGS[r] for r in rung],
        "certain": pd.array(state.certain & ~state.group_assumed & ~single, dtype="boolean"),
        "note": note,
        "found_collective": pd.array(["all_to_all" if e else None for e in exchanged], dtype="string"),
    })  # fmt: skip
    return MATCHES.conform(table.assign(**_inferred_groups(state)))


def _inferred_groups(state: State) -> dict[str, Any]:
    """Name, ranks and size of process groups that no trace names, by call."""
    names = {code: name for code, (name, _) in state.named.items()}
    listed = {code: " ".join(map(str, sorted(members))) for code, (_, members) in state.named.items()}
    sizes = {code: len(members) for code, (_, members) in state.named.items()}
    group = pd.Series(state.group)
    return {
        "found_process_group": group.map(names).to_numpy(dtype=object),
        "found_pg_ranks": group.map(listed).to_numpy(dtype=object),
        "found_group_size": group.map(sizes).to_numpy(),
    }
