"""What launched the kernels of a CUDA graph, by the trace of its capture: order and names say which is which.

One call replays a graph, so the trace tells no operator of its kernels. When the graph was captured, a call of its own
added each of them. Those calls are known by what they add: what ran, in this order, stream by stream.
Docs: docs/design/0049-kernels-of-graphs.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ....common.wording import counted
from ...core import markers
from ...core.arrays import Ints
from ...core.kinds import COMM, COMPUTE
from ...core.schema import bare, grouped, records
from ...core.tables.communication import ANNOTATIONS
from ...core.tables.events import CPU_OPERATORS, LAUNCHES, MODULES, OPERATOR_CALLS

_FIRST = -10
"""The first number of calls and threads that stand for those of a capture; traces have none that low."""
_TABLES = {
    "cpu_operators": CPU_OPERATORS,
    "operator_calls": OPERATOR_CALLS,
    "annotations": ANNOTATIONS,
    "modules": MODULES,
}
_NO_FIT = "operators are not known, as no capture beside the traces adds the kernels that ran, in their order"
_SEVERAL = "operators are not known, as several captures add the kernels that ran, and nothing tells which was replayed"
_UNNAMED = "operators are those of a capture of as many calls, some of which do not name their kernels"


class Replays(NamedTuple):
    """How many graphs each rank replayed, where their capture was traced, and of how many what is not known."""

    of_ranks: dict[int, int]
    doubts: dict[tuple[int, str], int]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not known, and why."""
        total, by_reason = sum(self.of_ranks.values()), Counter[str]()
        for (_, why), number in self.doubts.items():
            by_reason[why] += number
        reasons = [why for why in by_reason if why != _UNNAMED] + [_UNNAMED] * bool(by_reason[_UNNAMED])
        return tuple(f"{counted(by_reason[why], 'replayed graph')} of {total:,}: {why}" for why in reasons)


class Captured(NamedTuple):
    """What launched the kernels of graphs, as if each replay were a capture of its own, on threads of its own.

    `correlation` is that of each activity, by its index, with which `launches` has its call; `tables` are what CPUs did
    around these calls. No thread or correlation of them is one of the trace's.
    """

    correlation: pd.Series[int]
    launches: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    replays: Replays

    def launched(self, activities: pd.DataFrame) -> pd.DataFrame:
        """The activities, those of graphs launched by the calls that captured them."""
        if not len(self.correlation):
            return activities
        captured = self.correlation.reindex(activities.index).astype("Int64")
        return activities.assign(correlation=captured.fillna(activities["correlation"]))

    def beside(self, name: str, table: pd.DataFrame) -> pd.DataFrame:
        """The run's table of that name, with what CPUs did while they captured."""
        own = self.launches if name == "launches" else self.tables[name]
        return pd.concat([table, own], ignore_index=True) if len(own) else table


class _Graph(NamedTuple):
    """The calls that captured a graph, in order: thread, start, and the kernel's name, None if it is not known."""

    file: int
    size: int | None
    is_delimited: bool
    thread: Ints
    start: Ints
    kernels: list[str | None]

    def places(self, names: Sequence[str], streams: Sequence[int]) -> list[int] | None:
        """The place of the call that added each activity; these are in order of start. None if they do not agree."""
        if not self.is_delimited:
            return self._part(names)
        if len(names) != len(self.kernels):
            return None
        if len(set(streams)) == 1:
            both = zip(names, self.kernels, strict=True)
            agree = all(name == kernel or (kernel is None and name not in ("copy", "fill")) for name, kernel in both)
            return list(range(len(names))) if agree else None
        waiting: dict[int, list[int]] = defaultdict(list)
        for place in reversed(range(len(names))):
            waiting[streams[place]].append(place)
        result = [0] * len(names)
        for call, kernel in enumerate(self.kernels):
            next_ones = [own for own in waiting.values() if own and names[own[-1]] == kernel]
            if len(next_ones) != 1:
                return None
            result[next_ones[0].pop()] = call
        return result

    def _part(self, names: Sequence[str]) -> list[int] | None:
        """The same where other calls may be before or behind, if the names are there once."""
        found = [
            first
            for first in range(len(self.kernels) - len(names) + 1)
            if self.kernels[first] == names[0] and self.kernels[first : first + len(names)] == list(names)
        ]
        return [found[0] + nth for nth in range(len(names))] if len(found) == 1 else None


