"""Write a trace for torch's compiler: the compute of a rank as traced, and transfer times of collectives.

torch._inductor.fx_passes.profile_guided_estimation reads operators with the shapes of their inputs, the kernels that
they launched, and kernels that say of which collective they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from ....common.nccl_tests import recorded_dtype
from .events import AnnotationArgs
from .stream import EventStream

_OPERATOR, _KERNEL = "cpu_op", "kernel"
_MARKS = (b'"cpu_op"', b'"kernel"')


class ProfiledCollective(NamedTuple):
    """Transfer time in ns of a collective of these elements in a group; `ranks` are ascending."""

    collective: str
    process_group: str
    ranks: tuple[int, ...]
    dtype: str
    in_elems: int
    out_elems: int
    dur_ns: int


class _Computing(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


def computing_events(path: Path, is_comm: Callable[[str], object]) -> Iterator[tuple[bool, bytes]]:
    """Yield the raw events that describe a rank's compute, each with whether it is an operator.

    These are operators with the shapes of their inputs, and kernels whose name `is_comm` denies. Raises TraceError.
    """
    for batch in EventStream[None](path):
        for text in batch.texts:
            if any(mark in text for mark in _MARKS):
                event = b'{"' + text + b"}"
                fields = msgspec.json.decode(event, type=_Computing)
                if fields.cat == _OPERATOR and msgspec.json.decode(fields.args, type=AnnotationArgs).in_dims:
                    yield True, event
                elif fields.cat == _KERNEL and not is_comm(fields.name):
                    yield False, event


def profile(computing: Iterable[bytes], collectives: Iterable[ProfiledCollective]) -> Iterator[bytes]:
    """Yield the document in parts: these events, and a kernel for each collective."""
    yield b'{"schemaVersion": 1, "traceEvents": [\n'
    for number, event in enumerate(chain(map(_kernel, collectives), computing)):
        yield b",\n" + event if number else event
    yield b"\n]}\n"


def _kernel(of: ProfiledCollective) -> bytes:
    return msgspec.json.encode({
        "ph": "X", "cat": _KERNEL, "name": f"ncclDevKernel_{of.collective}", "pid": 0, "tid": 0, "ts": 0,
        "dur": of.dur_ns / 1e3,
        "args": {
            "Collective name": of.collective,
            "Process Group Name": of.process_group,
            "Process Group Ranks": str(list(of.ranks)),
            "Group size": len(of.ranks),
            "In msg nelems": of.in_elems,
            "Out msg nelems": of.out_elems,
            "dtype": recorded_dtype(of.dtype),
        },
    })  # fmt: skip
