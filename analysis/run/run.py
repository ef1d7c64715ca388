"""Make a Run from a folder or a list of files: the rank of each file, and their tables together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ...common.wording import ranks_in_words
from ...contract.run import RUN_FILE
from ..core import markers
from ..core.escaping import encodable
from ..core.kinds import COMM
from ..core.schema import Row, records
from ..core.tables.communication import CLOCK_PROBES, PROCESS_GROUPS, STEP_MARKS, TRACES
from ..core.tables.device_time import STEP_TIMES
from ..core.tables.events import ACTIVITIES
from ..errors import AnalysisError, DamagedTrace, NoTraces, TraceError
from ..reading.pool import Reading
from ..reading.trace_files import run_name
from ..reading.trace_input import TraceInput
from ..recording.options import ReadOptions
from ..recording.recording import RawTrace
from ..recording.shared_files import file_name, file_of
from .chosen import chosen
from .chosen_steps import notes_on_kinds, notes_on_marks, notes_on_steps, of_steps, replicas_of
from .cpu_activities import with_activities
from .event_tables import EventTables, RunTables
from .file_tables import Placed, TraceFile, joined_tables, trace_file
from .rank_files import Member, cycles_in, host_of, joined_notes, members_of, notes_on, notes_on_clocks, notes_on_copies
from .side_files import (
    gpu_clock,
    kinds_of_steps,
    notes_on_shared,
    nvlink_bytes,
    probe_rows,
    shared_gpus,
    side_content,
    step_time_rows,
    used_outside,
)

if TYPE_CHECKING:
    from .captures import GraphCaptures
    from .spread import SpreadTables

_STREAMS_MET = "kernels of one stream ran at the same time, so times are wrong"
# Half of what 64 bits hold, because sums of floats are rounded.
_MOST_SUMMED_NS, _YEAR_NS = 2.0**62, 365.25 * 86_400e9


@dataclass(frozen=True)
class Run:
    """Everything read from one run; tables as declared in `core.tables`, sorted by rank and cycle.

    `tables` grow with its events; those of operators, calls and memory are empty unless it was read with `details`.
    `files` are those of each rank, in order of cycles. `nvlink` is what the links of a rank's GPU sent in the whole
    capture, in bytes, and in how many steps; `gpu_clocks` its clock at the end in MHz, and what held that down.
    `sharing` are the ranks that share their GPU with others, and `gloo_beside_gpu` says whether CPUs communicated
    too. `launched` are the calls of a rank that launched work which its trace does not show. `gpus_listed` are the
    names of the GPUs that the trace of a rank lists, `gpu_bytes` the memory of each, 0 if not known, and
    `nccl_versions` the version of NCCL that it says. `outside_bytes` is, by rank and device, the most memory that
    was used outside of torch, as side files say. If not `runs_python`, all of its processes are known to run other
    programs. In its `unshown_steps` a rank launched work that its trace does not show. If only some steps were
    read, these are `only_steps`, and `recorded_steps` are all steps in the files, by rank and cycle. `step_marks`
    give the kinds of steps, and `step_marker` is the regular expression that found them, if one was given.
    `replicas` tell of ranks that serve requests of which replica each is; None if that is not known.
    """

    name: str
    traces: pd.DataFrame
    process_groups: pd.DataFrame
    tables: RunTables
    config: dict[str, Any]
    notes: tuple[str, ...]
    failed: tuple[str, ...] = ()
    clock_probes: pd.DataFrame = field(default_factory=CLOCK_PROBES.empty)
    step_times: pd.DataFrame = field(default_factory=STEP_TIMES.empty)
    step_marks: pd.DataFrame = field(default_factory=STEP_MARKS.empty)
    details: bool = False
    files: dict[int, list[Path]] = field(default_factory=dict)
    nvlink: dict[int, tuple[int, int]] = field(default_factory=dict)
    gpu_clocks: dict[int, tuple[int | None, tuple[str, ...]]] = field(default_factory=dict)
    sharing: frozenset[int] = frozenset()
    gloo_beside_gpu: bool = False
    launched: dict[int, int] = field(default_factory=dict)
    gpus_listed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    gpu_bytes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    outside_bytes: dict[tuple[int, str], int] = field(default_factory=dict)
    nccl_versions: dict[int, str] = field(default_factory=dict)
    runs_python: bool = True
    unshown_steps: dict[int, frozenset[int]] = field(default_factory=dict)
    replicas: dict[int, int] | None = field(default_factory=dict)
    only_steps: tuple[int, ...] = ()
    step_marker: str | None = None
    recorded_steps: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def activities(self) -> pd.DataFrame:
        """Activities of devices; on CPU runs, operators and gloo operations."""
        return ACTIVITIES.described(self.tables.whole.activities)

    @property
    def launches(self) -> pd.DataFrame:
        """Calls that launched activities."""
        return self.tables.whole.launches

    @property
    def annotations(self) -> pd.DataFrame:
        """Steps, collectives and c10d operators, as marked on CPUs."""
        return self.tables.whole.annotations

    @property
    def comm_args(self) -> pd.DataFrame:
        """Arguments of collectives."""
        return self.tables.whole.comm_args

    @property
    def cpu_operators(self) -> pd.DataFrame:
        """Operators of CPUs in runs of GPUs."""
        return self.tables.whole.cpu_operators

    @property
    def operator_calls(self) -> pd.DataFrame:
        """Calls of operators with shapes and their place in autograd; empty without details."""
        return self.tables.whole.operator_calls

    @property
    def runtime_calls(self) -> pd.DataFrame:
        """Calls of the CUDA runtime."""
        return self.tables.whole.runtime_calls

    @property
    def modules(self) -> pd.DataFrame:
        """Calls of modules; empty without details."""
        return self.tables.whole.modules

    @property
    def functions(self) -> pd.DataFrame:
        """Long calls of Python functions; empty without details, or without stacks."""
        return self.tables.whole.functions

    @property
    def counter_samples(self) -> pd.DataFrame:
        """Samples of counters of GPUs; empty without details, or where torch recorded none."""
        return self.tables.whole.counter_samples

    @property
    def stream_waits(self) -> pd.DataFrame:
        """Calls that made a stream wait for an event, if traces number events."""
        return self.tables.whole.stream_waits

    @property
    def memory_events(self) -> pd.DataFrame:
        """Allocations and releases; empty without details."""
        return self.tables.whole.memory_events

    @property
    def spread(self) -> SpreadTables | None:
        """The tables, if they are made rank by rank; else None."""
        if isinstance(self.tables, EventTables):
            return None
        from .spread import SpreadTables

        return self.tables if isinstance(self.tables, SpreadTables) else None

    @property
    def steps(self) -> list[int]:
        """Steps with device activity, ascending."""
        return sorted({step for ran in self.tables.ran for step in ran.steps})

    @property
    def devices(self) -> set[tuple[int, str]]:
        """Ranks and their devices with activity."""
        return {(ran.rank, device) for ran in self.tables.ran for device in ran.devices}

    @property
    def is_of_cpus(self) -> bool:
        """Whether no GPU was active."""
        return all(device == "cpu" for _, device in self.devices)

    @property
    def idle_gpus(self) -> tuple[str, ...]:
        """The GPUs that a trace lists where only CPUs were active: unused, or not traced. None in jobs on gloo."""
        listed = max(self.gpus_listed.values(), key=len, default=())
        if not (listed and self.devices and self.is_of_cpus):
            return ()
        on_gloo = self.traces["backend"].eq(markers.GLOO).any() or self.activities["kind"].eq(COMM).any()
        return () if on_gloo else listed

    @cached_property
    def device_names(self) -> dict[tuple[int, str], str | None]:
        """The model of each device with activity, by rank and device; None where it is not known."""
        of_rank = {row["rank"]: row["device_name"] for row in records(self.traces.drop_duplicates("rank"))}
        used = Counter(rank for rank, device in self.devices if device != "cpu")
        return {
            (rank, device): _model(self.gpus_listed.get(rank, ()), device, of_rank.get(rank), is_only=used[rank] < 2)
            for rank, device in sorted(self.devices)
        }

    @property
    def models(self) -> list[str]:
        """The models of its devices, as far as they are known, by name."""
        return sorted({*self.traces["device_name"].dropna(), *filter(None, self.device_names.values())})

    @property
    def ranks(self) -> list[int]:
        """Ranks that have a trace, ascending."""
        return sorted(self.traces["rank"].unique().tolist())

    @property
    def hosts(self) -> dict[int, str | None]:
        """Host of each rank, None if no file names it; machines of one name are told apart by boot id."""
        machines: dict[str, str] = {}
        hosts: dict[int, str | None] = {}
        for row in records(self.traces.drop_duplicates("rank")):
            host, boot = row["host"], row["boot_id"]
            if boot is not None and boot not in machines:
                machines[boot] = f"{host} ({boot[:8]})" if host in machines.values() else host or boot[:8]
            hosts[row["rank"]] = host if boot is None else machines[boot]
        return hosts

    @property
    def has_gc(self) -> bool:
        """Whether runs of Python's garbage collector were recorded, on any rank."""
        return any(ran.marked.has_gc for ran in self.tables.ran)

    def detailed(self, rank: int) -> EventTables:
        """The tables of one rank with details, read from its files again if needed."""
        if self.details or not self.files:
            return self.tables.of_rank(rank)
        try:
            options = ReadOptions(
                details=True,
                keep_going=True,
                workers=1,
                steps=self.only_steps,
                step_marker=self.step_marker,
                cycles=cycles_in([path.name for path in self.files[rank]]),
            )
            with Reading(list(map(TraceInput, self.files[rank])), options) as reading:
                files = list(map(partial(file_of_arrays, reading), reading.paths, reading))
        except (AnalysisError, OSError):  # they may be gone by now
            files = []
        read = [Placed(file, rank, cycle) for cycle, file in enumerate(files) if isinstance(file, TraceFile)]
        return joined_tables(read) if read else self.tables.of_rank(rank)

    @cached_property
    def captures(self) -> GraphCaptures:
        """What traces beside those of the run say of the capture of its CUDA graphs; read when it is asked for."""
        from .captures import captures_beside

        return captures_beside(self.files)

    @property
    def ends_ns(self) -> pd.Series[int]:
        """End of each rank's trace on its own clock, in ns: when the profiler stopped, or the last activity ended."""
        ends = self.traces.groupby("rank")["window_end_ns"].max()
        last: dict[int, int] = {}
        for ran in self.tables.ran:
            last[ran.rank] = max(ran.ended_ns, last.get(ran.rank, ran.ended_ns))
        ended = pd.Series(last, dtype="int64").rename_axis("rank")
        return ends.fillna(ended).dropna().astype("int64")

    @property
    def has_starts(self) -> bool:
        """Whether all files say when calls began, and not only how long they took."""
        return bool(self.traces["has_starts"].fillna(True).all())

    @property
    def partial_ranks(self) -> list[int]:
        """Ranks with a damaged file, read only up to the damage, or with one that contradicts itself."""
        return sorted(self.traces["rank"][self.traces["partial"].fillna(False)].unique().tolist())

    @property
    def contradicting(self) -> pd.Series[bool]:
        """Whether each file of `traces` contradicts itself."""
        return self.traces["incomplete_reason"].eq(_STREAMS_MET).fillna(False).astype(bool)

    @property
    def partial_because(self) -> list[str]:
        """Why ranks are partial, a sentence for each reason."""
        contradicting = sorted(self.traces["rank"][self.contradicting].unique().tolist())
        damaged = [rank for rank in self.partial_ranks if rank not in contradicting]
        return [
            f"{ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} partial: {why}"
            for ranks, why in (
                (
                    damaged,
                    f"nothing after the damage in {'its file' if len(damaged) == 1 else 'their files'} is counted",
                ),
                (contradicting, _STREAMS_MET),
            )
            if ranks
        ]

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job; None if no file says it."""
        known = self.traces["world_size"].dropna()
        return int(known.iloc[0]) if len(known) else None

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the job without a trace."""
        return sorted(set(range(self.world_size or 0)) - set(self.ranks))


