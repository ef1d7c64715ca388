"""Read a trace of torch in Perfetto's format: its packets as the events that Kineto would write.

So there is one meaning of operators, records and arguments, whatever torch wrote them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...core.escaping import encodable
from ...errors import NotATrace
from ...recording.building import header_of
from ...recording.options import Progress, ReadOptions
from ...recording.protobuf import BrokenMessage
from ...recording.protobuf_files import damaged, document_in
from ...recording.recording import RawTrace
from ..kineto.reader import read_texts
from ..kineto.written import WORK_CATEGORIES, counter_text, event_text, window_end_text
from .packets import Packets, Sample, Slice, Stage

_PLAIN = {
    "device id": "device",
    "context id": "context",
    "stream id": "stream",
    "registers_per_thread": "registers per thread",
}
"""Arguments that torch names otherwise here than in JSON."""
_NUMBERS = frozenset({
    "device", "context", "stream", "correlation", "bytes", "memory kind", "registers per thread", "graph id",
    "graph node id", "priority", "channel",
})  # fmt: skip
"""Arguments that are numbers in JSON; here all are texts."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_LATEST_NS = 2**62 - 2**55


def read_pftrace(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read one file. Raises UnreadableFile, NotATrace, DamagedTrace, TooLarge."""
    document = document_in(path, options, progress)
    try:
        packets = Packets(document)
        slices, stages, samples = list(packets.slices()), list(packets.stages()), list(packets.samples())
    except BrokenMessage as err:
        raise damaged(path, err) from err
    if not stages and not any(one.category for one in slices):
        raise NotATrace(
            f"{path}: is a trace in Perfetto's format without any event of torch.profiler; look at it on "
            "https://ui.perfetto.dev, and give the traces of torch themselves"
        )
    begins = [*(one.start_ns for one in slices), *(one.start_ns for one in stages)]
    ends = [*(one.end_ns for one in slices), *(one.start_ns + one.dur_ns for one in stages)]
    base_ns, last_ns = min(begins), max(ends)
    if not 0 <= base_ns <= _LATEST_NS:
        raise damaged(path, f"has an event at an impossible time ({base_ns} ns)")
    # torch says in JSON that the window ended then.
    texts = [
        *_of_threads(slices, base_ns),
        *_of_gpus(stages, base_ns),
        *_of_counters(samples, base_ns),
        window_end_text((last_ns + 1 - base_ns) / 1000),
    ]
    trace = read_texts(path, texts, header_of(base_ns=base_ns), len(document.data), options)
    trace.notes = [*trace.notes, *_notes(path, stages)]
    return trace


def _of_threads(slices: list[Slice], base_ns: int) -> Iterator[bytes]:
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        ts, dur = (one.start_ns - base_ns) / 1000, (one.end_ns - one.start_ns) / 1000
        yield event_text(one.category, one.name, (one.pid, one.tid), ts, dur, one.notes)


def _of_gpus(stages: list[Stage], base_ns: int) -> Iterator[bytes]:
    for one in stages:
        category = WORK_CATEGORIES.get(one.stage)
        if category is None:
            continue
        said = {_PLAIN.get(name, name): value for name, value in one.said.items()}
        numbers = {name: int(said[name]) for name in _NUMBERS & said.keys() if _NUMBER.fullmatch(said[name])}
        ts, dur = (one.start_ns - base_ns) / 1000, one.dur_ns / 1000
        arguments = {"device": one.gpu, **said, **numbers}
        yield event_text(category, one.name or one.stage, (one.gpu, 0), ts, dur, arguments)


def _of_counters(samples: list[Sample], base_ns: int) -> Iterator[bytes]:
    for one in samples:
        yield counter_text(one.gpu, one.name, (one.time_ns - base_ns) / 1000, one.value)


def _notes(path: Path, stages: list[Stage]) -> Iterator[str]:
    copies = sum(one.stage == "Memcpy" for one in stages)
    of_copies = f", nor the direction of {copies:,} copies" if copies else ""
    yield (
        f"{encodable(path.name)}: in .pftrace a kernel ends no later than the next one on its stream begins, and "
        f"neither rank, groups nor the allocator's memory are told{of_copies}; JSON of the same window has them: "
        "export_chrome_trace('trace.json')"
    )
