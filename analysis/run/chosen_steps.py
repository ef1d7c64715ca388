"""Choose part of a run's steps: the tables of a file are cut to them, as if nothing else had been recorded.

What is kept of a file:
- activities that were launched in these steps, wherever they end;
- what else ran on the device in the windows of these steps, then without a step, as if launched before the recording;
- of each device the moment at which it began with later steps, an activity of kind NEXT that takes no time. Without it,
  idle time at the end of the last step would be lost: a wait for data belongs to the step before it;
- calls, operators and annotations of the CPU from the first to the last launch and activity of these.

Calls keep their ids, and all ranks number steps alike. So calls that are matched by order or by times still have the
same neighbours on all ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...common.wording import counted, ranges_of
from ..core import markers
from ..core.kinds import COMM, NEXT
from ..core.steps import LATER_STEPS, NO_STEP, Mark, steps_at, windows_of
from ..core.tables.columns import HOW_TO_MARK
from ..core.tables.events import ACTIVITIES
from ..errors import NoSuchSteps
from ..recording.options import ReadOptions
from .file_tables import TraceFile
from .rank_files import Member
from .replicas import replicas

_NONE = (
    f"the traces mark no steps, so none can be chosen; {HOW_TO_MARK}; --steps names other annotations that mark them"
)


_SERVED = ("prefill", "decode", "mixed", "cached")


class _Kept(NamedTuple):
    """The marks of the chosen steps, and the time that the CPU and the devices spent in them, in ns."""

    marks: list[Mark]
    begin_ns: int
    end_ns: int

    def has_begun_in(self, start_ns: Iterable[int]) -> Any:
        """Whether the CPU was in one of these steps at each of these times."""
        return steps_at(np.fromiter(start_ns, dtype=np.int64), self.marks) != NO_STEP

    def during(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows that last into that time."""
        start = table["start_ns"].to_numpy()
        dur = table["dur_ns"].to_numpy() if "dur_ns" in table else 0
        return table[(start <= self.end_ns) & (start + dur >= self.begin_ns)].reset_index(drop=True)


def of_steps(file: TraceFile, options: ReadOptions) -> TraceFile:
    """The file, whose activities have steps, cut to the chosen steps; all of it if none are chosen."""
    if not (options.steps or options.last):
        return file
    recorded = sorted(set(file.ran["step"].dropna().astype("int64").tolist()))
    file = replace(file, recorded_steps=tuple(recorded))
    chosen = set(recorded).intersection(options.steps or recorded[-(options.last or 0) :])
    step = file.ran["step"].to_numpy(dtype=np.int64, na_value=NO_STEP)
    inside = np.isin(step, sorted(chosen))
    if not inside.any():
        return file.without_tables()
    ran = file.ran[inside | _beside(file.ran, chosen)]
    ran = ran.assign(step=ran["step"].where(ran["step"].isin(chosen)))
    following = _next_steps(file.ran, step, max(chosen))
    marks = [
        (row["name"], row["start_ns"], row["dur_ns"]) for row in file.annotation_rows if _step_of(row["name"]) in chosen
    ]
    ids = set(ran["correlation"].dropna().tolist())
    launched = file.launches["correlation"].isin(ids | set(following["correlation"].dropna().tolist()))
    launches = file.launches[launched.to_numpy(dtype=bool)].reset_index(drop=True)
    times = pd.concat([table["start_ns"] for table in (file.ran[inside], following, launches)])
    kept = _Kept(
        marks,
        min([int(times.min()), *(start for _, start, _ in marks)]),
        max([int(times.max()), *(start + dur for _, start, dur in marks)]),
    )
    return replace(
        file,
        ran=ACTIVITIES.concat([ran, following]),
        activities=file.activities[file.activities["correlation"].isin(ids)],
        launches=launches,
        annotation_rows=_annotations(file, ran, kept),
        comm_rows=_arguments(file, ran, kept),
        cpu_ops=kept.during(file.cpu_ops),
        operator_calls=kept.during(file.operator_calls),
        runtime_calls=kept.during(file.runtime_calls),
        memory_events=_at(file.memory_events, kept),
        stream_waits=kept.during(file.stream_waits),
        modules=kept.during(file.modules),
        functions=kept.during(file.functions),
        counter_samples=_at(file.counter_samples, kept),
        window_end_ns=file.window_end_ns if recorded[-1] in chosen else None,
    )


