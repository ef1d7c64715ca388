"""Refuse files that look like traces of torch.profiler but are of devices or tools that are not supported."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ....common.wording import counted
from ...core.escaping import encodable
from ...errors import NotATrace
from ...recording.recording import Events
from .cuts import NO_JSON
from .events import PRIVATE_DEVICES
from .stream import Surrounding

_EXPECTED = "expected a trace as torch.profiler writes it, of NVIDIA, AMD, Intel or MTIA devices, or of a CPU run"
_ASCEND = "Ascend's profiler (torch_npu, MindSpore or msprof)", _EXPECTED
_JAX = "the profiler of JAX or TensorFlow", "give the `*.xplane.pb` that was written with it"
# Names of processes, or how they begin: who writes them, and what to do.
_WRITERS = {"Ascend Hardware": _ASCEND, "CANN": _ASCEND, "/device:": _JAX, "/host:": _JAX}
_WRITERS_BY_KEY = {"viztracer_metadata": "VizTracer"}
_KEYS_OF_KINETO = frozenset(("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"))


def check_device(path: Path, events: Events, around: Surrounding, *, is_whole: bool = True) -> None:
    """Raise NotATrace if a file without activities is of another tool or an unknown device.

    Without this, such a file would be taken as one of a CPU run.
    """
    if events.activities["ts"]:
        return
    keys = _keys(around)
    for begin, (writer, what_to_do) in _WRITERS.items():
        process = next((name for name in events.processes if name.startswith(begin)), None)
        if process is not None:
            raise NotATrace(
                f'{path}: was written by {writer}: it has a process "{process}", and what its devices did is not '
                f"read; {what_to_do}"
            )
    for key in keys & _WRITERS_BY_KEY.keys():
        raise NotATrace(f'{path}: was written by {_WRITERS_BY_KEY[key]}, as its "{key}" says; {_EXPECTED}')
    pids = {pid for pid in events.pids if pid is not None}
    of_devices = [
        f"{counted(unread.events, 'event')} of category {category!r}"
        for category, unread in events.unread.items()
        if unread.is_of_device or (pids and unread.pid not in pids)
    ]
    if of_devices:
        raise NotATrace(
            f"{path}: what its device did is not understood: it has no kernel, but {', '.join(of_devices[:4])}; "
            f"nothing is computed from it; {_EXPECTED}"
        )
    is_nothing_known = not (
        events.annotations or events.comm_args or events.operators["ts"] or events.launches["ts"] or pids
    )
    if is_whole and is_nothing_known and events.window_end is None and not keys & _KEYS_OF_KINETO:
        seen = f": their categories are {', '.join(sorted(events.unread)[:4])}" if events.unread else ""
        raise NotATrace(f"{path}: has events, but none that torch.profiler writes{seen}; {_EXPECTED}")


def _keys(around: Surrounding) -> frozenset[str]:
    """The keys beside the events; empty for a bare array."""
    try:
        return frozenset(msgspec.json.decode(around.before + around.behind, type=dict[str, msgspec.Raw]))
    except NO_JSON:
        return frozenset()


def notes_on_unread(path: Path, events: Events) -> list[str]:
    """Notes on unknown categories in a file whose other events are known."""
    name = encodable(path.name)
    return [
        f"{name}: {counted(unread.events, 'event')} of the unknown category {category!r} not counted; if a device did "
        "this work, it was busier than shown"
        for category, unread in events.unread.items()
        if category not in PRIVATE_DEVICES
    ]
