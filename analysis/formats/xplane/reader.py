"""Read one device of an XSpace, which is one rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.nccl_tests import recorded_dtype
from ....common.wording import counted, ranges_of
from ...core import markers
from ...core.escaping import encodable
from ...core.kinds import COMM
from ...errors import NotATrace
from ...recording.arrays import Int64s
from ...recording.building import columns_of, events_of, header_of
from ...recording.header import Header, ProcessGroup
from ...recording.options import Progress, ReadOptions
from ...recording.protobuf import BrokenMessage
from ...recording.protobuf_files import damaged
from ...recording.recording import Annotation, Columns, Extent, RawTrace, raw_trace
from ...recording.row_bytes import tables_bytes
from ...recording.shared_files import SharedRank, file_of, shared_rank
from ...recording.values import MISSING, NOT_KNOWN
from .devices import (
    STEP_LINE,
    DeviceActivity,
    DistinctNames,
    LaunchDetails,
    ProgramRuns,
    calls_on,
    correlations_of,
    details_of,
    line_id,
    lines_named,
    looked_up,
    of_operations,
    on_streams,
    programs_of,
    runs_on,
    streams_of,
)
from .files import HostDevices, devices_in, is_device, space_in
from .programs import Instruction, collectives_in
from .space import PlaneEvents, Space

_HOST, _PROGRAMS, _CAPTURE = "/host:CPU", "/host:metadata", "Task Environment"
_LONG_AGO_NS = 10**18  # in 2001: lines that count from the epoch begin later, all others earlier
_LATEST_NS = 2**62 - 2**55
_NUMBER = re.compile(r"(?:.*[^0-9])?([0-9]{1,15})")


def read_xplane(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read one device of a file. For files with several, use the paths from `devices_as_ranks`.

    Raises UnreadableFile, NotATrace, DamagedTrace; TooLarge if the data and its tables would take more memory than the
    options allow.
    """
    file, shared = file_of(path), shared_rank(path)
    space = space_in(file, options, progress)
    if space.damage is not None and not options.keep_going:
        raise damaged(file, space.damage) from space.damage
    devices = devices_in(space)
    numbers = list(devices.working)
    number = next(iter(numbers), None) if shared is None else shared.number
    if len(numbers) > 1 and shared is None:
        raise NotATrace(
            f"{path}: holds {len(numbers)} devices, which are as many ranks; expected the path of one of them, such as "
            f"{SharedRank(0, None, numbers[0], 'device').in_file(path)}"
        )
    if number is None or number not in numbers:
        if space.damage is not None:
            raise damaged(file, space.damage) from space.damage
        raise NotATrace(f"{file}: {_without_work(space, devices)}")
    try:
        return _Device(file, options, space, devices, number, shared).trace()
    except BrokenMessage as err:
        raise damaged(file, err) from err


def _without_work(space: Space, devices: HostDevices) -> str:
    """Why nothing can be read of any device."""
    if not devices.idle:
        names = ", ".join(repr(encodable(plane.name)) for plane in space.planes[:8]) or "none"
        return f"shows nothing that a GPU or TPU did (planes: {names}); capture on one with jax.profiler.trace"
    own, are = ("its device", "is") if len(devices.idle) == 1 else (f"its {len(devices.idle)} devices", "are")
    steps = [plane for plane in space.planes if any(len(line.events) for line in lines_named(plane, STEP_LINE))]
    if steps:
        return (
            f"no operations of {own} were recorded, only steps; capture again, with the level of tracing that is the "
            "default"
        )
    return f"{own} did nothing while the trace was captured, or {are} not traced; capture while steps run"