def joined_run(
    paths: Sequence[Path],
    files: Iterable[TraceFile | TraceError],
    tables: Callable[[list[Placed]], RunTables],
    options: ReadOptions,
) -> Run:
    """Make the run of these files, found at `paths`; `tables` makes its tables. Raises AnalysisError."""
    read: list[TraceFile] = []
    failed: list[str] = []
    for file in files:
        if isinstance(file, TraceError):
            if not options.keep_going:
                raise file
            failed.append(str(file))
        else:
            read.append(file)
            failed += [file.damage] if file.damage else []
    failed = [*dict.fromkeys(failed)]  # ranks that share a file share its damage
    if not read:
        raise NoTraces(_none_usable(paths, failed))
    members, lost = members_of(read, keep_going=options.keep_going)
    if not members:
        raise NoTraces(_none_usable(paths, lost))
    members, notes = chosen(members, options)
    notes += [*notes_on_clocks(members), *notes_on_copies(members)]
    notes += notes_on_marks(members, options.step_marker)
    notes += [*notes_on_kinds(members), *notes_on_steps(members, options)]
    config = side_content(file_of(members[0].file.path).with_name(RUN_FILE), lost if options.keep_going else None)
    run = _assemble(run_name(paths), members, config, tables([Placed(m.file, m.rank, m.cycle) for m in members]))
    detailed = all(file.detailed for file in read)
    run = replace(
        run, notes=(*run.notes, *notes), failed=(*failed, *lost), details=detailed, step_marker=options.step_marker
    )
    return _of_some_steps(run, members, options) if options.steps or options.last else run