def captured(
    *,
    activities: pd.DataFrame,
    runtime_calls: pd.DataFrame,
    step_marks: pd.DataFrame,
    captured_calls: pd.DataFrame,
    tables: dict[str, pd.DataFrame],
) -> Captured:
    """Find what launched the kernels of graphs, by `captured_calls` and what CPUs did meanwhile, `tables` by name."""
    graphs: dict[int, list[_Graph]] = defaultdict(list)
    for (rank, file, _), calls in grouped(captured_calls, ["rank", "cycle", "graph"]):
        size = calls["size"].iloc[0]
        kernels = [None if pd.isna(name) else str(name) for name in calls["kernel"]]
        thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
        delimited = bool(calls["is_delimited"].iloc[0])
        graphs[rank].append(_Graph(file, None if pd.isna(size) else int(size), delimited, thread, start, kernels))
    if not graphs:
        return _Copies({}).result(Replays({}, {}))
    sizes = {(row["rank"], row["step"]): row["tokens"] or row["requests"] for row in records(step_marks)}
    copies, total, doubts = _Copies(tables), Counter[int](), Counter[tuple[int, str]]()
    fitting: dict[tuple[int, tuple[str, ...], tuple[int, ...]], list[_Graph]] = {}
    for rank, cycle, step, replays in _replays(activities, runtime_calls, graphs):
        for nth, replay in enumerate(replays):
            total[rank] += 1
            names, streams = _ran(replay)
            fits = fitting.get((rank, names, streams))
            if fits is None:
                fits = [graph for graph in graphs[rank] if graph.places(names, streams) is not None]
                fitting[rank, names, streams] = fits
            chosen = _chosen(fits, graphs[rank], sizes.get((rank, step)), nth, len(replays))
            places = None if chosen is None else chosen.places(names, streams)
            if chosen is None or places is None:
                doubts[rank, _SEVERAL if fits else _NO_FIT] += 1
                continue
            doubts[rank, _UNNAMED] += None in chosen.kernels
            copies.add(replay, rank, cycle, chosen, places)
    return copies.result(Replays(dict(total), dict(doubts)))


def _replays(
    activities: pd.DataFrame, runtime_calls: pd.DataFrame, graphs: dict[int, list[_Graph]]
) -> Iterator[tuple[int, int, int | None, list[pd.DataFrame]]]:
    """Yield rank, cycle and step, and the activities of each replay in it, in order of start."""
    calls = runtime_calls[runtime_calls["name"].str.contains(markers.REPLAYS_GRAPH).fillna(False).astype(bool)]
    for (rank, cycle), own in grouped(calls, ["rank", "cycle"]):
        if rank not in graphs:
            continue
        of_file = (bare(activities["rank"]) == rank) & (bare(activities["cycle"]) == cycle)
        ran = activities[of_file & activities["correlation"].isin(own["correlation"]).to_numpy(dtype=bool)]
        ran = ran.sort_values("start_ns", kind="stable")
        of_steps: dict[int | None, list[pd.DataFrame]] = {}
        for _, replay in ran.groupby("correlation", sort=False):
            step = replay["step"].iloc[0]
            of_steps.setdefault(None if pd.isna(step) else int(step), []).append(replay)
        for number, replays in of_steps.items():
            yield rank, cycle, number, replays