class _Device:
    """What a file says of one of its devices."""

    def __init__(
        self, file: Path, options: ReadOptions, space: Space, devices: HostDevices, number: int,
        shared: SharedRank | None,
    ) -> None:  # fmt: skip
        self.file, self.options, self.space = file, options, space
        self.devices, self.number, self.plane = devices, number, devices.working[number]
        self.shared = shared
        self.names = DistinctNames()
        self.notes: list[str] = []
        lines = [line for plane in space.planes for line in plane.lines if len(line.events)]
        self.zero_ns = min((line.start_ns for line in lines), default=0)

    def trace(self) -> RawTrace:
        """Everything that the device did. Raises BrokenMessage, NotATrace, TooLarge."""
        runs = runs_on(self.plane, self.zero_ns)
        lookup = looked_up(collectives_in(self.space.named(_PROGRAMS), self._programs(runs)))
        if streams_of(self.plane):
            events, ran = on_streams(self.plane, self.zero_ns, self.names, self.options.comm_names, lookup)
        else:
            events, ran = None, of_operations(self.plane, self.zero_ns, self.names, lookup, runs)
        if not ran and self.space.damage is None:
            raise NotATrace(
                f"{self.file}: device {self.number} only used memory while the trace was captured"
                + ("; leave it out with --ranks" if len(self.devices.working) > 1 else "")
            )
        ran.sort(key=lambda one: (one.start_ps, one.end_ps))
        letters = sum(map(len, self.names.names))
        self.options.budget().check(
            f"{self.file}: what device {self.number} did",
            tables_bytes(activities=len(ran), launches=len(ran), names=len(self.names.names), letters=letters),
        )
        called = own = np.arange(len(ran))
        calls: dict[str, Any] = {}
        if events is not None:
            called, own = correlations_of(events, ran)
            calls = self._calls(called, own)
        rows = list(self._rows(ran, own, runs))
        steps = list(self._steps())
        made = events_of(
            pids=[None, None, None, None],
            names=self.names.names,
            kinds=self.names.kinds,
            activities=self._activities(ran, own, None if events is None else details_of(events, ran)),
            annotations=steps,
            comm_args=rows,
            **calls,
        )
        header = self._header(rows, on_device=events is None and bool(steps))
        damage = None if self.space.damage is None else encodable(str(damaged(self.file, self.space.damage)))
        unknown = 0 if damage is None else len(self.space.document.data) - self.space.whole_bytes
        trace = raw_trace(made, header, Extent(self.space.whole_bytes, unknown), damage, details=self.options.details)
        trace.notes = [f"{encodable(self.file.name)}: {note}" for note in self._notes(rows)]
        return trace

    def _programs(self, runs: ProgramRuns) -> set[str]:
        if runs.programs:
            return set(runs.programs)
        return set(programs_of(self.plane.events(streams_of(self.plane), self.zero_ns)).values())

    def _activities(self, ran: Sequence[DeviceActivity], own: Int64s, details: LaunchDetails | None) -> Columns:
        start_ns, end_ns = _in_ns(ran)
        count = len(ran)
        cores = int(self.plane.stats.integers("core_count", 1)[0])
        more: dict[str, NDArray[Any]] = {}
        if details is not None:
            per_core = np.where(details.blocks == MISSING, NOT_KNOWN, details.blocks.astype(np.float64))
            more = {
                "size": details.size,
                "registers": details.registers,
                "blocks_per_sm": per_core / (cores if cores > 0 else NOT_KNOWN),
                "occupancy_percent": details.occupancy_percent,
            }
        return columns_of(
            "activities",
            count,
            device=np.full(count, self.number),
            stream=np.array([one.stream for one in ran], dtype=np.int64),
            name=np.array([one.name for one in ran], dtype=np.int64),
            correlation=own,
            ts=start_ns / 1000,
            dur=(end_ns - start_ns) / 1000,
            **more,
        )

    def _calls(self, called: Int64s, own: Int64s) -> dict[str, Any]:
        """Calls of the host: what launched each activity, and with details all calls for the device."""
        host = self.space.named(_HOST)
        if host is None or not len(called):
            return {}
        calls = calls_on(host, self.zero_ns, called)
        if not len(calls.names):
            return {}
        order = np.lexsort((calls.start_ps, calls.correlation))
        known = calls.correlation[order]
        at = np.minimum(np.searchsorted(known, called), len(known) - 1)
        launched = np.flatnonzero((known[at] == called) & (called != MISSING))
        of_call = order[at[launched]]
        made: dict[str, Any] = {
            "launches": columns_of(
                "launches",
                len(of_call),
                correlation=own[launched],
                thread=calls.thread[of_call],
                ts=calls.start_ps[of_call] // 1000 / 1000,
            )
        }
        if self.options.details:
            names = list(dict.fromkeys(calls.names))
            numbers = {name: number for number, name in enumerate(names)}
            start_ns, end_ns = calls.start_ps // 1000, calls.end_ps // 1000
            made["call_names"] = names
            made["runtime"] = columns_of(
                "runtime",
                len(calls.names),
                thread=calls.thread,
                name=[numbers[name] for name in calls.names],
                correlation=calls.correlation,
                ts=start_ns / 1000,
                dur=(end_ns - start_ns) / 1000,
            )
        return made

    def _steps(self) -> Iterator[Annotation]:
        """Yield steps: those that the device marks, else annotations of the host that say `step_num`."""
        own = lines_named(self.plane, STEP_LINE)
        if own:
            events = self.plane.events(own, self.zero_ns)
            named = [self.plane.event_names.get(number, "") for number in events.name.tolist()]
            numbers = [int(match[1]) if (match := _NUMBER.fullmatch(name)) else MISSING for name in named]
            yield from _marks(events, numbers, [0] * len(numbers))
            return
        host = self.space.named(_HOST)
        if host is None:
            return
        events = host.events(host.lines, self.zero_ns)
        threads = [line_id(host.lines[n].id) for n in events.line.tolist()]
        if self.options.step_marker is None:
            numbers = events.stats.integers("step_num", len(events.name)).tolist()
            yield from _marks(events, numbers, threads)
            return
        for number, start, end, thread in zip(
            events.name.tolist(),
            (events.start_ps // 1000).tolist(),
            (events.end_ps // 1000).tolist(),
            threads,
            strict=True,
        ):
            name = host.event_names.get(number, "")
            if self.options.may_mark(name):
                yield Annotation(name, thread, start / 1000, (end - start) / 1000, None, None, None)

    def _rows(self, ran: Sequence[DeviceActivity], own: Int64s, runs: ProgramRuns) -> Iterator[dict[str, Any]]:
        """Yield the arguments of each collective."""
        for place, one in enumerate(ran):
            if self.names.kinds[one.name] != COMM:
                continue
            row: dict[str, Any] = {"source": "kernel", "correlation": int(own[place]), "external_id": None}
            name = self.names.names[one.name]
            if one.collective is not None:
                yield row | self._said(one, one.collective, runs)
            elif name.startswith(markers.COPY_BETWEEN_GPUS):
                yield row | {"op": "peer_copy"}

    def _said(self, one: DeviceActivity, said: Instruction, runs: ProgramRuns) -> dict[str, Any]:
        """What is known of a collective: sizes by the rules of its kind, and its group."""
        kind, groups = said.said.kind, said.groups
        sizes = {len(group) for group in groups or ()}
        size = sizes.pop() if len(sizes) == 1 and kind != "collective_permute" else None
        ranks = self._group(groups)
        run = runs.at(one.start_ps)
        number = int(runs.numbers[run]) if run >= 0 else MISSING
        is_matched = ranks is not None and number != MISSING
        return {
            "op": kind,
            "dtype": None if said.dtype is None else recorded_dtype(said.dtype),
            "in_elems": said.in_elems,
            "out_elems": _received(kind, said.in_elems, size),
            "in_bytes": said.in_bytes,
            "out_bytes": _received(kind, said.in_bytes, size),
            "group_size": size if ranks is None else len(ranks),
            "process_group": None if ranks is None else ranges_of(ranks, None),
            "pg_ranks": None if ranks is None else " ".join(map(str, ranks)),
            "comms_id": f"{one.program} {number} {one.instruction}" if is_matched else None,
        }

    def _group(self, groups: tuple[tuple[int, ...], ...] | None) -> tuple[int, ...] | None:
        """The ranks of the group that this rank is in; None unless numbers of devices are those of ranks.

        They are if the program runs on all devices of a single file, or all of them communicate.
        """
        if self.shared is None or self.shared.world_size is None or not groups:
            return None
        everybody = tuple(range(self.shared.world_size))
        if groups == (everybody,):
            return everybody
        is_alone = tuple(self.devices.working) == everybody
        if not is_alone or sorted(n for group in groups for n in group) != list(everybody):
            return None
        return next(group for group in groups if self.shared.rank in group)

    def _header(self, rows: Sequence[dict[str, Any]], *, on_device: bool) -> Header:
        lists = {row["process_group"]: row["pg_ranks"] for row in rows if row.get("pg_ranks")}
        named = self.plane.stats.texts("gpu_device_name") or self.plane.stats.texts("device_type_string")
        memory = int(self.plane.stats.integers("memory_size", 1)[0])
        count = self.number + 1
        return header_of(
            rank=None if self.shared is None else self.shared.rank,
            world_size=None if self.shared is None else self.shared.world_size,
            host=self.space.host,
            device_names=tuple(named.get(0, "") for _ in range(count)) if named else (),
            device_bytes=(memory,) * count if named and memory > 0 else (),
            process_groups=tuple(
                ProcessGroup(name, "", markers.NCCL, tuple(map(int, ranks.split()))) for name, ranks in lists.items()
            ),
            base_ns=self._base_ns(),
            steps_on_device=on_device,
        )

    def _base_ns(self) -> int:
        """Unix time of the zero of events, in ns."""
        if self.zero_ns > _LONG_AGO_NS:
            return min(self.zero_ns, _LATEST_NS)
        capture = self.space.named(_CAPTURE)
        begun = MISSING if capture is None else int(capture.stats.integers("profile_start_time", 1)[0])
        return max(0, self.zero_ns) + (begun if _LONG_AGO_NS < begun < _LATEST_NS else 0)

    def _notes(self, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
        if self.number == next(iter(self.devices.working)):
            yield from self._left_out()
        collectives = [row for row in rows if row["op"] != "peer_copy"]
        if collectives and not any(row["in_elems"] or row["in_bytes"] for row in collectives):
            yield (
                "holds no program that says what its collectives move, so sizes and groups are not known; capture with "
                "enable_hlo_proto, which is the default"
            )

    def _left_out(self) -> Iterator[str]:
        """Yield what of devices is not read."""
        parts = {plane.name for plane in self.space.planes if plane.name.startswith("/device:")}
        parts -= {plane.name for plane in self.space.planes if is_device(plane)}
        if parts:
            yield f"left out {counted(len(parts), 'plane')} of parts of devices: {_named(parts)}"
        if self.devices.idle:
            which, are = ("device", "is") if len(self.devices.idle) == 1 else ("devices", "are")
            numbers = ranges_of(self.devices.idle)
            yield f"{which} {numbers} did nothing while the trace was captured, and {are} left out"
        if self.devices.again:
            count = counted(len(self.devices.again), "plane")
            names = _named(plane.name for plane in self.devices.again)
            yield f"left out {count} with the number of a device before: {names}; give each capture a file of its own"


def _named(planes: Iterable[str]) -> str:
    return encodable(", ".join(sorted(planes)[:4]))


def _received(kind: str, given: int | None, size: int | None) -> int | None:
    """Elements or bytes that a rank gets for those it gives, in a group of this size; None if that is not known."""
    if given is None or kind not in ("all_gather", "reduce_scatter"):
        return given
    if size is None:
        return None
    return given * size if kind == "all_gather" else given // size


def _marks(events: PlaneEvents, numbers: Sequence[int], threads: Sequence[int]) -> Iterator[Annotation]:
    starts, ends = (events.start_ps // 1000).tolist(), (events.end_ps // 1000).tolist()
    for start, end, number, thread in zip(starts, ends, numbers, threads, strict=True):
        if 0 <= number < 10**15:
            name = f"{markers.PROFILER_STEP}{number}"
            yield Annotation(name, thread, start / 1000, (end - start) / 1000, None, None, None)


def _in_ns(ran: Sequence[DeviceActivity]) -> tuple[Int64s, Int64s]:
    """Starts and ends in ns, both rounded down: what did not meet in ps does not meet in ns."""
    starts, ends = (np.array(ps, dtype=np.int64) // 1000 for ps in ([r.start_ps for r in ran], [r.end_ps for r in ran]))
    return starts, ends