def _none_usable(paths: Sequence[Path], failed: Sequence[str]) -> str:
    if len(failed) == 1:
        return failed[0]
    return f"{paths[0]}: none of the {len(failed):,} files could be used: {'; '.join(failed)}"


def _of_some_steps(run: Run, members: list[Member[TraceFile]], options: ReadOptions) -> Run:
    """The run without what is known of all of its steps together only: side files do not say which step it was."""
    return replace(
        run,
        only_steps=options.steps,
        recorded_steps={(m.rank, m.cycle): m.file.recorded_steps for m in members},
        step_times=STEP_TIMES.empty(),
        nvlink={},
        outside_bytes={},
    )


def file_of_arrays(reading: Reading, path: Path, found: RawTrace | TraceError) -> TraceFile | TraceError:
    """The tables of a file of which these arrays were found, or its error; what is cut off leaves memory to others."""
    if isinstance(found, TraceError):
        return found
    try:
        whole = trace_file(path, found, reading.options)
        file = of_steps(with_activities(whole), reading.options)
    except TraceError as err:
        return err
    reading.give_back(whole.needed_bytes - file.needed_bytes)
    return file


def summable(files: Iterable[TraceFile | TraceError]) -> Iterator[TraceFile | TraceError]:
    """Yield the files; an error for one whose times would make sums exceed 64 bits."""
    before_ns = 0.0
    for file in files:
        if isinstance(file, TraceError) or before_ns + file.times_ns < _MOST_SUMMED_NS:
            before_ns += 0.0 if isinstance(file, TraceError) else file.times_ns
            yield file
            continue
        rank = "" if file.header.rank is None else f" (rank {file.header.rank})"
        yield DamagedTrace(
            f"{file.path}{rank}: its times add up to {file.times_ns / _YEAR_NS:,.0f} years, with those of the files "
            f"before to more than {_MOST_SUMMED_NS / _YEAR_NS:.0f}, too much for sums in 64 bits; capture it again"
        )


