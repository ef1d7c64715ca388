"""A running job in the text format of Prometheus.

Source: prometheus.io/docs/instrumenting/exposition_formats, "Text-based format".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core.schema import Row
from .job import Job
from .standing import RankStanding

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Value = Callable[[RankStanding], float | int | None]
_OF_RANKS: tuple[tuple[str, str, str, _Value], ...] = (
    ("commtrace_steps_total", "counter", "Steps that a rank has done.", lambda one: one.step),
    ("commtrace_step_seconds", "gauge", "Mean length of the last steps.", lambda one: _s(one.step_ns)),
    (
        "commtrace_alone_seconds",
        "gauge",
        "Median time from the end of a step until a rank needs another rank; absent where it is not known.",
        lambda one: _s(one.alone_ns),
    ),
    (
        "commtrace_late_seconds",
        "gauge",
        "By how much a rank is late in each step, 0 if it is not; absent where it is not known.",
        lambda one: _s(one.late_ns),
    ),
    (
        "commtrace_evaluation",
        "gauge",
        "1 while a rank evaluates, or has since its last pulse.",
        lambda one: int(one.beside == "evaluation"),
    ),
    (
        "commtrace_checkpoint",
        "gauge",
        "1 while a rank writes a checkpoint, or has since its last pulse.",
        lambda one: int(one.beside == "checkpoint"),
    ),
    ("commtrace_silent_seconds", "gauge", "For how long a rank is silent, 0 if not.", lambda one: one.silent_s or 0),
)
_OF_CAPTURES = (
    ("step_seconds", "Mean length of a step in the last capture.", "step_ns", 1e-9),
    ("exposed_ratio", "Part of a step that is exposed communication, in the last capture.", "exposed_comm_frac", 1.0),
    ("wait_ratio", "Part of a step that is exposed waiting, in the last capture.", "exposed_wait_frac", 1.0),
    ("blamed_rank", "The rank that others wait for most, in the last capture.", "blamed_rank", 1),
)


def exposition(job: Job, cycles: Sequence[Row]) -> str:
    """All metrics of a job: of its ranks, and of its last capture, be it on demand or one of its `cycles`."""
    return "".join(f"{line}\n" for line in _lines(job, cycles))


def _lines(job: Job, cycles: Sequence[Row]) -> Iterator[str]:
    run = job.run.name
    for name, kind, text, value in _OF_RANKS:
        yield from _declared(name, kind, text)
        for one in job.standing.ranks if job.standing is not None and job.has_ranks else ():
            number = value(one)
            if number is not None:
                yield _sample(name, number, run=run, host=one.host, rank=one.rank)
    rows = [(f"cycle {row['cycle']}", row) for row in cycles]
    rows += [(capture.folder.name, capture.row) for capture in job.captures if capture.row is not None]
    for measure, text, column, factor in _OF_CAPTURES:
        name = f"commtrace_capture_{measure}"
        yield from _declared(name, "gauge", text)
        if rows and rows[-1][1].get(column) is not None:
            yield _sample(name, rows[-1][1][column] * factor, run=run, capture=rows[-1][0])


def _declared(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _sample(name: str, value: float | int, **labels: Any) -> str:
    pairs = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value if isinstance(value, int) else format(value, '.9g')}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _s(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
