"""A table of operations of pipelined training -> Kineto traces of its ranks: `python tests/operation_table.py CSV OUT`.

The table has a row for each operation: dp_rank, stage, rank, step, optype, start_us, dur_us (within its step), as
StragglerAnalysis has it. Steps follow each other in the traces. Launches run ahead, and what an operation depends on is
told by cudaEventRecord and cudaStreamWaitEvent; at the end of a step the CPU waits for the device.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

_COMPUTE, _SHARDS = 7, 20
_STREAMS = {"forward-send": 21, "forward-recv": 22, "backward-send": 23, "backward-recv": 24}
_SHARDED = {"params-all-gather": "allgather", "grads-reduce-scatter": "reduce_scatter"}
_LAST = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce")
_BASE_US = 1_700_000_000_000_000
Row = dict[str, Any]


class _Trace:
    """The trace of one rank while it is written. Times in us."""

    def __init__(self, rank: int) -> None:
        self.rank, self.events, self.cpu_us, self.correlation = rank, [], 0.0, 0

    def call(self, name: str, dur: float = 0.2, correlation: int | None = None) -> None:
        args = {} if correlation is None else {"correlation": correlation}
        self._event("cuda_runtime", name, (self.cpu_us, dur), 1, args)
        self.cpu_us += dur + 0.1

    def launch(self, row: Row, stream: int, args: Row | None = None, *, record: bool = False, waits: int = 0) -> None:
        """An operation on a stream that first waits for so many events, and leaves one behind."""
        for _ in range(waits):
            self.call("cudaStreamWaitEvent")
        self.correlation += 1
        self.call("cudaLaunchKernel", correlation=self.correlation)
        name = f"ncclDevKernel_SendRecv({row['optype']})" if args else row["optype"]
        told = {"device": 0, "stream": stream, "correlation": self.correlation, **(args or {})}
        self._event("kernel", name, (row["at_us"], row["dur_us"]), stream, told)
        if record:
            self.call("cudaEventRecord")

    def step(self, number: int, begin: float) -> None:
        self._event("user_annotation", f"ProfilerStep#{number}", (begin, self.cpu_us - begin), 1, {})

    def _event(self, category: str, name: str, times: tuple[float, float], thread: int, args: Row) -> None:
        start, dur = round(_BASE_US + times[0], 3), round(times[1], 3)
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
                            "dur": dur, "args": args})  # fmt: skip

    def write(self, path: Path, world_size: int) -> None:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world_size},
            "traceEvents": self.events,
        }
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


class _Groups:
    """Arguments of calls, numbered within their process groups."""

    def __init__(self) -> None:
        self._seq: dict[tuple[int, str], int] = defaultdict(int)

    def args(self, rank: int, name: str, op: str, ranks: list[int]) -> Row:
        seq = self._seq[rank, name] = self._seq[rank, name] + 1
        return {"Collective name": op, "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 1024,
                "Group size": len(ranks), "Process Group Name": name, "Process Group Ranks": str(ranks),
                "Seq": seq}  # fmt: skip


def write_traces(table: pd.DataFrame, out: Path) -> None:
    """Traces of all ranks. Steps in the order of their numbers, one right after the other."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = {
        (dp, stage): int(rank) for dp, stage, rank in table[["dp_rank", "stage", "rank"]].drop_duplicates().to_numpy()
    }
    traces, groups, begin = {rank: _Trace(rank) for rank in ranks.values()}, _Groups(), 0.0
    for number, of_step in table.groupby("step"):
        for place, rank in ranks.items():
            own = of_step[of_step["rank"] == rank].assign(at_us=lambda rows, begin=begin: rows["start_us"] + begin)
            trace = traces[rank]
            trace.cpu_us = max(trace.cpu_us, begin)
            began = trace.cpu_us
            _one_step(trace, own.sort_values("start_us").to_dict("records"), place, ranks, groups)
            done = float((own["at_us"] + own["dur_us"]).max())
            trace.call("cudaDeviceSynchronize", max(done - trace.cpu_us, 0) + 2)
            trace.step(int(number), began)
        begin += float((of_step["start_us"] + of_step["dur_us"]).max()) + 10
    for rank, trace in traces.items():
        trace.write(out / f"rank{rank}.pt.trace.json.gz", len(ranks))


def _one_step(
    trace: _Trace, rows: list[Row], place: tuple[int, int], ranks: dict[tuple[int, int], int], groups: _Groups
) -> None:
    dp, stage = place
    stages = max(s for _, s in ranks) + 1
    of_type: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_type[row["optype"]].append(row)
    whole = sorted(ranks.values())
    shards = sorted(rank for (_, s), rank in ranks.items() if s == stage)
    ends = sorted({ranks[dp, 0], ranks[dp, stages - 1]})

    def moved(kind: str, index: int) -> tuple[Row, int, Row] | None:
        other = stage + (1 if kind in ("forward-send", "backward-recv") else -1)
        if not 0 <= other < stages or index >= len(of_type[kind]):
            return None
        way, end = kind.split("-")
        pair = [ranks[dp, min(stage, other)], ranks[dp, max(stage, other)]]
        return of_type[kind][index], _STREAMS[kind], groups.args(trace.rank, f"{way} {pair}", end, pair)

    def sharded(kind: str) -> tuple[Row, int, Row]:
        return of_type[kind][0], _SHARDS, groups.args(trace.rank, f"dp {shards}", _SHARDED[kind], shards)

    trace.launch(*sharded("params-all-gather"), record=True)
    counts: dict[str, int] = defaultdict(int)
    for number, row in enumerate(row for row in rows if row["optype"] in ("forward-compute", "backward-compute")):
        way = row["optype"].partition("-")[0]
        index, counts[way] = counts[way], counts[way] + 1
        received, sent = moved(f"{way}-recv", index), moved(f"{way}-send", index)
        if received:
            trace.launch(*received, waits=int(number > 0), record=True)
        trace.launch(row, _COMPUTE, waits=int(received is not None) + int(number == 0), record=True)
        if sent:
            trace.launch(*sent, waits=1)
    for kind in _LAST:
        for row in of_type[kind]:
            is_shared = kind.startswith("embedding") and len(ends) > 1
            args = groups.args(trace.rank, f"ends {ends}", "allreduce", ends) if is_shared else None
            trace.launch(row, _COMPUTE, args)
    trace.call("cudaEventRecord")
    trace.launch(*sharded("grads-reduce-scatter"), waits=1, record=True)
    [clip] = of_type["optimizer-clip-main-grad"]
    trace.launch(clip, _COMPUTE, groups.args(trace.rank, "world", "allreduce", whole), waits=1)
    trace.launch(of_type["optimizer"][0], _COMPUTE)


def main(arguments: list[str]) -> Iterator[str]:
    table, out = arguments
    write_traces(pd.read_csv(table), Path(out))
    yield f"{len(list(Path(out).iterdir()))} traces in {out}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(sys.argv[1:])) + "\n")