def _mark_rows(member: Member[TraceFile]) -> Iterator[Row]:
    """What is known of the steps of a file, from their annotations, else from the side file if they are torch's."""
    kinds = kinds_of_steps(member.side)
    for mark in member.file.step_marks:
        by_torch = mark.name == f"{markers.PROFILER_STEP}{mark.step}"
        kind = kinds.get(mark.step, mark.kind) if by_torch and mark.kind in (None, "train") else mark.kind
        unseen_ns = member.file.unseen_ns.get(mark.step)
        yield {"rank": member.rank, "cycle": member.cycle, **mark._asdict(), "kind": kind, "unseen_ns": unseen_ns}


def _assemble(name: str, members: list[Member[TraceFile]], config: dict[str, Any], tables: RunTables) -> Run:
    texts = _RanksAsTexts()
    shared = shared_gpus((m.rank, m.side) for m in members if m.cycle == 0)
    probed = [row for m in members if m.cycle == 0 for row in probe_rows(m.rank, m.side)]
    return Run(
        name=name,
        traces=TRACES.frame(_trace_row(m) for m in members),
        process_groups=PROCESS_GROUPS.frame(
            r for m in members for r in _group_rows(m.rank, _groups_of(m), texts)
        ).drop_duplicates(ignore_index=True),
        tables=tables,
        step_times=STEP_TIMES.frame(row for m in members if m.cycle == 0 for row in step_time_rows(m.rank, m.side)),
        step_marks=STEP_MARKS.frame(row for m in members for row in _mark_rows(m)),
        replicas=replicas_of(members),
        config=config,
        notes=(
            *joined_notes((m, note) for m in members for note in notes_on(m, m.file.gloo_beside_gpu)),
            *notes_on_shared(shared),
        ),
        clock_probes=CLOCK_PROBES.frame(probed),
        nvlink={m.rank: sent for m in members if m.cycle == 0 and (sent := nvlink_bytes(m.side))},
        gpu_clocks={m.rank: clock for m in members if m.cycle == 0 and (clock := gpu_clock(m.side))},
        sharing=frozenset(rank for ranks in shared for rank in ranks),
        gloo_beside_gpu=any(m.file.gloo_beside_gpu for m in members),
        launched={m.rank: m.file.launched for m in members if m.file.launched},
        gpus_listed={m.rank: names for m in members if (names := m.file.header.device_names)},
        outside_bytes={(m.rank, used[0]): used[1] for m in members if (used := used_outside(m.side)) is not None},
        gpu_bytes={m.rank: sizes for m in members if (sizes := m.file.header.device_bytes)},
        nccl_versions={m.rank: version for m in members if (version := m.file.header.nccl_version)},
        runs_python=any(m.file.header.runs_python for m in members),
        unshown_steps={
            rank: frozenset().union(*(m.file.unshown_steps for m in members if m.rank == rank))
            for rank in {m.rank for m in members if m.file.unshown_steps}
        },
        files={rank: [m.file.path for m in members if m.rank == rank] for rank in {m.rank for m in members}},
    )


