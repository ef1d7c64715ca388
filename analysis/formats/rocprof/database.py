"""Read databases of rocpd, the tables of which are named by a process: `rocpd_kernel_dispatch_0198c1...`.

Views join them for people. They would be programs of the file, so the tables themselves are read. Their layout differs
by version: where and when something ran stands in its own row (schema 3), or that has the number of a track, and in
some the numbers of two timestamps. Which is there is seen by the columns.

Source: rocprofiler-sdk, share/rocprofiler-sdk-rocpd/*.sql, and lib/output/generateRocpd.cpp, which fills them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import DamagedTrace, NotATrace, TraceError
from ...recording.arrays import Int64s
from ...recording.database import Database, WrittenBy
from ...recording.database_columns import DatabaseColumns, looked_up_by_id
from ...recording.options import Progress, ReadOptions
from ...recording.values import MISSING
from ..launchers import rank_of_launcher
from ..nccl_functions import Range
from ..others import RPD
from .process import AGAIN, Agent, ProcessFacts, RecordedProcess, any_communicates, is_read

_ROCPROF = WrittenBy("databases of rocprofv3", AGAIN)
_BEGIN, _KERNELS = "rocpd_", "rocpd_kernel_dispatch"
_OF_RPD = ("rocpd_op", "rocpd_api", "rocpd_kernelapi")
_OF_TRACK = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_MARKER = "MARKER"
_MOST_AGENTS = 1 << 16
_MARK_BYTES = 400


class _Message(msgspec.Struct):
    message: str | None = None


class _AgentData(msgspec.Struct):
    cu_count: int | None = None


def is_rocpd(path: Path) -> bool:
    """Whether an SQLite database has a table of rocpd; False if it cannot be read."""
    with suppress(TraceError), Database(path, _ROCPROF, ReadOptions().budget()) as database:
        return database.has_like(_BEGIN)
    return False


def processes_in_database(path: Path) -> list[ProcessFacts]:
    """The processes in a database. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    with Database(path, _ROCPROF, ReadOptions().budget()) as database:
        return [one.facts() for one in _processes(database, ReadOptions())]


def read_database(path: Path, options: ReadOptions, pid: int | None, progress: Progress | None) -> RecordedProcess:
    """One process of a database, the only one if `pid` is None.

    Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge.
    """
    with Database(path, _ROCPROF, options.budget(), progress) as database:
        processes = _processes(database, options)
        if pid is None and len(processes) > 1:
            raise NotATrace(
                f"{path}: holds {len(processes)} processes, so as many ranks; expected the path of one of them, such "
                f"as {path}/rank0-pid{processes[0].pid}"
            )
        chosen = [one for one in processes if pid in (None, one.pid)]
        if not chosen:
            raise NotATrace(f"{path}: holds no process {pid}")
        return chosen[0].recorded()


def _processes(database: Database, options: ReadOptions) -> list[_Process]:
    """The processes in an open database. Raises NotATrace, DamagedTrace."""
    endings = [name.removeprefix(_KERNELS) for name in database.names(_KERNELS)]
    if not endings:
        is_rpd = database.has_like(*_OF_RPD)
        raise NotATrace(f"{database.path}: {RPD if is_rpd else f'has no table {_KERNELS}...; {AGAIN}'}")
    found: list[_Process] = []
    for ending in endings:
        listed = [row for rows in database.rows(f"rocpd_info_process{ending}", ("id", "pid", "nid")) for row in rows]
        numbers = [(row[0], row[1], row[2]) for row in listed if type(row[0]) is int and type(row[1]) is int]
        is_only = len(numbers) < 2
        found += [_Process(database, options, ending, is_only, *row) for row in numbers or [(MISSING, 0, None)]]
    used = [one for one in found if one.did_something()] or found
    if len({one.pid for one in used}) < len(used):
        raise DamagedTrace(
            f"{database.path}: holds two processes of one number, as of several hosts; give the databases that were "
            "merged into it instead"
        )
    return used


