"""The run that the `given` tables of a worked example describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from worked_examples import Given

from commtrace.analysis.ceilings.files import Ceiling
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.core.steps import InSteps, with_steps
from commtrace.analysis.core.tables import communication as schema
from commtrace.analysis.core.tables.events import COUNTER_SAMPLES, MODULES, OPERATOR_CALLS, RUNTIME_CALLS
from commtrace.analysis.recording.header import Header
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.run.cpu_activities import cpu_activities
from commtrace.analysis.run.event_tables import EVENT_SCHEMAS, EventTables
from commtrace.analysis.run.file_tables import TraceFile
from commtrace.analysis.run.replicas import replicas
from commtrace.analysis.run.run import Run
from commtrace.common.nccl_tests import dtype_name


def analysis_of_run(tables: Given) -> Analysis:
    """All tables of that run."""
    given = dict(tables)
    ceiling = schema.CEILING.frame(given.pop("ceiling", []))
    unknown = set(given) - {
        "traces", "activities", "calls", "cpu_operators", "annotations", "repetition", "clock_probes", "operators",
        "step_times", "memory_events", "records", "process_groups", "runtime_calls",
        "modules", "operator_calls", "step_marks", "counter_samples",
    }  # fmt: skip
    assert not unknown, f"no such table to give: {unknown}"
    given["calls"] = _repeated(given.get("calls", []), given.get("repetition", []))
    activities = _activities(given)
    ranks = sorted({row["rank"] for row in activities}) or [0]
    traces = given.get("traces") or [{"rank": rank, "host": "node0"} for rank in ranks]
    calls = [row for row in activities if row.get("collective") is not None]
    launched = [row for row in activities if row.get("issue_ns") is not None]
    annotations = schema.ANNOTATIONS.frame({"rank": 0, "cycle": 0, "thread": 1, **row}
                                           for row in given.get("annotations", []))  # fmt: skip
    launches = schema.LAUNCHES.frame({**row, "thread": 1, "start_ns": row["issue_ns"]} for row in launched)
    said: dict[int, dict[int, object]] = {}
    for row in map(_of_rank_0, given.get("step_marks", [])):
        said.setdefault(row["rank"], {})[row["step"]] = row.get("kind"), row.get("requests"), row.get("tokens")
    in_steps, unseen_ns = _with_steps(schema.ACTIVITIES.frame(map(_known, activities)), launches, annotations)
    unordered = EventTables(
        activities=in_steps,
        launches=launches,
        annotations=annotations,
        comm_args=schema.COMM_ARGS.frame([*map(_arguments, calls), *map(_record, given.get("records", []))]),
        runtime_calls=RUNTIME_CALLS.frame(_runtime_calls(given, launched)),
        counter_samples=COUNTER_SAMPLES.frame(map(_of_rank_0, given.get("counter_samples", []))),
        modules=MODULES.frame(map(_of_rank_0, given.get("modules", []))),
        memory_events=schema.MEMORY_EVENTS.frame(map(_of_rank_0, given.get("memory_events", []))),
        operator_calls=OPERATOR_CALLS.frame(map(_of_rank_0, given.get("operator_calls", []))),
        cpu_operators=schema.CPU_OPERATORS.frame(map(_of_rank_0, given.get("operators", []))),
    )
    ordered: dict[str, Any] = {name: _in_order(getattr(unordered, name)) for name in EVENT_SCHEMAS}
    events = EventTables(**ordered)
    return Analysis(
        Run(
            name="example",
            traces=schema.TRACES.frame({"cycle": 0, "world_size": len(traces), **row} for row in traces),
            process_groups=schema.PROCESS_GROUPS.frame(given.get("process_groups", [])),
            tables=events,
            config={},
            notes=(),
            clock_probes=schema.CLOCK_PROBES.frame(given.get("clock_probes", [])),
            details=True,
            nccl_versions={row["rank"]: row["nccl"] for row in map(_of_rank_0, traces) if row.get("nccl")},
            replicas=replicas(said, dict.fromkeys(said, "")),
            step_marks=schema.STEP_MARKS.frame(
                {**_of_rank_0(row), "unseen_ns": unseen_ns.get(row["step"])} for row in given.get("step_marks", [])
            ),
            step_times=schema.STEP_TIMES.frame(map(_of_rank_0, given.get("step_times", []))),
        ),
        Ceiling("ceiling", ceiling) if len(ceiling) else None,
    )


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The rows in the order in which a run has them; pages show them in that of time."""
    return table.sort_values(["rank", "cycle"], kind="stable", ignore_index=True)