def listed_groups(file: TraceFile) -> list[dict[str, Any]]:
    """Process groups listed in a file, as rows of rank 0, like those of its other tables."""
    return _group_rows(0, _groups_in(file), _RanksAsTexts())


def _trace_row(member: Member[TraceFile]) -> dict[str, Any]:
    header, side = member.file.header, member.side.record
    torch_version = side.versions.torch
    nccl = f"NCCL {header.nccl_version}" if header.nccl_version else None
    versions = [f"torch {torch_version}" if torch_version else None, header.cuda_version, nccl]
    complete, reason = side.complete, side.reason
    if member.file.damage is not None:
        complete, reason = False, member.file.damage
    elif member.file.contradicts:
        complete, reason = False, _STREAMS_MET
    # Ranks of one host share a clock; a rank without a zero of times does not.
    host, host_from = host_of(member) if member.file.has_known_clock else (None, None)
    return {
        "rank": member.rank,
        "cycle": member.cycle,
        "trace": encodable(file_name(member.file.path)),
        "world_size": header.world_size or side.world_size,
        "rank_from": member.rank_from,
        "host": host,
        "host_from": host_from,
        "window_end_ns": member.file.window_end_ns,
        "base_ns": header.base_ns,
        "boot_id": side.machine.boot_id if member.file.has_known_clock else None,
        "pid": member.file.pid,
        "backend": header.backend,
        "device_name": _device_name(member),
        "complete": complete,
        "incomplete_reason": reason,
        "partial": member.file.damage is not None or member.file.contradicts,
        "read_bytes": member.file.extent.read_bytes,
        "not_understood_bytes": member.file.extent.not_understood_bytes,
        "verified_events": member.file.extent.verified_events,
        "versions": ", ".join(v for v in versions if v) or None,
        "has_starts": header.has_starts,
    }


def _device_name(member: Member[TraceFile]) -> str | None:
    """Name of the rank's device, from the trace's list of devices, else from the side file.

    The list holds the devices that the process may use, and is numbered by that; kernels may carry the number that the
    device has in its host. If all of the list are of one model, that does not matter.
    """
    used, device = member.file.first_device, member.side.record.device
    index = device.index if used is None else used
    if not isinstance(index, int):
        return device.name
    return _listed_model(member.file.header.device_names, index) or device.name


def _listed_model(names: Sequence[str], index: int) -> str | None:
    listed = names[index] if 0 <= index < len(names) else None
    models = {name for name in names if name}  # ROCm may leave names empty
    return listed or (models.pop() if len(models) == 1 else None)


def _model(listed: Sequence[str], device: str, of_rank: str | None, *, is_only: bool) -> str | None:
    """The model of one of a rank's devices. That `of_rank` is of the first that ran something."""
    if device == "cpu" or is_only or len(set(filter(None, listed))) < 2:
        return of_rank
    return _listed_model(listed, int(device))


_Group = tuple[str, str, str, tuple[int, ...]]  # name, description, backend and ranks


def _groups_of(member: Member[TraceFile]) -> list[_Group]:
    """Process groups of a rank, from its trace, else from its side file."""
    return _groups_in(member.file) or [
        (str(group.name), str(group.desc), str(group.backend), tuple(group.ranks))
        for group in member.side.record.process_groups
    ]


def _groups_in(file: TraceFile) -> list[_Group]:
    return [(g.name, g.description, g.backend, g.ranks) for g in file.header.process_groups]


class _RanksAsTexts(dict[tuple[int, ...], str | None]):
    """Lists of ranks as texts, each made once: ranks of a large job list the same large groups."""

    def __missing__(self, ranks: tuple[int, ...]) -> str | None:
        text = self[ranks] = " ".join(map(str, sorted(ranks))) or None
        return text


def _group_rows(rank: int, groups: list[_Group], texts: _RanksAsTexts) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "process_group": name,
            "description": description,
            "backend": backend,
            "pg_ranks": texts[ranks],
        }
        for name, description, backend, ranks in groups
    ]
