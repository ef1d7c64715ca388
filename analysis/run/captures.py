"""Traces of the capture of CUDA graphs, which engines write beside those of a run: what each graph's kernels are.

A replayed graph is one call, so nothing says which operator a kernel of it belongs to. vLLM and SGLang can trace the
capture instead, where each operator still launches its own: vLLM into `capture_traces/graph_capture_rank_0.*`, with an
annotation `capture_8_FULL` around each size of batch, SGLang into `capture_traces/bs_8_rank0.json.gz` and
`graph_capture_profile/cuda_graph_capture-...-TP-0.json.gz`. Nothing runs on a device then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..core import markers
from ..core.schema import Row, bare
from ..core.tables.device_time import CAPTURED_CALLS
from ..errors import AnalysisError
from ..formats.kineto.launched_names import launched_names
from ..reading.pool import Reading
from ..reading.trace_input import TraceInput
from ..recording.options import ReadOptions
from .event_tables import EVENT_SCHEMAS, EventTables
from .file_tables import TraceFile, of_rank, trace_file

FOLDERS = ("capture_traces", "graph_capture_profile")
_RANK = re.compile(r"(?:rank[-_]?|TP-)([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_SIZE = re.compile(r"(?:\Abs[-_]|\Acapture[-_])([0-9]{1,9})(?![0-9])")
"""The size of the batch, at the beginning of a file's name or of an annotation."""
_BEGIN, _END, _ADDS = map(re.compile, (markers.BEGINS_CAPTURE, markers.ENDS_CAPTURE, markers.ADDS_TO_GRAPH))

_OF_CPUS = ("cpu_operators", "operator_calls", "annotations", "modules")


class GraphCaptures(NamedTuple):
    """What was captured: `calls` as CAPTURED_CALLS has them, and what CPUs did then, by rank; a file for a cycle."""

    calls: pd.DataFrame
    tables: EventTables

    def of_rank(self, rank: int) -> GraphCaptures:
        """Those of one rank."""
        tables = {name: getattr(self.tables, name) for name in _OF_CPUS}
        own = {name: table[table["rank"] == rank] for name, table in tables.items() if len(table)}
        return GraphCaptures(self.calls[self.calls["rank"] == rank], EventTables(**own))


def captures_beside(files: Mapping[int, Sequence[Path]]) -> GraphCaptures:
    """The captures in folders of these names beside the files of a run, as far as they can be read.

    A file belongs to the rank in its name, else to the only rank there is.
    """
    rows: list[Row] = []
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in _OF_CPUS}
    for number, (rank, path) in enumerate(_found(files)):
        try:
            with Reading([TraceInput(path)], ReadOptions(details=True, keep_going=True, workers=1)) as reading:
                for content in reading.results(None):
                    if not isinstance(content, AnalysisError):
                        file = trace_file(path, content)
                        rows += _calls(file, rank, number)
                        of_capture = (
                            file.annotations["name"]
                            .str.match(rf"{_SIZE.pattern}|{markers.PROFILER_STEP}")
                            .fillna(False)
                        )
                        named = file.annotations[~of_capture.astype(bool)]
                        own = (file.cpu_ops, file.operator_calls, named, file.modules)
                        for name, table in zip(_OF_CPUS, own, strict=True):
                            tables[name].append(of_rank(table, rank, number))
        except (AnalysisError, OSError):  # what cannot be read tells nothing of a graph
            continue
    concatenated: dict[str, Any] = {name: EVENT_SCHEMAS[name].concat(parts) for name, parts in tables.items()}
    return GraphCaptures(CAPTURED_CALLS.frame(rows), EventTables(**concatenated))


def _found(files: Mapping[int, Sequence[Path]]) -> Iterator[tuple[int, Path]]:
    for place in sorted({path.parent for own in files.values() for path in own}):
        for name in FOLDERS:
            try:
                inside = sorted((place / name).iterdir()) if (place / name).is_dir() else []
            except OSError:
                continue
            for path in inside:
                match = _RANK.search(path.name)
                rank = int(match[1]) if match else next(iter(files)) if len(files) == 1 else -1
                if rank in files and re.search(r"\.json(?:\.gz)?\Z", path.name):
                    yield rank, path


def _calls(file: TraceFile, rank: int, number: int) -> Iterator[Row]:
    """Yield the calls that added something to a graph; in a file that tells no begin of a capture, all of a thread."""
    calls = file.runtime_calls.sort_values("start_ns", kind="stable")
    names = launched_names(file.path)
    ran = file.activities[["correlation", "name"]].dropna()
    names |= dict(zip(ran["correlation"].tolist(), ran["name"].tolist(), strict=True))
    is_delimited = bool(bare(calls["name"]).size) and calls["name"].str.match(_BEGIN).any()
    sizes = [
        (int(match[1]), row["start_ns"], row["start_ns"] + row["dur_ns"])
        for row in file.annotation_rows
        if (match := _SIZE.match(row["name"]))
    ]
    in_name = _SIZE.match(file.path.name)
    graph = -1
    for thread, of_thread in calls.groupby("thread", sort=True):
        open_graph, seen = not is_delimited, set()
        graph += not is_delimited
        for name, correlation, start_ns in zip(
            *(of_thread[column].tolist() for column in ("name", "correlation", "start_ns")), strict=True
        ):
            if _BEGIN.match(name):
                open_graph, graph = True, graph + 1
            elif _END.match(name):
                open_graph = not is_delimited
            elif open_graph and correlation not in seen and (adds := _ADDS.match(name)):
                seen.add(correlation)
                around = [size for size, begin, end in sizes if begin <= start_ns < end]
                yield {
                    "rank": rank,
                    "cycle": number,
                    "graph": graph,
                    "is_delimited": is_delimited,
                    "size": around[-1] if around else int(in_name[1]) if in_name else None,
                    "thread": thread,
                    "start_ns": start_ns,
                    "kernel": "copy" if adds["copy"] else "fill" if adds["fill"] else names.get(correlation),
                }
