"""Read a Kineto trace into columns of numbers with each name once: small, quick to send and to keep.

Only the modules of this folder know raw trace keys. Several processes can read a part of a large file each
(`read_part`), and one joins the parts.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, islice, repeat
from pathlib import Path
from typing import Any

import msgspec

from ....common.wording import counted
from ...core.escaping import encodable
from ...core.kinds import COMM, MEMORY, kernel_kind, memory_kind
from ...core.markers import COPIES, DETAILS, STEERING
from ...core.tables.events import EVENT_SORTS
from ...errors import DamagedTrace, TooLarge, TraceError
from ...recording.compression import is_regular, packed_bytes, unpacked_bytes
from ...recording.header import Header
from ...recording.options import Progress, ReadOptions
from ...recording.recording import (
    Annotation,
    Columns,
    Events,
    Extent,
    RawTrace,
    Unread,
    latest,
    raw_trace,
    with_unread,
)
from ...recording.row_bytes import shapes_bytes, tables_bytes
from ...recording.values import MISSING
from .absolute import Timed, TooFarApart, have_decimals, is_absolute, times_from, zero_us_near
from .arguments import annotations_of, call_records, comm_row, inputs_of, without_shapes
from .events import (
    KERNEL_CATEGORIES,
    MTIA_ACTIVITIES,
    MTIA_COPY,
    PRIVATE_DEVICES,
    Activity,
    CommEvent,
    CopyEvent,
    CounterEvent,
    CpuEvent,
    Decoder,
    Launch,
    MalformedEvent,
    MemoryEvent,
    OperatorEvent,
    PointEvent,
    ProcessEvent,
    RuntimeCall,
    Sorted,
    ThreadEvent,
    is_idle,
    sorted_texts,
)
from .fields import integer_id, values_in
from .foreign import check_device, notes_on_unread
from .header import header, header_so_far
from .joining import Joining, Part
from .part_stream import Indivisible, SpanStream
from .scan import picked
from .stream import NEAR_BYTES, Batch, EventStream, Pick, Surrounding, of_several_writers

_LOG = logging.getLogger("commtrace.reading")
_AT_ONCE = 4096
_STEP = re.compile(r"ProfilerStep#[0-9]{1,18}\Z")
_HANDING_OVER = ("c10d::", "record_param_comms")
_OF_KERNELS = (*KERNEL_CATEGORIES, MTIA_ACTIVITIES)
# Calls that a device has something to do for; those of CUDA and HIP that only ask, wait or allocate have other names.
_LAUNCHING = re.compile(r"Launch|Memcpy|Memset|Enqueue|Append|submit", re.IGNORECASE)
_LONG_TEXTS = ("in_split", "out_split", "pg_ranks")
_LOADING = "enumerate(DataLoader)#"  # an annotation or an operator, by version of torch
_ACTIVITIES, _LAUNCHES, _CPU_EVENTS, _COMM = Decoder(Activity), Decoder(Launch), Decoder(CpuEvent), Decoder(CommEvent)
_RUNTIME_CALLS = Decoder(RuntimeCall)
_MEMORY, _THREADS, _POINTS = Decoder(MemoryEvent), Decoder(ThreadEvent), Decoder(PointEvent)
_PROCESSES = Decoder(ProcessEvent)
_COPIES, _COUNTERS = Decoder(CopyEvent), Decoder(CounterEvent)
_OPERATORS = Decoder(OperatorEvent)


def read_kineto(
    path: Path,
    options: ReadOptions,
    progress: Progress | None = None,
) -> RawTrace:
    """Read one trace file. `progress` is called with the position in the file, in bytes.

    Raises UnreadableFile, NotATrace, DamagedTrace; TooLarge if the data and its tables would take more memory than the
    options allow.
    """
    is_lasting = is_regular(path)  # a pipe can be read only once
    with_operators = None if is_lasting and not options.details else True
    if is_lasting and packed_bytes(path) >= options.sizes.slow_to_count_bytes:
        # The second reading counts: it tells how many events are good, and keeps them.
        try:
            uncounted = replace(options, keep_going=False)
            return _read(path, _Reading(path, uncounted, with_operators), progress)
        except TraceError as err:
            if not options.keep_going and not isinstance(err, DamagedTrace):
                raise
            _LOG.info("%r: cannot be read to its end, so it is read again and its good events are counted", str(path))
    return _read(path, _Reading(path, options, with_operators), progress, counted=True)


def read_part(
    path: Path,
    options: ReadOptions,
    part: int,
    parts: int,
    progress: Progress | None = None,
) -> Part:
    """Read one of `parts` parts of a file, counted from 0. After any error, read the file as a whole.

    Raises Indivisible, UnreadableFile, NotATrace, DamagedTrace, TooLarge.
    """
    reading = _Reading(path, options, True if options.details else None)
    stream = SpanStream(path, part, parts, progress, picker=reading.picker, sizes=options.sizes)
    _add_all(reading, stream)
    with_operators, around = bool(reading.with_operators), stream.surrounding
    return Part(reading.result(), with_operators, around, stream.began_at, stream.ended_at, stream.state)


def joined_trace(path: Path, parts: Joining, options: ReadOptions) -> RawTrace:
    """Join all parts to the result of `read_kineto`. Raises Indivisible, NotATrace, DamagedTrace."""
    events, around = parts.events(), parts.surrounding
    if events is None or around is None or not (events.activities["ts"] or parts.with_operators):
        raise Indivisible(f"{path}: its parts do not tell all")
    check_device(path, events, around)
    trace = raw_trace(events, header(path, around), Extent(around.file_bytes), details=options.details)
    trace.notes = notes_on_unread(path, events)
    return trace


def read_texts(path: Path, texts: Iterable[bytes], known: Header, file_bytes: int, options: ReadOptions) -> RawTrace:
    """What events of another format say, given as Kineto would write them. Raises DamagedTrace, TooLarge."""
    reading = _Reading(path, options, with_operators=True)
    left = iter(texts)
    while some := list(islice(left, _AT_ONCE)):
        try:
            reading.add(sorted_texts(some, every_call=options.details))
        except MalformedEvent as err:
            near = err.text[:80].decode("utf-8", "replace")
            raise DamagedTrace(f"{path}: an event is not as torch writes it: {err}: {near!r}") from err
        reading.budget.check(f"{path}: its events", reading.needed_bytes)
    events = reading.result()
    trace = raw_trace(events, known, Extent(file_bytes), details=options.details)
    trace.notes = notes_on_unread(path, events)
    return trace


def _read(
    path: Path,
    reading: _Reading,
    progress: Progress | None,
    *,
    counted: bool = False,
) -> RawTrace:
    sizes = reading.options.sizes
    stream = EventStream(path, progress, picker=reading.picker, counted=counted, sizes=sizes)
    damage = None
    try:
        _add_all(reading, stream)
        around = header(path, stream.surrounding, reading.events, stream.habits)
        extent = Extent(stream.bytes_read)
    except TooLarge:
        raise
    except TraceError as err:
        if not reading.options.keep_going or not reading.events:
            raise
        damage, around = encodable(str(err)), header_so_far(stream.surrounding)
        file_bytes = None if stream.is_packing_broken or not is_regular(path) else unpacked_bytes(path)
        extent = Extent(reading.good_bytes, None if file_bytes is None else max(0, file_bytes - reading.good_bytes))
    if not reading.columns["activities"]["ts"] and not reading.with_operators:
        # A machine with GPUs, and a run that did not use them: all operators matter, not only those for collectives.
        _LOG.info("%r: has no activity of a GPU, so it is read again with all operators", str(path))
        return _read(path, _Reading(path, reading.options, True), progress, counted=counted)
    has_events, events = reading.good_bytes > 0, reading.result()
    if has_events:
        check_device(path, events, stream.surrounding, is_whole=damage is None)
    trace = raw_trace(events, around, extent, damage, details=reading.options.details)
    trace.notes = notes_on_unread(path, events)
    return trace


def _add_all(reading: _Reading, stream: EventStream[Sorted]) -> None:
    for batch in stream:
        _add(reading, batch, stream.path)
        reading.events = stream.events_read
        reading.good_bytes = batch.first_byte + batch.end
        progress_text = f"{stream.path}: its events up to byte {reading.good_bytes:,}"
        reading.budget.check(progress_text, reading.needed_bytes)


def _add(reading: _Reading, batch: Batch[Sorted], path: Path) -> None:
    """Add a batch; if it has a malformed event, only the events before it. Raises DamagedTrace."""
    try:
        every_call = reading.options.details
        reading.add(sorted_texts(batch.texts, every_call=every_call) if batch.picked is None else batch.picked)
        reading.repaired_bytes += batch.repaired_bytes
    except MalformedEvent as err:
        if batch.picked is not None:  # it may be the begin of one event and the end of another one
            return _add(reading, batch.taken_apart(), path)
        index = batch.texts.index(err.text)
        # Sorts are read one after the other, so there may be another one before it.
        _add(reading, batch.before(index), path)
        good = reading.events = batch.first_event + index
        reading.good_bytes = batch.byte_of(index)
        at = batch.byte_of(index) - batch.first_byte
        cause = of_several_writers(batch.source[max(0, at - NEAR_BYTES) : at + NEAR_BYTES])
        raise DamagedTrace(
            f"{path}: event {good:,}, at byte {batch.byte_of(index):,}, is not as Kineto writes it: "
            f"{err} ({counted(good, 'event')} before it, all good): {err.text[:80].decode('utf-8', 'replace')!r}"
            f"{f'; {cause}' if cause else ''}"
        ) from err


@dataclass
class _Reading:
    """The columns read so far.

    With all operators, without, or (None) with them unless the header lists a GPU. `events` were good so far, where
    they are counted, and `good_bytes` of the file with them.
    """

    path: Path
    options: ReadOptions
    with_operators: bool | None
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    operator_ids: dict[str, int] = field(default_factory=dict)
    call_ids: dict[str, int] = field(default_factory=dict)
    input_ids: dict[str, int] = field(default_factory=dict)
    ids: dict[str, dict[str, int]] = field(default_factory=dict)
    columns: dict[str, dict[str, array[Any]]] = field(default_factory=lambda: _arrays())
    annotations: list[Annotation] = field(default_factory=list)
    comm_args: list[dict[str, Any]] = field(default_factory=list)
    gloo_threads: set[int] = field(default_factory=set)
    window_end: float | None = None
    launched: int = 0
    unread: dict[str, Unread] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)
    pids: list[int | None] = field(default_factory=lambda: [None] * 4)
    events: int = 0
    good_bytes: int = 0
    repaired_bytes: int = 0
    zero_us: int = 0
    _has_no_zero: bool = False
    _lists_bytes: int = 0
    _letters: int = 0

    def __post_init__(self) -> None:
        self.budget = self.options.budget()

    @property
    def needed_bytes(self) -> int:
        """Upper bound of the memory of everything read so far and the tables made from it."""
        return self._lists_bytes + tables_bytes(
            **{sort: len(columns["ts"]) for sort, columns in self.columns.items()},
            annotations=len(self.annotations),
            calls=len(self.comm_args),
            names=len(self.names) + len(self.operator_ids) + len(self.call_ids) + len(self.input_ids),
            letters=self._letters,
        )

    def picker(self, around: Surrounding) -> Pick[Sorted]:
        """A function that picks the wanted events, for a document with this beginning."""
        if self.with_operators is None:
            self.with_operators = not header_so_far(around).device_names
        return partial(picked, with_operators=self.with_operators, every_call=self.options.details)

    def add(self, texts: Sorted) -> None:
        """Add a whole batch or nothing. Raises MalformedEvent."""
        activities = _ACTIVITIES.all(texts.activities)
        calls = _RUNTIME_CALLS.all(texts.launches) if self.options.details else []
        launches: Sequence[Launch] = [call for call in calls if not is_idle(call.cat, call.name)]
        if not self.options.details:
            launches = _LAUNCHES.all(texts.launches)
        annotations, operators = _CPU_EVENTS.all(texts.annotations), _CPU_EVENTS.all(texts.operators)
        inputs = [event.args for event in _OPERATORS.all(texts.operators)] if self.options.details else []
        modules, functions = _CPU_EVENTS.all(texts.modules), _CPU_EVENTS.all(texts.functions)
        threads = _THREADS.all(texts.threads)
        processes = _PROCESSES.all(texts.processes)
        # Of files without activities, which operators are read of.
        named = calls or (_RUNTIME_CALLS.all(texts.launches) if self.with_operators else [])
        points = _POINTS.all(texts.window_ends)
        memory = _MEMORY.all(texts.memory) if self.options.details else []
        counters = _COUNTERS.all(texts.counters)
        timed: list[tuple[Sequence[Timed], list[bytes]]] = [
            (activities, texts.activities), (calls or launches, texts.launches), (annotations, texts.annotations),
            (operators, texts.operators), (points, texts.window_ends), (memory, texts.memory),
            (modules, texts.modules), (functions, texts.functions), (counters, texts.counters),
        ]  # fmt: skip
        self._count_from_zero([each for each in timed if each[0]])
        window_ends = [event.ts for event in points if event.ts is not None]
        for index, activity in enumerate(activities):
            if activity.name in COPIES:
                activity.name = _COPIES.one(texts.activities[index]).whole_name
        names = self._names(activities)
        comm_args = self._comm_args_of(activities, names, texts.activities)
        self.repaired_bytes += texts.repaired_bytes
        marked = zip(annotations, texts.annotations, strict=True)
        called = list(zip(operators, texts.operators, strict=True))
        kept: list[tuple[CpuEvent, bytes]] = []
        of_user: list[tuple[CpuEvent, bytes]] = []
        for event, text in marked:
            (kept if STEERING.match(event.name) else of_user).append((event, text))
        # Up to torch 1.9, steps are operators.
        kept += [each for each in called if _STEP.match(each[0].name) or each[0].name.startswith(_LOADING)]
        kept += [each for each in called if each[0].name.startswith("c10d::")]
        if self.options.details:
            kept += [each for each in called if each[0].name in DETAILS]
        lists_bytes = sum(shapes_bytes(bytes(event.args)) for event, _ in kept)
        self.budget.check(f"{self.path}: the lists in its events", self.needed_bytes + lists_bytes)
        kept_annotations = annotations_of(kept)
        # With details, all of the user's: what a CPU was doing while its device had nothing to do.
        kept_annotations += [
            without_shapes(event) for event, _ in of_user if self.options.details or self.options.may_mark(event.name)
        ]
        recorded = call_records((e, t) for e, t in called if e.name == "record_param_comms")
        # There are several such events per thread; one may hold an earlier process name.
        self.gloo_threads |= {integer_id(e.tid) for e in threads if b"pt_gloo_runloop" in bytes(e.args)}
        self.annotations += kept_annotations
        self.comm_args += comm_args + recorded
        said = (row[name] for row in (*comm_args, *recorded) for name in _LONG_TEXTS)
        self._lists_bytes += lists_bytes + sum(len(text) for text in said if text is not None)
        self.window_end = latest(self.window_end, *window_ends)
        by_name = Counter(call.name for call in named)
        self.launched += sum(calls for name, calls in by_name.items() if _LAUNCHING.search(name))
        self.unread = with_unread(self.unread, _of_private_devices(named))
        self.unread = with_unread(self.unread, texts.unread)
        self.processes.update(name for name in (process.process for process in processes) if name is not None)
        self._extend("activities", activities, name=names)
        self._extend("launches", launches)
        self._extend("runtime", calls, name=self._numbered(self.call_ids, [call.name for call in calls]))
        self._extend("memory", memory)
        of_counters = self._numbered(self.operator_ids, [event.name for event in counters])
        self._extend("counters", counters, device=[event.device for event in counters], name=of_counters)
        handed_over = [e for e in operators if e.name.startswith(_HANDING_OVER)]
        is_work = [not e.name.startswith(_HANDING_OVER) and not _STEP.match(e.name) for e in operators]
        work = list(compress(operators, is_work))
        self._extend_pids(annotations, launches, handed_over, work)
        if self.options.details or not self.columns["activities"]["ts"]:  # else they matter on CPU runs only
            args = list(compress(inputs, is_work))
            name = self._numbered(self.operator_ids, [event.name for event in work])
            called_with = map(inputs_of, work, args) if args else repeat(None, len(work))
            self._extend("operators", work, args, name=name, inputs=self._numbered(self.input_ids, called_with))
        for sort, events in (("modules", modules), ("functions", functions)):
            self._extend(sort, events, [], name=self._numbered(self.operator_ids, [event.name for event in events]))

    def _count_from_zero(self, timed: Sequence[tuple[Sequence[Timed], list[bytes]]]) -> None:
        """Count times from a zero near these events, if doubles of their times are not exact."""
        if not self.zero_us:
            absolute = [] if self._has_no_zero else [each for each in timed if is_absolute(each[0])]
            if not any(have_decimals(events, texts) for events, texts in absolute):
                return
            first = absolute[0][0]
            self._move_zero(zero_us_near(max(event.ts or 0.0 for event in (first[0], first[-1]))))
        try:
            times_of_each = [times_from(self.zero_us, events, texts) for events, texts in timed]
        except TooFarApart:
            self._move_zero(0)
            self._has_no_zero = True
            return
        for (events, _), times in zip(timed, times_of_each, strict=True):
            for event, time in zip(events, times, strict=True):
                event.ts = time

    def _move_zero(self, zero_us: int) -> None:
        """Count everything read so far from another zero."""
        later_us, self.zero_us = zero_us - self.zero_us, zero_us
        for columns in self.columns.values():
            columns["ts"] = array("d", [ts - later_us for ts in columns["ts"]])
        self.annotations = [
            msgspec.structs.replace(annotation, ts=annotation.ts - later_us) for annotation in self.annotations
        ]
        self.comm_args = [row | {"ts": row["ts"] - later_us} if "ts" in row else row for row in self.comm_args]
        self.window_end = None if self.window_end is None else self.window_end - later_us

    def result(self) -> Events:
        """Hand over everything read; nothing is left here."""
        return Events(
            pids=self.pids,
            names=self.names,
            kinds=self.kinds,
            operator_names=list(self.operator_ids),
            call_names=list(self.call_ids),
            **{sort: _bytes(columns) for sort, columns in self.columns.items()},
            annotations=self.annotations,
            comm_args=self.comm_args,
            gloo_threads=sorted(self.gloo_threads),
            window_end=self.window_end,
            launched=self.launched,
            unread=self.unread,
            processes=sorted(self.processes),
            inputs=[msgspec.json.format(text, indent=-1) for text in self.input_ids],
            zero_us=self.zero_us,
            lists_bytes=self._lists_bytes,
            repaired_bytes=self.repaired_bytes,
        )

    def _names(self, events: list[Activity]) -> list[int]:
        """The number of each event's name; a name that both kernels and copies have gets two numbers."""
        ids = self.ids
        try:
            return [ids[event.cat][event.name] for event in events]
        except KeyError:  # a few times per file
            for event in events:
                if event.name not in ids.get(event.cat, ()):
                    self._new_name(event.cat, event.name)
        return [ids[event.cat][event.name] for event in events]

    def _new_name(self, category: str, name: str) -> None:
        self.ids.setdefault(category, {})[name] = len(self.names)
        self.names.append(name)
        self._letters += len(name)
        self.kinds.append(self._kind(category, name))

    def _kind(self, category: str, name: str) -> str:
        if category == MTIA_ACTIVITIES and name == MTIA_COPY:
            return MEMORY
        return kernel_kind(name, self.options.comm_names) if category in _OF_KERNELS else memory_kind(name)

    def _comm_args_of(self, events: list[Activity], names: list[int], texts: list[bytes]) -> list[dict[str, Any]]:
        rows = []
        of_comm = {name for name, kind in enumerate(self.kinds) if kind == COMM}
        for index in [index for index, name in enumerate(names) if name in of_comm]:
            args = _COMM.one(texts[index]).args
            if events[index].cat not in _OF_KERNELS and args.bytes is not None:
                args.op, args.dtype, args.in_elems, args.out_elems = "peer_copy", "Byte", args.bytes, args.bytes
            if args.op is not None:
                rows.append(comm_row("kernel", args))
        return rows

    def _extend_pids(self, *sorts: Sequence[CpuEvent | Launch]) -> None:
        for sort, events in enumerate(sorts):
            if self.pids[sort] is None:
                self.pids[sort] = next((e.pid for e in events if isinstance(e.pid, int)), None)

    def _extend(
        self, sort: str, events: Sequence[Any], args: Sequence[Any] | None = None, **numbers: list[int]
    ) -> None:
        """Add events, whose arguments are `args` if they are not in them, and their texts by `numbers`."""
        args = [event.args for event in events] if args is None else args
        for one in EVENT_SORTS[sort].held:
            known = numbers.get(one.name)
            values = values_in(one, events, args) if known is None else array("q", known)
            self.columns[sort][one.name].extend(values)

    def _numbered(self, known: dict[str, int], texts: Iterable[str | None]) -> list[int]:
        """The number of each text among those `known`, to which new ones are added; MISSING for None."""
        before = len(known)
        numbers = [MISSING if text is None else known.setdefault(text, len(known)) for text in texts]
        self._letters += _last_letters(known, len(known) - before)
        return numbers


def _last_letters(names: dict[str, int], count: int) -> int:
    """Number of letters of the last `count` names."""
    return sum(map(len, islice(reversed(names), count)))


def _of_private_devices(calls: Sequence[RuntimeCall]) -> dict[str, Unread]:
    """Calls of runtimes that only a maker's extension of torch knows, by device."""
    unread: dict[str, Unread] = {}
    for call in calls:
        if call.cat in PRIVATE_DEVICES:
            unread = with_unread(unread, {call.cat: Unread(1, is_of_device=True, pid=-1)})
    return unread


def _arrays() -> dict[str, dict[str, array[Any]]]:
    return {
        name: {one.name: array("q" if one.is_integer else "d") for one in sort.held}
        for name, sort in EVENT_SORTS.items()
    }


def _bytes(columns: dict[str, array[Any]]) -> Columns:
    """The columns as bytes; they are used up, as both forms would take twice the memory."""
    return {name: columns.pop(name).tobytes() for name in list(columns)}