def _beside(ran: pd.DataFrame, chosen: set[int]) -> Any:
    """Which activities ran in the window of a chosen step."""
    start, end = ran["start_ns"].to_numpy(), (ran["start_ns"] + ran["dur_ns"]).to_numpy()
    beside = np.zeros(len(ran), dtype=bool)
    for window in windows_of(ran):
        if window.step in chosen:
            beside |= (start < window.end_ns) & (end > window.start_ns)
    return beside


def _next_steps(ran: pd.DataFrame, step: Any, last: int) -> pd.DataFrame:
    """The moment at which each device began with a step after `last`."""
    later = ran[step > last]
    first = later.loc[later.groupby("device", sort=False)["start_ns"].idxmin()]
    moments = first.assign(
        kind=NEXT, name=markers.NEXT_STEP + first["name"], dur_ns=0, size_bytes=pd.NA, step=LATER_STEPS
    )
    return ACTIVITIES.conform(moments.astype({"kind": "string", "size_bytes": "Int64", "step": "Int64"}))


def _annotations(file: TraceFile, ran: pd.DataFrame, kept: _Kept) -> list[dict[str, Any]]:
    """Annotations of that time; of marks only the chosen ones, and of communication what belongs to these steps.

    What is issued for a later step, whose kernels are left out, would look like a call that never ran.
    """
    on_cpu = bool((ran["device"] == "cpu").any())
    comm = ran[ran["kind"] == COMM] if on_cpu else ran[:0]
    ends = set(zip(comm["stream"].tolist(), (comm["start_ns"] + comm["dur_ns"]).tolist(), strict=True))
    issuing = (*markers.OF_BACKENDS, markers.C10D) if on_cpu else markers.OF_BACKENDS
    begun = kept.has_begun_in(row["start_ns"] for row in file.annotation_rows)
    result = []
    for row, is_inside in zip(file.annotation_rows, begun.tolist(), strict=True):
        name, end_ns = row["name"] or "", row["start_ns"] + row["dur_ns"]
        if name.startswith(markers.PROFILER_STEP):
            wanted = (name, row["start_ns"], row["dur_ns"]) in kept.marks
        elif on_cpu and name.startswith(markers.GLOO_MARK):
            wanted = (row["thread"], end_ns) in ends
        elif name.startswith(issuing):
            wanted = is_inside
        else:
            wanted = row["start_ns"] <= kept.end_ns and end_ns >= kept.begin_ns
        if wanted:
            result.append(row)
    return result


def _arguments(file: TraceFile, ran: pd.DataFrame, kept: _Kept) -> list[dict[str, Any]]:
    """Arguments of collectives that were issued in these steps, or whose kernels were launched there."""
    comm = ran[ran["kind"] == COMM]
    ids, external = (set(comm[name].dropna().tolist()) for name in ("correlation", "external_id"))
    begun = kept.has_begun_in(row["start_ns"] or 0 for row in file.comm_rows)
    return [
        row
        for row, is_inside in zip(file.comm_rows, begun.tolist(), strict=True)
        if is_inside or row["correlation"] in ids or (row["start_ns"] is not None and row["external_id"] in external)
    ]


def _at(memory: pd.DataFrame, kept: _Kept) -> pd.DataFrame:
    return memory[memory["time_ns"].between(kept.begin_ns, kept.end_ns)].reset_index(drop=True)


def _step_of(name: str | None) -> int | None:
    is_step = name is not None and name.startswith(markers.PROFILER_STEP)
    return int(name.removeprefix(markers.PROFILER_STEP)) if is_step and name is not None else None


def common_last_steps(recorded: Mapping[tuple[int, int], Sequence[int]], count: int) -> tuple[int, ...]:
    """The last `count` steps that all ranks have. Raises NoSuchSteps.

    `recorded` are the steps of the files, by rank and cycle.
    """
    common = sorted(set.intersection(*_by_rank((rank, steps) for (rank, _), steps in recorded.items()).values()))
    if not common:
        raise NoSuchSteps(_NONE if not any(recorded.values()) else "no step is in the traces of all ranks")
    if len(common) < count:
        raise NoSuchSteps(f"all ranks together have {counted(len(common), 'step')}, {ranges_of(common)}; not {count:,}")
    return tuple(common[-count:])


