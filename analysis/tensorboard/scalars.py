"""Communication cost and peak memory of each step, as scalars for TensorBoard."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ...common.disk import append
from ...common.extras import not_installed
from ..errors import MissingLibrary, NothingMeasured
from ..results.analysis import Analysis
from ..show.scalars import SCALAR_TIMES

SUFFIX = ".commtrace"
"""How the names of event files with these scalars end."""
_PEAKS = {"peak_allocated_gb": "peak_allocated_bytes", "peak_reserved_gb": "peak_reserved_bytes"}


class Scalar(NamedTuple):
    """A value of a step, which began at the Unix time `began_s`."""

    tag: str
    step: int
    began_s: float
    value: float


def step_scalars(analysis: Analysis) -> list[Scalar]:
    """Times and peak memory of each step as median and maximum over devices, and bus bandwidth of each collective.

    Raises NothingMeasured where no steps are marked.
    """
    steps = analysis.breakdown_steps
    if not len(steps):
        raise NothingMeasured(f"{analysis.run.name}: no steps are marked; call profiler.step() after each")
    marked = analysis.run.activities.dropna(subset=["step"])
    began_s = marked.groupby("step")["start_ns"].min() / 1e9
    scalars = [*_times(steps), *_bandwidths(analysis), *_memory(analysis.table("memory_steps"))]
    return [
        Scalar(tag, step, float(began_s[step]), value) for tag, step, value in sorted(scalars) if step in began_s.index
    ]


def _times(steps: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    for name, (column, _) in SCALAR_TIMES.items():
        yield from _over_devices(name, steps["step"], steps[column].astype("Float64") / 1e6)


def _memory(steps: pd.DataFrame) -> Iterator[tuple[str, int, float]]:
    """Yield the peaks of GPUs, where totals were recorded: the CPU's own leave out what is older than the capture."""
    known = steps[(steps["device"] != "cpu") & steps["peak_reserved_bytes"].notna()]
    for name, column in _PEAKS.items():
        yield from _over_devices(name, known["step"], known[column].astype("Float64") / 1e9)


def _over_devices(name: str, steps: pd.Series[int], values: pd.Series[float]) -> Iterator[tuple[str, int, float]]:
    by_step = values.groupby(steps)
    for over, of_step in (("median", by_step.median()), ("max", by_step.max())):
        known = of_step.dropna()
        yield from ((f"{name}/{over}", int(step), float(known[step])) for step in known.index)


def _bandwidths(analysis: Analysis) -> Iterator[tuple[str, int, float]]:
    """Yield the bandwidth of each kind of collective by step: bytes moved per transfer time."""
    steps = analysis.calls[["call_id", "step"]].merge(analysis.matches[["call_id", "collective_id"]], on="call_id")
    step = steps.dropna().groupby("collective_id")["step"].min()
    known = analysis.collectives.dropna(subset=["busbw_gb_per_s", "transfer_ns"])
    known = known[known["collective_id"].isin(step.index) & (known["transfer_ns"] > 0)]
    numbers = known["collective_id"].map(step).astype("int64")
    moved = known["busbw_gb_per_s"] * known["transfer_ns"]
    sums = pd.DataFrame({"moved": moved, "ns": known["transfer_ns"]}).groupby([known["collective"], numbers]).sum()
    rates = sums["moved"] / sums["ns"]
    yield from ((f"busbw_gb_per_s/{name}", int(number), float(rates[name, number])) for name, number in rates.index)


def event_file(scalars: list[Scalar]) -> tuple[str, bytes]:
    """Name and content of a file that TensorBoard reads. Raises MissingLibrary."""
    now = int(time.time())
    return f"{_event_name(now)}{SUFFIX}", _begin(now) + _records(scalars)


class ScalarLog:
    """A growing file that TensorBoard reads, created by the first addition. Raises MissingLibrary."""

    def __init__(self, folder: Path) -> None:
        _library()  # not only when there is something to add
        self._folder = folder
        self._file: Path | None = None

    def add(self, scalars: list[Scalar]) -> None:
        """Add scalars. Raises OSError."""
        content = _records(scalars)
        if self._file is None:
            now = int(time.time())
            self._folder.mkdir(parents=True, exist_ok=True)
            # After a part of a record that somebody was killed over, nothing would be read: each process has its own.
            self._file = self._folder / f"{_event_name(now)}.{os.getpid()}{SUFFIX}-watch"
            content = _begin(now) + content
        append(self._file, content)


def _event_name(now: int) -> str:
    return f"events.out.tfevents.{now}.{socket.gethostname()}"


def _begin(now: int) -> bytes:
    """The first record of an event file."""
    event, _, _ = _library()
    return _written([event(wall_time=now, file_version="brain.Event:2")])


def _records(scalars: list[Scalar]) -> bytes:
    event, summary, _ = _library()
    return _written(
        event(wall_time=began_s, step=step, summary=summary(value=[summary.Value(tag=tag, simple_value=value)]))
        for tag, step, began_s, value in scalars
    )


def _written(events: Iterable[Any]) -> bytes:
    _, _, writer = _library()
    file = io.BytesIO()
    records = writer(file)
    for event in events:
        records.write(event.SerializeToString())
    return file.getvalue()


def _library() -> tuple[Any, Any, Any]:
    """TensorBoard's Event, Summary and RecordWriter. Raises MissingLibrary."""
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as err:
        raise MissingLibrary(not_installed("tensorboard", "a copy of its scalars", "tensorboard")) from err
    return event_pb2.Event, summary_pb2.Summary, RecordWriter
