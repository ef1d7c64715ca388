"""Which calls belong together, on what evidence, and how certain that is: a ladder, best rung first.

- `comms_id`: the id that torch gives all ranks of a collective of a process group;
- `seq`: the sequence number within the process group;
- `step`: the place among what the group's ranks issued in the same training step;
- `order`: by times, all that a rank shows of the group laid onto one timeline, call for call;
- `time`: by times, call by call, because a trace lacks some in between.

Why each may be trusted: an id is the same on all ranks or its calls differ in kind or size (`ids`); steps are held
against times, and between hosts need a witness, as ranks may count them differently (`doubts`, `numbering`); times are
trusted where each other placement, shift or offset fits clearly worse (`times`, `timelines`), an order where every rank
shows all of it and no shift is possible (`whole`). What no one confirms is shown, not certain, and fixes no clock.

What each rung has matched fixes clocks, and with them what the next ones match, in whatever group. Sends and receives
go by (source, destination, order); between CPUs as `turns` says. What does not fit stays alone and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...core.tables.communication import CLOCK_PROBES, MATCHES, PENDING, PROCESS_GROUPS
from ..clocks.frame import Flags, Ints
from .communicators import by_stream, tell_apart, unknown
from .doubts import doubt_unknown_groups, free_contradicted, part_strangers
from .groups import assign_groups
from .ids import by_id
from .pairs import by_turn
from .state import ALONE, RUNGS, SENDS, UNMATCHED, State, codes, rows_by_key, state_of
from .steps import by_step
from .times import again, by_time, link_clocks


class Evidence(NamedTuple):
    """What else tells which calls belong together; None where it is missing.

    Clock `probes` confirm how far a clock is ahead where the calls alone leave a doubt; `pending` is what was issued
    and did not run; `groups` are those that headers name. If not `has_starts`, times say nothing.
    """

    probes: pd.DataFrame | None = None
    pending: pd.DataFrame | None = None
    groups: pd.DataFrame | None = None
    world_size: int | None = None
    has_starts: bool = True


def matches(calls: pd.DataFrame, hosts: Mapping[int, str | None], evidence: Evidence | None = None) -> pd.DataFrame:
    """Which collective each call belongs to: one row per call, collectives numbered by first start.

    `hosts` gives the host of each rank, None where it is not known; ranks of one host share a clock.
    """
    if not len(calls):
        return MATCHES.empty()
    evidence = evidence or Evidence()
    state = state_of(calls, hosts, CLOCK_PROBES.empty() if evidence.probes is None else evidence.probes)
    world_size = evidence.world_size or len(hosts)
    copies = calls["collective"].isin(["peer_copy"])
    state.alone(np.flatnonzero(copies), "a copy from one GPU to another, one rank's own")
    messages = calls["collective"].isin(["send", "recv"])
    if not evidence.has_starts:
        state.alone(np.flatnonzero(messages), "each rank numbers its own sends and receives, and times say nothing")
    state.alone(np.flatnonzero(messages & calls["root"].isna()), "its peer is not known")
    # A format without starts gives ids to the calls that may be compared.
    for key in ("comms_id", "seq") if evidence.has_starts else ("comms_id",):
        by_id(state, calls, key)
    if not evidence.has_starts:
        state.alone(np.flatnonzero(state.collective < 0), "no other rank shows its number in this communicator")
        return _table(state, calls)
    by_step(state, calls, PENDING.empty() if evidence.pending is None else evidence.pending)
    # Before any clock is linked: a wrong step would move it, and then all that times say afterwards.
    free_contradicted(state)
    part_strangers(state)
    streams = codes(calls["stream"])
    tell_apart(state, calls)
    doubt_unknown_groups(state, unknown(state, calls), streams, world_size)
    link_clocks(state)
    assign_groups(state, calls, PROCESS_GROUPS.empty() if evidence.groups is None else evidence.groups)
    by_stream(state, calls)
    by_time(state)
    again(state)
    tell_apart(state, calls)
    doubt_unknown_groups(state, unknown(state, calls), streams, world_size)
    # Pairs on CPUs say nothing about clocks, but use what is known about them: they come last.
    for rows in rows_by_key(state.group, np.flatnonzero((state.collective < 0) & state.pair_on_cpu)).values():
        by_turn(state, rows)
    return _table(state, calls)


def _table(state: State, calls: pd.DataFrame) -> pd.DataFrame:
    start = pd.Series(calls["start_ns"].to_numpy()).groupby(state.collective).min().sort_values(kind="stable")
    number = pd.Series(np.arange(len(start)), index=start.index)
    members = np.bincount(state.collective, minlength=state.collectives)[state.collective]
    single = (members == 1) & (state.group_size != 1)
    rung = np.where(single, UNMATCHED, pd.Series(state.rung).groupby(state.collective).transform("max"))
    note = np.where(single & pd.isna(state.note), ALONE, state.note)
    table = pd.DataFrame({
        "call_id": calls["call_id"].to_numpy(),
        "collective_id": number.reindex(state.collective).to_numpy(),
        "matched_by": [RUNGS[r] for r in rung],
        "certain": pd.array(state.certain & ~state.assumed & ~single, dtype="boolean"),
        "note": note,
        "found_collective": pd.array(["all_to_all" if e else None for e in _exchanged(state, members)], dtype="string"),
    })  # fmt: skip
    return MATCHES.conform(table.assign(**_told(state)))


def _exchanged(state: State, members: Ints) -> Flags:
    """Kernels named SendRecv that three or more ranks run as one: then every rank sends to all others."""
    exchanged: Flags = (state.calls.kind == SENDS) & (members > 2) & state.certain
    return exchanged


def _told(state: State) -> dict[str, Any]:
    """Name, ranks and size of process groups that were inferred."""
    names = {code: name for code, (name, _) in state.named.items()}
    listed = {code: " ".join(map(str, sorted(members))) for code, (_, members) in state.named.items()}
    group = pd.Series(state.group)
    return {
        "found_process_group": group.map(names).to_numpy(dtype=object),
        "found_pg_ranks": group.map(listed).to_numpy(dtype=object),
        "found_group_size": group.map({code: len(members) for code, (_, members) in state.named.items()}).to_numpy(),
    }
