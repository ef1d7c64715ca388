"""Names of copies and fills as Kineto writes them: `Memcpy HtoD (Pinned -> Device)`, `Memset (Device)`.

All tables take the direction of a copy, and whether it is between GPUs, from its name, so whoever reads a format in
which these stand apart composes the name here.

Source: CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind in CUPTI's cupti_activity.h, in Kineto's spelling.
"""

from __future__ import annotations

from .markers import COPYING_CALL, FILL

NOT_SAID = "Unknown"
"""In a name: a direction, or a kind of memory, that the trace does not tell."""
ON_DEVICES, BETWEEN_GPUS = 8, 10
"""CUPTI's numbers of copies on devices, and from one GPU to another."""
DIRECTIONS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"
}  # fmt: skip
"""CUPTI's numbers of directions."""
MEMORIES = {
    1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device Static", 7: "Managed Static"
}  # fmt: skip
"""CUPTI's numbers of kinds of memory."""


def copy_name(direction: str, source: str, target: str) -> str:
    """The name of a copy in this direction between these kinds of memory."""
    return f"{COPYING_CALL} {direction} ({source} -> {target})"


def fill_name(memory: str) -> str:
    """The name of a fill of this kind of memory."""
    return f"{FILL} ({memory})"


def direction_said(value: object) -> str:
    """The direction by its name or CUPTI's number; NOT_SAID for anything else."""
    if isinstance(value, str):
        return _DIRECTIONS.get(value.lower(), NOT_SAID)
    return DIRECTIONS.get(value, NOT_SAID) if type(value) is int else NOT_SAID


def memory_said(value: object) -> str:
    """The kind of memory by its name, in any case (`device_static`), or CUPTI's number; NOT_SAID for anything else."""
    if isinstance(value, str):
        return _MEMORIES.get(value.lower().replace("_", " "), NOT_SAID)
    return MEMORIES.get(value, NOT_SAID) if type(value) is int else NOT_SAID


_DIRECTIONS = {name.lower(): name for name in DIRECTIONS.values()}
_MEMORIES = {name.lower(): name for name in MEMORIES.values()}
