"""Activities of devices: kernels, copies, fills, and CUDA graphs that were traced as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ....common.wording import counted
from ...core.copy_names import BETWEEN_GPUS, ON_DEVICES, copy_name, direction_said, fill_name, memory_said
from ...core.kinds import COMM, COMPUTE, kernel_kind, memory_kind
from ...core.tables.events import EVENT_SORTS
from ...recording.arrays import Int64s
from ...recording.database_columns import stacked
from ...recording.values import MISSING
from .tables import TEXT_TABLE, ExportTables

KERNEL_TABLE, COPY_TABLE, FILL_TABLE = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NAME_COLUMNS = ("demangledName", "shortName", "mangledName")
"""Columns that name a kernel, the one that Kineto writes first."""
_PLACE = ("start", "end", "deviceId", "streamId")
_DECLARED = {one.name: one.nsight for one in EVENT_SORTS["activities"].held if one.nsight}
_OTHERS = tuple(name for name in _DECLARED.values() if name not in _PLACE)
_GRID = ("gridX", "gridY", "gridZ")
_OF_MANAGED = {11: 1, 12: 2, 13: 8}
"""Directions of managed memory, which Nsight Systems numbers behind those of CUPTI."""


@dataclass
class Names:
    """Distinct names of activities with their kind."""

    comm_names: tuple[str, ...]
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def add(self, name: str, kind: str) -> int:
        """Add a name and return its number."""
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def kernel(self, name: str) -> int:
        """The number of a kernel's name."""
        return self.add(name, kernel_kind(name, self.comm_names))


@dataclass(frozen=True)
class DeviceColumns:
    """Activities as columns, times in ns as in the export.

    They have their names in recordings, but for `start` and `end`, and the `blocks` of kernels, MISSING for the rest.
    `peer_copies` are correlations and sizes of copies between GPUs. `notes` say what is not told apart.
    """

    columns: dict[str, Int64s]
    names: Names
    peer_copies: list[tuple[int, int]]
    notes: list[str]

    @property
    def is_comm(self) -> np.typing.NDArray[np.bool_]:
        """Whether each activity communicates."""
        of_name = np.array([kind == COMM for kind in self.names.kinds], dtype=bool)
        return of_name[self.columns["name"]] if len(of_name) else np.zeros(len(self.columns["name"]), dtype=bool)


def device_columns(tables: ExportTables, comm_names: tuple[str, ...]) -> DeviceColumns:
    """Activities of a process's devices, by start. Raises DamagedTrace, TooLarge."""
    names = Names(comm_names)
    copies, peer_copies = _copies(tables, names)
    graphs = _graphs(tables, names)
    parts = [_kernels(tables, names), copies, _fills(tables, names), graphs]
    columns = stacked(parts)
    letters = sum(map(len, names.names))
    tables.keep("of devices", activities=len(columns["start"]), names=len(names.names), letters=letters)
    order = np.argsort(columns["start"], kind="stable")
    return DeviceColumns(
        {name: values[order] for name, values in columns.items()}, names, peer_copies, list(_on_graphs(graphs))
    )


def _placed(columns: dict[str, Int64s], name: Int64s, blocks: Int64s | None = None) -> dict[str, Int64s]:
    declared = {own: columns[written] for own, written in _DECLARED.items()}
    times = {"start": columns["start"], "end": columns["end"]}
    return {**times, **declared, "name": name, "blocks": np.full(len(name), MISSING) if blocks is None else blocks}


def _kernels(tables: ExportTables, names: Names) -> dict[str, Int64s]:
    named = [column for column in NAME_COLUMNS if tables.database.has(KERNEL_TABLE, column)]
    columns = tables.owned(KERNEL_TABLE, _PLACE, (*_OTHERS, *NAME_COLUMNS, *_GRID), owner="globalPid")
    text = np.full(len(columns["start"]), MISSING)
    for column in reversed(named):
        text = np.where(columns[column] == MISSING, text, columns[column])
    distinct, which = np.unique(text, return_inverse=True)
    texts = tables.texts(TEXT_TABLE, distinct.tolist())
    lacking = [number for number in distinct.tolist() if number not in texts]
    if lacking:
        tables.note_invalid(f"{counted(len(lacking), 'name')} of kernels are not in its table StringIds")
    numbers = np.array([names.kernel(texts.get(number, "unknown")) for number in distinct.tolist()], dtype=np.int64)
    name = numbers[which.reshape(-1)] if len(numbers) else text
    sizes = [columns[column] for column in _GRID]
    known = np.all([(size > 0) & (size < 2**31) for size in sizes], axis=0)
    blocks = np.where(known, 1, MISSING)
    for size in sizes:
        blocks = np.where(known & (np.abs(blocks) < 2**31), blocks * np.where(known, size, 1), MISSING)
    return _placed(columns, name, blocks)


def _copies(tables: ExportTables, names: Names) -> tuple[dict[str, Int64s], list[tuple[int, int]]]:
    others = (*_OTHERS, "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    columns = tables.owned(COPY_TABLE, _PLACE, others, owner="globalPid")
    way, source, target = (columns[column] for column in ("copyKind", "srcDeviceId", "dstDeviceId"))
    elsewhere = (way == ON_DEVICES) & (source != MISSING) & (target != MISSING) & (source != target)
    way = np.where(elsewhere, BETWEEN_GPUS, way)
    kinds = np.column_stack((way, columns["srcKind"], columns["dstKind"]))
    distinct, which = np.unique(kinds, axis=0, return_inverse=True)
    numbers = []
    for number, begin, end in distinct.tolist():
        direction = direction_said(_OF_MANAGED.get(number, number))
        name = copy_name(direction, _memory(begin), _memory(end))
        numbers.append(names.add(name, memory_kind(name)))
    between = (way == BETWEEN_GPUS) & (columns["correlationId"] != MISSING) & (columns["bytes"] >= 0)
    peer_copies = list(zip(columns["correlationId"][between].tolist(), columns["bytes"][between].tolist(), strict=True))
    of_copy = np.array(numbers, dtype=np.int64)[which.reshape(-1)]
    return _placed(columns, of_copy), peer_copies


def _memory(number: int) -> str:
    """The kind of memory; Nsight Systems counts from 0 what CUPTI counts from 1."""
    return memory_said(number + 1)


def _fills(tables: ExportTables, names: Names) -> dict[str, Int64s]:
    columns = tables.owned(FILL_TABLE, _PLACE, (*_OTHERS, "memKind"), owner="globalPid")
    distinct, which = np.unique(columns["memKind"], return_inverse=True)
    texts = (fill_name(_memory(kind)) for kind in distinct.tolist())
    numbers = np.array([names.add(name, memory_kind(name)) for name in texts], dtype=np.int64)
    return _placed(columns, numbers[which.reshape(-1)])


def _graphs(tables: ExportTables, names: Names) -> dict[str, Int64s]:
    """Launches of CUDA graphs that were traced as a whole, whose kernels are not known."""
    columns = tables.owned(GRAPH_TABLE, _PLACE, _OTHERS, owner="globalPid")
    count = len(columns["start"])
    return _placed(columns, np.full(count, names.add("CUDA graph", COMPUTE) if count else 0))


def _on_graphs(graphs: dict[str, Int64s]) -> Iterator[str]:
    count = len(graphs["start"])
    if count:
        yield (
            f"{counted(count, 'run')} of CUDA graphs traced as a whole: all of it counts as compute, also what "
            "communicates; capture with --cuda-graph-trace=node to tell them apart"
        )
