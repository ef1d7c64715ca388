"""Operations of pipelined training -> Kineto traces of its ranks: `python tests/support/operation_table.py CSV OUT`.

The table has a row for each operation: dp_rank, stage, rank, step, optype, start_us, dur_us (within its step), as
StragglerAnalysis has it. Steps follow each other in the traces. Launches run ahead, and what an operation depends on is
told by cudaEventRecord and cudaStreamWaitEvent; at the end of a step the CPU waits for the device.

Times of such tables are inexact by up to 0.1 ms, so that operations seem to begin before what they depend on has ended.
A device knows better: in the traces they begin when it has, and end as in the table. A table may have one rank of each
tensor-parallel group only, 0, 4, 8 and so on; the traces of the others are missing then.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import gcd
from pathlib import Path
from typing import Any, cast

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
        self.rank, self.cpu_us, self.correlation = rank, 0.0, 0
        self.events: list[dict[str, Any]] = []
        self._free_us: dict[int, float] = {}

    def call(self, name: str, dur: float = 0.2, correlation: int | None = None) -> None:
        args = {} if correlation is None else {"correlation": correlation}
        self._event("cuda_runtime", name, (self.cpu_us, dur), 1, args)
        self.cpu_us += dur + 0.1

    def launch(self, row: Row, stream: int, args: Row | None = None, *, after: Sequence[Row] = ()) -> Row:
        """An operation on a stream that first waits for others; returned with its times, which others may wait for."""
        for _ in after:
            self.call("cudaStreamWaitEvent")
        self.correlation += 1
        self.call("cudaLaunchKernel", correlation=self.correlation)
        start = max(row["at_us"], self._free_us.get(stream, 0.0), *(each["end_us"] for each in after))
        end = max(row["at_us"] + row["dur_us"], start)
        self._free_us[stream] = end
        name = f"ncclDevKernel_SendRecv({row['optype']})" if args else row["optype"]
        told = {"device": 0, "stream": stream, "correlation": self.correlation, **(args or {})}
        self._event("kernel", name, (start, end - start), stream, told)
        return row | {"end_us": end}

    def record(self, row: Row) -> Row:
        """Leave an event behind what was launched last."""
        self.call("cudaEventRecord")
        return row

    def step(self, number: int, begin: float) -> None:
        self._event("user_annotation", f"ProfilerStep#{number}", (begin, self.cpu_us - begin), 1, {})

    def _event(self, category: str, name: str, times: tuple[float, float], thread: int, args: Row) -> None:
        start, dur = round(_BASE_US + times[0], 3), round(times[1], 3)
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
                            "dur": dur, "args": args})  # fmt: skip

    @property
    def ends_us(self) -> float:
        """When all of its streams are free."""
        return max(self._free_us.values(), default=0.0)

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
            own = of_step[of_step["rank"] == rank]
            own = own.assign(at_us=own["start_us"] + begin)
            trace = traces[rank]
            trace.cpu_us = max(trace.cpu_us, begin)
            began = trace.cpu_us
            _one_step(
                trace,
                cast("list[dict[str, Any]]", own.sort_values("start_us").to_dict("records")),
                place,
                ranks,
                groups,
            )
            trace.call("cudaDeviceSynchronize", max(trace.ends_us - trace.cpu_us, 0) + 2)
            trace.step(int(cast("int", number)), began)
        begin += float((of_step["start_us"] + of_step["dur_us"]).max()) + 10
    apart = gcd(*traces) or 1
    for rank, trace in traces.items():
        trace.write(out / f"rank{rank}.pt.trace.json.gz", max(traces) + apart)


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

    gathered = trace.record(trace.launch(*sharded("params-all-gather")))
    counts: dict[str, int] = defaultdict(int)
    computed: Row | None = None
    for row in (row for row in rows if row["optype"] in ("forward-compute", "backward-compute")):
        way = row["optype"].partition("-")[0]
        index, counts[way] = counts[way], counts[way] + 1
        receiving, sending = moved(f"{way}-recv", index), moved(f"{way}-send", index)
        needed = [gathered] if computed is None else []
        if receiving:
            needed.append(trace.record(trace.launch(*receiving, after=[computed] if computed else [])))
        computed = trace.record(trace.launch(row, _COMPUTE, after=needed))
        if sending:
            trace.launch(*sending, after=[computed])
    last = computed or gathered
    for kind in _LAST:
        for row in of_type[kind]:
            is_shared = kind.startswith("embedding") and len(ends) > 1
            args = groups.args(trace.rank, f"ends {ends}", "allreduce", ends) if is_shared else None
            last = trace.launch(row, _COMPUTE, args)
    reduced = trace.record(trace.launch(*sharded("grads-reduce-scatter"), after=[trace.record(last)]))
    [clip] = of_type["optimizer-clip-main-grad"]
    trace.launch(clip, _COMPUTE, groups.args(trace.rank, "world", "allreduce", whole), after=[reduced])
    trace.launch(of_type["optimizer"][0], _COMPUTE)


def main(arguments: list[str]) -> Iterator[str]:
    table, out = arguments
    write_traces(pd.read_csv(table), Path(out))
    yield f"{len(list(Path(out).iterdir()))} traces in {out}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(sys.argv[1:])) + "\n")