def note_on_left_out(recorded: Iterable[Iterable[int]], steps: Iterable[int]) -> Iterator[str]:
    """Yield a note if not all of the recorded steps are among these."""
    there = set().union(*recorded)
    if there - set(steps):
        yield f"read step {ranges_of(sorted(steps))} of {ranges_of(sorted(there))}, as asked for"


def notes_on_marks(members: Sequence[Member[TraceFile]], marker: str | None) -> Iterator[str]:
    """Yield a note on ranks without steps, if others have some. Raises NoSuchSteps if none matches a given `marker`."""
    marked = {member.rank for member in members if member.file.step_marks}
    if not marked and marker is not None:
        raise NoSuchSteps(
            f"no annotation of any trace matches {marker!r}; it is a regular expression for part of a name as "
            "record_function or NVTX has it. Recordings packed --no-details have few of these"
        )
    lacking = sorted({member.rank for member in members} - marked)
    if marked and lacking:
        none = "no annotation marks steps" if marker is None else f"no annotation matches {marker!r}"
        yield f"rank {ranges_of(lacking)}: {none}, so no steps are known; what is said of steps is of the other ranks"


def replicas_of(members: Sequence[Member[TraceFile]]) -> dict[int, int] | None:
    """The replica of each rank that serves requests; None if it is not known whose requests they are."""
    said: dict[int, dict[int, Hashable]] = {}
    for member in members:
        for mark in member.file.step_marks:
            if mark.kind in _SERVED or mark.requests is not None:
                said.setdefault(member.rank, {})[mark.step] = mark.kind, mark.requests, mark.tokens
    return replicas(said, {member.rank: member.file.path.name for member in members})


def notes_on_kinds(members: Sequence[Member[TraceFile]]) -> Iterator[str]:
    """Yield a note if a step is prefill on one rank and decode on another, and these are no replicas."""
    if replicas_of(members) is not None:
        return
    first: dict[int, tuple[str, int]] = {}
    for member in members:
        for mark in member.file.step_marks:
            if mark.kind not in _SERVED:
                continue
            kind, rank = first.setdefault(mark.step, (mark.kind, member.rank))
            if kind != mark.kind:
                yield (
                    f"step {mark.step} is {kind} on rank {rank} and {mark.kind} on rank {member.rank}: their captures "
                    "begin with different steps, or they are stages of a pipeline; its kind is not known, and what is "
                    "said of a step may be of two"
                )
                return


def _by_rank(recorded: Iterable[tuple[int, Sequence[int]]]) -> dict[int, set[int]]:
    of_rank: dict[int, set[int]] = {}
    for rank, steps in recorded:
        of_rank.setdefault(rank, set()).update(steps)
    return of_rank


def notes_on_steps(members: Sequence[Member[TraceFile]], options: ReadOptions) -> Iterator[str]:
    """Yield notes on what is left out of these files. Raises NoSuchSteps for a step that none of them has."""
    if not options.steps:
        return
    of_rank = _by_rank((member.rank, member.file.recorded_steps) for member in members)
    recorded = set().union(*of_rank.values())
    if not recorded:
        raise NoSuchSteps(_NONE)
    unknown = sorted(set(options.steps) - recorded)
    if unknown:
        raise NoSuchSteps(f"no trace has step {ranges_of(unknown)}; there are {ranges_of(sorted(recorded))}")
    for member in members:
        _check_no_hole(member.file.recorded_steps, options.steps)
    yield from note_on_left_out(of_rank.values(), options.steps)
    for step in sorted(options.steps):
        lacking = sorted(rank for rank, steps in of_rank.items() if step not in steps)
        if lacking:
            yield f"rank {ranges_of(lacking)}: no step {step} in the trace"


def _check_no_hole(recorded: Sequence[int], steps: Iterable[int]) -> None:
    """Raise NoSuchSteps if steps between the chosen ones are left out: devices would seem idle in the meantime."""
    places = [place for place, step in enumerate(recorded) if step in set(steps)]
    if places and places[-1] - places[0] >= len(places):
        between = sorted(set(recorded[places[0] : places[-1]]) - set(steps))
        raise NoSuchSteps(
            f"step {ranges_of(between)} would be left out between the chosen ones; give one range, such as "
            f"{recorded[places[0]]}-{recorded[places[-1]]}, or look at each part by itself"
        )