class _Process:
    """The rows of one process: those of tables with its ending, and of its number where several have these."""

    def __init__(
        self, database: Database, options: ReadOptions, ending: str, is_only: bool, id_: int, pid: int, node: object
    ) -> None:  # fmt: skip
        self.pid = pid
        self._ending, self._is_only, self._id, self._node = ending, is_only, id_, node
        self._tables = DatabaseColumns(database, options)
        self._database, self._options = database, options
        self._tracks: dict[str, Int64s] | None = None
        self._times: dict[str, Int64s] | None = None
        self._every_event: dict[str, Int64s] | None = None

    def did_something(self) -> bool:
        """Whether a kernel of it may be there."""
        table = self._named(_KERNELS)
        if self._is_only or not self._database.has(table, "pid"):
            return True
        return any(self._database.numbers(table, ("pid",), f'"pid" = {self._id} LIMIT 1'))

    def facts(self) -> ProcessFacts:
        """What it says of itself. Raises DamagedTrace, TooLarge."""
        placed = self._placed(_KERNELS, ("kernel_id",), ())
        names = list(self._tables.texts(self._named("rocpd_info_kernel_symbol"), placed["kernel_id"].tolist(),
                                        "display_name").values())  # fmt: skip
        agents = self._agents()
        of_gpus = {agents[number].number for number in set(placed["agent_id"].tolist()) if number in agents}
        rank, world = self._launched_as()
        span = (int(placed["start"].min()), int(placed["end"].max())) if len(placed["start"]) else None
        return ProcessFacts(self.pid, self._host(), rank, world, tuple(sorted(of_gpus)), any_communicates(names), span)

    def recorded(self) -> RecordedProcess:
        """All that was recorded. Raises DamagedTrace, TooLarge."""
        kernels, kernel_names = self._kernels()
        copies = self._copies()
        launching = np.unique(np.concatenate([kernels["correlation"], copies["correlation"]]))
        calls, call_names, marks, unread = self._regions(launching)
        tables = self._tables
        return RecordedProcess(
            ProcessFacts(self.pid, self._host(), *self._launched_as()),
            self._agents(),
            kernels,
            kernel_names,
            copies,
            calls,
            call_names,
            marks,
            unread,
            tables.damage,
            self._database.size,
        )

    def _named(self, table: str) -> str:
        return f"{table}{self._ending}"

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[list[Any]]:
        for rows in self._tables.rows(self._named(table), columns):
            yield from rows

    def _host(self) -> str | None:
        nodes = {row[0]: row[1] for row in self._rows("rocpd_info_node", ("id", "hostname"))}
        name = nodes.get(self._node, next(iter(nodes.values()), None))
        return name if isinstance(name, str) and name else None

    def _launched_as(self) -> tuple[int | None, int | None]:
        for number, environment in self._rows("rocpd_info_process", ("id", "environment")):
            if number == self._id and isinstance(environment, str):
                with suppress(msgspec.MsgspecError, RecursionError):
                    return rank_of_launcher(msgspec.json.decode(environment, type=dict[str, Any]))
        return None, None

    def _agents(self) -> dict[int, Agent]:
        agents: dict[int, Agent] = {}
        columns = ("id", "type", "type_index", "logical_index", "absolute_index", "product_name", "name", "extdata")
        counted = count()
        for number, kind, *numbers, product, name, data in self._rows("rocpd_info_agent", columns):
            if type(number) is not int:
                continue
            is_gpu = kind == "GPU"
            of_gpu = next((n for n in numbers[:1] if type(n) is int and 0 <= n < _MOST_AGENTS), None)
            place = next(counted) if is_gpu else 0
            said = product if isinstance(product, str) and product else name
            agents[number] = Agent(
                is_gpu, place if of_gpu is None else of_gpu, said if isinstance(said, str) and said else None,
                _units(data),
            )  # fmt: skip
        return agents

    def _kernels(self) -> tuple[dict[str, Int64s], list[str]]:
        sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
        placed = self._placed(_KERNELS, ("kernel_id",), ("event_id", *sizes))
        symbols = self._named("rocpd_info_kernel_symbol")
        numbers = np.unique(placed["kernel_id"]).tolist()
        texts = self._tables.texts(symbols, numbers, "kernel_name")
        texts |= {number: name for number, name in self._tables.texts(symbols, numbers, "display_name").items() if name}
        lacking = [number for number in numbers if number not in texts]
        if lacking:
            self._tables.note_invalid(f"{len(lacking)} names of kernels are not in its table {symbols}")
        name, names = _as_places(placed["kernel_id"], texts)
        stacks, _ = self._events(placed["event_id"])
        self._tables.keep(_KERNELS, activities=len(name), names=len(names), letters=sum(map(len, names)))
        return {
            "start": placed["start"], "end": placed["end"], "name": name, "agent": placed["agent_id"],
            "queue": placed["queue_id"], "stream": placed["stream_id"], "correlation": stacks,
            "blocks": _blocks(placed),
        }, names  # fmt: skip

    def _copies(self) -> dict[str, Int64s]:
        table = "rocpd_memory_copy"
        placed = self._placed(table, (), ("event_id", "src_agent_id", "dst_agent_id", "size"))
        stacks, _ = self._events(placed["event_id"])
        self._tables.keep(table, activities=len(stacks))
        return {
            "start": placed["start"], "end": placed["end"], "source": placed["src_agent_id"],
            "target": placed["dst_agent_id"], "size": placed["size"], "stream": placed["stream_id"],
            "correlation": stacks,
        }  # fmt: skip

    def _regions(self, launching: Int64s) -> tuple[dict[str, Int64s], list[str], list[Range], int]:
        """Calls that launched one of these, or with details all; and what was marked, and how much cannot be read."""
        table = "rocpd_region"
        placed = self._placed(table, ("name_id",), ("event_id",))
        own, ancestor = self._events(placed["event_id"])
        category = self._categories(placed["event_id"])
        texts = self._tables.texts(self._named("rocpd_string"), np.unique(placed["name_id"]).tolist(), "string")
        threads = {row[0]: row[1] for row in self._rows("rocpd_info_thread", ("id", "tid"))}
        name, names = _as_places(placed["name_id"], texts)
        wanted = np.array([is_read(one) for one in names], dtype=bool)[name] if len(name) else np.zeros(0, dtype=bool)
        is_rccl = np.array([one.startswith("nccl") for one in names], dtype=bool)
        if not self._options.details and len(name):
            # Calls around a launching one tell what launched an activity, as do functions of RCCL by their times.
            around = looked_up_by_id(launching, own, ancestor)
            wanted &= np.isin(own, launching) | np.isin(own, around) | is_rccl[name]
        marked = np.isin(category, self._marking()) if len(category) else wanted
        calls = {
            "start": placed["start"], "end": placed["end"], "name": name, "thread": placed["tid"], "own": own,
            "ancestor": ancestor,
        }  # fmt: skip
        kept = {key: values[wanted & ~marked] for key, values in calls.items()}
        kept["thread"] = np.array([_number(threads.get(tid), tid) for tid in kept["thread"].tolist()], dtype=np.int64)
        self._tables.keep(table, runtime=len(kept["start"]), annotations=int(marked.sum()))
        rows = zip(*(calls[key][marked].tolist() for key in ("name", "thread", "start", "end")),
                   placed["event_id"][marked].tolist(), strict=True)  # fmt: skip
        messages, unread = self._messages(placed["event_id"][marked])
        marks = [
            Range(said, self.pid, _number(threads.get(tid), tid), start, end)
            for number, tid, start, end, event in rows
            if (said := messages.get(event) or _unless_function(names[number]))
        ]
        return kept, names, marks, unread

    def _marking(self) -> list[int]:
        """The numbers of categories of marks, which are texts, or in a table of their own."""
        table = next(
            (
                one
                for one in (self._named("rocpd_info_category"), self._named("rocpd_string"))
                if self._database.has(one)
            ),
            "",
        )
        column = "name" if self._database.has(table, "name") else "string"
        rows = self._tables.rows(table, ("id", column), f"\"{column}\" LIKE '%{_MARKER}%'")
        return [number for some in rows for number, _ in some if type(number) is int]

    def _messages(self, events: Int64s) -> tuple[dict[int, str], int]:
        """The text of each of these events, and of how many it is packed."""
        texts: dict[int, str] = {}
        unread = 0
        if not len(events):
            return texts, unread
        wanted, table = set(events.tolist()), self._named("rocpd_event")
        marking = ", ".join(map(str, self._marking()))
        for rows in self._tables.rows(table, ("id", "extdata"), f'"category_id" IN ({marking})'):
            for number, data in rows:
                if number not in wanted:
                    continue
                unread += isinstance(data, bytes) and len(data) > 0
                said = _message(data)
                if said:
                    texts[number] = said
            self._tables.check_memory(table, len(texts) * _MARK_BYTES + sum(map(len, texts.values())))
        return texts, unread

    def _events(self, wanted: Int64s) -> tuple[Int64s, Int64s]:
        """The ids of the calls that made these events, and of those around them."""
        events = self._all_events()
        own, ancestor = (looked_up_by_id(wanted, events["id"], events[key]) for key in ("stack_id", "parent_stack_id"))
        return np.where(own > 0, own, MISSING), np.where((ancestor > 0) & (ancestor != own), ancestor, MISSING)

    def _categories(self, wanted: Int64s) -> Int64s:
        events = self._all_events()
        return looked_up_by_id(wanted, events["id"], events["category_id"])

    def _all_events(self) -> dict[str, Int64s]:
        if self._every_event is None:
            columns = ("stack_id", "parent_stack_id", "category_id")
            self._every_event = self._tables.columns(self._named("rocpd_event"), ("id",), columns)
        return self._every_event

    def _placed(self, table: str, needed: Sequence[str], others: Sequence[str]) -> dict[str, Int64s]:
        """Columns of a table with start and end, and where it was; of this process. Raises DamagedTrace, TooLarge."""
        name, tables = self._named(table), self._tables
        has_times = not self._database.has(name) or self._database.has(name, "start", "end")
        where = ("start", "end") if has_times else ("start_id", "end_id")
        columns = tables.columns(name, (*where, *needed), (*others, *_OF_TRACK, "track_id"))
        if not has_times:
            times = self._timestamps()
            said = list(zip(columns["start_id"].tolist(), columns["end_id"].tolist(), strict=True))
            for key in ("start", "end"):
                columns[key] = looked_up_by_id(columns.pop(f"{key}_id"), times["id"], times["value"])
            columns = tables.sound(name, ("start", "end"), columns, said)
        tracks = self._track()
        for key in _OF_TRACK:
            on_track = looked_up_by_id(columns["track_id"], tracks["id"], tracks[key])
            columns[key] = np.where(columns[key] == MISSING, on_track, columns[key])
        own = (columns["pid"] == self._id) | self._is_only
        return columns if own.all() else {key: values[own] for key, values in columns.items()}

    def _track(self) -> dict[str, Int64s]:
        if self._tracks is None:
            self._tracks = self._tables.columns(self._named("rocpd_track"), ("id",), _OF_TRACK)
        return self._tracks

    def _timestamps(self) -> dict[str, Int64s]:
        if self._times is None:
            self._times = self._tables.columns(self._named("rocpd_timestamp"), ("id", "value"))
        return self._times