def _of_rank_0(row: Row) -> Row:
    return {"rank": 0, "cycle": 0, **row}


def _runtime_calls(given: Given, launched: list[Row]) -> list[Row]:
    """Those that are given; otherwise a launch of no length for each activity."""
    rows = given.get("runtime_calls") or [
        {**row, "name": "cudaLaunchKernel", "start_ns": row["issue_ns"], "dur_ns": 0} for row in launched
    ]
    return [
        {"thread": 1, **row, "dur_ns": row["dur_ns"] if "dur_ns" in row else row["end_ns"] - row["start_ns"]}
        for row in map(_of_rank_0, rows)
    ]


def _activities(given: Given) -> list[Row]:
    """Rows of activities with the columns of a call where they are one."""
    rows = given.get("activities", []) + [{"kind": "comm", **row} for row in given.get("calls", [])]
    result = []
    for correlation, row in enumerate(rows):
        start_ns = row["start_ns"]
        dur_ns = row["dur_ns"] if "dur_ns" in row else row["end_ns"] - start_ns
        standard = {"rank": 0, "cycle": 0, "device": "0", "stream": 7, "kind": "compute",
                    "name": "ncclDevKernel_Generic", "issue_ns": start_ns, "correlation": correlation,
                    "external_id": 1000 + correlation}  # fmt: skip
        result.append({**standard, **row, "dur_ns": dur_ns})
    if "cpu_operators" in given:
        result += records(_on_cpu(given))
    return result


def _repeated(calls: list[Row], repetition: list[Row]) -> list[Row]:
    """The calls of each rank, again and again: `times` in all, each `every_ns` after the one before."""
    every = {row["rank"]: row for row in repetition}
    return [
        call | {"seq": call["seq"] + turn, "start_ns": call["start_ns"] + turn * every[call["rank"]]["every_ns"]}
        for call in calls
        for turn in range(every[call["rank"]]["times"])
    ] if every else calls  # fmt: skip


def _on_cpu(given: Given) -> pd.DataFrame:
    annotations = schema.ANNOTATIONS.frame({"rank": 0, "cycle": 0, **row} for row in given["annotations"])
    gloo = annotations["name"].str.startswith("gloo:")
    return cpu_activities(
        TraceFile(
            path=Path("example"),
            header=Header(0, 1, "gloo", "node0", (), (), None, None),
            pid=1,
            activities=schema.ACTIVITIES.empty(),
            launches=schema.LAUNCHES.empty(),
            annotation_rows=records(annotations),
            comm_rows=[],
            cpu_ops=pd.DataFrame(given["cpu_operators"]),
            gloo_threads=frozenset(annotations["thread"][gloo]),
        )
    )


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if name in schema.ACTIVITIES.columns}


def _with_steps(activities: pd.DataFrame, launches: pd.DataFrame, annotations: pd.DataFrame) -> InSteps:
    """As the reader does it, file by file."""
    files: list[pd.DataFrame] = []
    unseen_ns: dict[int, int] = {}
    for rank, own in activities.groupby("rank"):
        launched = launches[launches["rank"] == rank]
        marked = annotations[annotations["rank"] == rank]
        marks = zip(marked["name"], marked["start_ns"], marked["dur_ns"], strict=True)
        file = with_steps(own.reset_index(drop=True), launched, marks)
        files.append(file.activities)
        unseen_ns |= file.unseen_ns
    return InSteps(schema.ACTIVITIES.concat(files), unseen_ns)


def _arguments(call: Row) -> Row:
    """The call as arguments on its kernel, as a trace has them."""
    ranks = (call.get("pg_ranks") or "").split()
    recorded = ("Byte", "Char", "Half", "BFloat16", "Float", "Double", "Int", "Long")
    spelled = {dtype_name(name): name for name in recorded}
    root = call.get("root")
    return {
        **{name: value for name, value in call.items() if name in schema.COMM_ARGS.columns},
        "source": "kernel",
        "op": call["collective"],
        "dtype": spelled[call["dtype"]] if call.get("dtype") else None,
        "group_size": len(ranks) or call.get("group_size"),
        "root": ranks.index(str(root)) if root is not None else None,
    }


def _record(row: Row) -> Row:
    """What a CPU issued, as a record_param_comms; `root` is the peer of a send or receive."""
    peer = row.get("root") if row["collective"] in ("send", "recv") else None
    told = _arguments({"cycle": 0, "thread": 1, **row, "root": None if peer is not None else row.get("root")})
    return told | {"source": "record_param_comms", "correlation": None, "peer": peer}