def _ran(replay: pd.DataFrame) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Name and stream of each activity; of copies and fills, which of these it is."""
    kinds, names = bare(replay["kind"]).tolist(), bare(replay["name"]).tolist()
    labels = (
        name if kind in (COMPUTE, COMM) else "fill" if name.startswith(markers.FILL) else "copy"
        for kind, name in zip(kinds, names, strict=True)
    )
    return tuple(labels), tuple(bare(replay["stream"]).tolist())


def _chosen(fits: Sequence[_Graph], known: Sequence[_Graph], size: int | None, nth: int, replays: int) -> _Graph | None:
    """The graph that was replayed as the `nth` of so many in a step that serves as many tokens as `size` says.

    Engines replay the graph of the smallest batch that is large enough. A step may replay several, one for each part of
    the model: in the order in which they were captured.
    """
    enough = [graph.size for graph in known if size is not None and graph.size is not None and graph.size >= size]
    of_size = [graph for graph in fits if enough and graph.size == min(enough)]
    if len(fits) == 1 and (None not in fits[0].kernels or not enough or of_size):
        return fits[0]
    if len(of_size) == 1:
        return of_size[0]
    parts: dict[tuple[int, int | None], list[_Graph]] = defaultdict(list)
    for graph in known:
        parts[graph.file, graph.size].append(graph)
    among = {id(graph) for graph in of_size or fits}
    in_order = [own[nth] for own in parts.values() if len(own) == replays > 1 and id(own[nth]) in among]
    return in_order[0] if len(in_order) == 1 else None


class _Copies:
    """What CPUs did around the calls that captured graphs, once for each replay."""

    def __init__(self, tables: dict[str, pd.DataFrame]) -> None:
        self._of_file = {name: dict(grouped(table, ["rank", "cycle"])) for name, table in tables.items()}
        self._around: dict[int, dict[str, pd.DataFrame]] = {}
        self._parts: dict[str, list[pd.DataFrame]] = {name: [] for name in _TABLES}
        self._launches: list[pd.DataFrame] = []
        self._correlations: list[pd.Series[int]] = []
        self._next_thread = self._next_call = _FIRST

    def add(self, replay: pd.DataFrame, rank: int, cycle: int, graph: _Graph, places: list[int]) -> None:
        """Add a replay of a graph: the activity at each place was added by the call at that place."""
        threads = np.unique(graph.thread)
        own = self._next_thread - np.arange(len(threads))
        ids = self._next_call - np.arange(len(replay))
        self._next_thread, self._next_call = int(own[-1]) - 1, int(ids[-1]) - 1
        self._correlations.append(pd.Series(ids, index=replay.index))
        self._launches.append(pd.DataFrame({
            "rank": rank,
            "cycle": cycle,
            "correlation": ids,
            "thread": own[np.searchsorted(threads, graph.thread[places])],
            "start_ns": graph.start[places],
            "external_id": pd.NA,
        }))  # fmt: skip
        for name, table in self._ranges_around(rank, graph, threads).items():
            thread = own[np.searchsorted(threads, table["thread"].to_numpy())]
            self._parts[name].append(table.assign(rank=rank, cycle=cycle, thread=thread))

    def _ranges_around(self, rank: int, graph: _Graph, threads: Ints) -> dict[str, pd.DataFrame]:
        if id(graph) not in self._around:
            first, last = int(graph.start.min()), int(graph.start.max())
            self._around[id(graph)] = {
                name: table[
                    np.isin(table["thread"].to_numpy(), threads)
                    & (table["start_ns"].to_numpy() <= last)
                    & ((table["start_ns"] + table["dur_ns"]).to_numpy() >= first)
                ]
                for name, files in self._of_file.items()
                if (table := files.get((rank, graph.file))) is not None
            }
        return self._around[id(graph)]

    def result(self, replays: Replays) -> Captured:
        """All that was added, as tables."""
        none = pd.Series(dtype="int64")
        return Captured(
            pd.concat(self._correlations) if self._correlations else none,
            LAUNCHES.concat([LAUNCHES.conform(part) for part in self._launches]),
            {name: schema.concat(self._parts[name]) for name, schema in _TABLES.items()},
            replays,
        )