def _as_places(numbers: Int64s, texts: Mapping[int, str]) -> tuple[Int64s, list[str]]:
    """The place of each number's text in a list of the texts."""
    distinct, which = np.unique(numbers, return_inverse=True)
    return which.reshape(-1).astype(np.int64), [texts.get(number, "unknown") for number in distinct.tolist()]


def _blocks(columns: Mapping[str, Int64s]) -> Int64s:
    """Blocks of each kernel, from the threads of the whole and of a block along three axes; MISSING if not known."""
    blocks = np.ones(len(columns["start"]), dtype=np.int64)
    known = np.ones(len(blocks), dtype=bool)
    for axis in "xyz":
        threads, of_block = columns[f"grid_size_{axis}"], columns[f"workgroup_size_{axis}"]
        known &= (of_block > 0) & (threads >= of_block) & (threads < 2**31)
        along = np.where(known, threads, 1) // np.where(known, of_block, 1)
        known &= blocks < 2**31
        blocks = np.where(known, blocks * along, MISSING)
    return np.where(known, blocks, MISSING)


def _units(data: object) -> int | None:
    if isinstance(data, str):
        with suppress(msgspec.MsgspecError, RecursionError):
            units = msgspec.json.decode(data, type=_AgentData).cu_count
            return units if units is not None and 0 < units < _MOST_AGENTS else None
    return None


def _message(data: object) -> str | None:
    if isinstance(data, str):
        with suppress(msgspec.MsgspecError, RecursionError):
            return msgspec.json.decode(data, type=_Message).message
    return None


def _unless_function(name: str) -> str | None:
    """The name of a region, unless it is that of a function of ROCTx."""
    return None if name.startswith("roctx") else name


def _number(value: object, otherwise: int) -> int:
    return value if type(value) is int else otherwise
