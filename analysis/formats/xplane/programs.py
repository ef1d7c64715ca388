"""Collectives in the programs of XLA that an XSpace holds: what each instruction moves, and between which devices.

Source of the fields: hlo.proto and xla_data.proto of openxla/xla. An instruction that is not found there is known by
its name, which begins with what it does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from ....common.nccl_tests import POINT_TO_POINT, item_bytes
from ...recording.protobuf import BYTES, NUMBER, Document, Fields, Pieces
from .space import Plane

_KINDS = {
    "all-reduce-scatter": "reduce_scatter", "ragged-all-to-all": "all_to_all", "all-reduce": "all_reduce",
    "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "all_to_all",
    "collective-permute": "collective_permute", "collective-broadcast": "broadcast", "send": "send", "recv": "recv",
}  # fmt: skip
_SAID = re.compile(
    rf"%?(?P<kind>{'|'.join(_KINDS)})(?P<phase>-start|-done|)(?: fusion)?(?![\w-])(?:[.0-9]*(?P<behind>-start|-done))?"
)
_ASYNC = re.compile(r"async(?P<phase>-start|-done)\Z")
_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip
"""PrimitiveType of xla_data.proto in torch's spelling."""
_PROGRAM, _COMPUTATIONS, _ASSIGNMENT = 1, 3, 15
_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_NAME, _OPCODE, _SHAPE, _CHANNEL, _ID, _OPERANDS, _CALLED, _GROUPS, _GLOBAL, _DEVICES = (
    1,
    2,
    3,
    26,
    35,
    36,
    38,
    49,
    71,
    87,
)
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE = 2, 3, 4
_DEEPEST, _MOST_ELEMS, _MOST_DEVICES = 8, 1 << 53, 1 << 20
_CONTENT = "Hlo Proto"

DeviceGroups = tuple[tuple[int, ...], ...]
"""Devices that communicate with each other, by the numbers that the job gives them."""


class Does(NamedTuple):
    """What an instruction does: a collective, from begin to end or only its `-start` or `-done`."""

    kind: str
    phase: str


class Instruction(NamedTuple):
    """A collective of a program; what is not known is None, and so are `groups` that nothing names.

    Of a `-done`, `started` is the instruction that began it. `in_bytes` where elements are of several types.
    """

    said: Does
    started: str | None = None
    dtype: str | None = None
    in_elems: int | None = None
    in_bytes: int | None = None
    groups: DeviceGroups | None = None


def done_by(name: str) -> Does | None:
    """The collective that the name or category of an instruction says: `all-reduce-start.3`; None for all else.

    A `send` or `recv` only begins a message, which its `-done` waits for.
    """
    match = _SAID.match(name)
    if match is None:
        return None
    kind = _KINDS[match["kind"]]
    phase = match["phase"] or match["behind"] or ""  # of `reduce-scatter.5-start`, begun by a general `async-start`
    return Does(kind, phase or ("-start" if kind in POINT_TO_POINT else ""))


def collectives_in(plane: Plane | None, programs: Collection[str]) -> dict[tuple[str, str], Instruction]:
    """The collectives of these programs by program and instruction. Raises BrokenMessage, TooLarge."""
    found: dict[tuple[str, str], Instruction] = {}
    if plane is None:
        return found
    for name, content in plane.kind_contents(_CONTENT).items():
        if name in programs:
            module = plane.document.fields(content).where(_PROGRAM, BYTES)
            for span in range(len(module.of)):
                of_program = _Program(plane.document, module.spans[span : span + 1]).collectives()
                found |= {(name, instruction): one for instruction, one in of_program.items()}
    return found


class _Program:
    """A program of XLA: its instructions as columns."""

    def __init__(self, document: Document, span: Pieces) -> None:
        self._document = document
        module = document.fields(span)
        self._assignment = module.where(_ASSIGNMENT, BYTES).spans
        computations = module.where(_COMPUTATIONS, BYTES).spans
        inside = document.fields(computations)
        self._computation_ids = inside.last(_COMPUTATION_ID, len(computations)).tolist()
        instructions = inside.where(_INSTRUCTIONS, BYTES)
        self._computation = instructions.of.tolist()
        self._fields = document.fields(instructions.spans)
        self._names, self._opcodes = self._texts(_NAME), self._texts(_OPCODE)
        ids = self._fields.last(_ID, len(self._computation))
        self._rows = {number: row for row, number in enumerate(ids.tolist())}
        self._devices = self._assigned()

    def collectives(self) -> dict[str, Instruction]:
        """Those of the program by instruction."""
        inside = {self._computation[row]: (row, said) for row, op in self._opcodes.items() if (said := done_by(op))}
        by_id = {number: inside[place] for place, number in enumerate(self._computation_ids) if place in inside}
        found: dict[str, Instruction] = {}
        for row, opcode in self._opcodes.items():
            said, core, wrapped = done_by(opcode), row, _ASYNC.match(opcode)
            if wrapped:
                begun = row if wrapped["phase"] == "-start" else next(iter(self._operands(row)), row)
                core, of_core = next((by_id[n] for n in self._integers(begun, _CALLED) if n in by_id), (row, None))
                said = None if of_core is None else Does(of_core.kind, wrapped["phase"])
            if said is not None and row in self._names:
                found[self._names[row]] = self._collective(row, core, said)
        return found

    def _collective(self, row: int, core: int, said: Does) -> Instruction:
        """The collective of an instruction, of which another one, `core`, may tell the details."""
        if said.phase == "-done":
            begun = next(iter(self._operands(row)), None)
            return Instruction(said, None if begun is None else self._names.get(begun))
        if said.kind in POINT_TO_POINT:  # these name no groups, which elsewhere means all
            return Instruction(said)
        arrays = [leaf for operand in self._operands(core) for leaf in self._arrays(self._shape(operand))]
        dtypes = {dtype for dtype, _ in arrays}
        groups = self._groups(core)
        if not arrays or None in dtypes or sum(count for _, count in arrays) >= _MOST_ELEMS:
            return Instruction(said, groups=groups)
        if len(dtypes) > 1:
            total = sum(count * item_bytes(dtype) for dtype, count in arrays if dtype is not None)
            return Instruction(said, in_bytes=total, groups=groups)
        return Instruction(said, dtype=dtypes.pop(), in_elems=sum(count for _, count in arrays), groups=groups)

    def _texts(self, number: int) -> dict[int, str]:
        found = self._fields.where(number, BYTES)
        return dict(zip(found.of.tolist(), self._document.texts(found.spans), strict=True))

    def _of(self, row: int, number: int) -> Fields:
        begin, end = np.searchsorted(self._fields.of, (row, row + 1))
        return Fields._make(column[begin:end] for column in self._fields).where(number, NUMBER, BYTES)

    def _integers(self, row: int, number: int) -> list[int]:
        return self._document.integers(self._of(row, number), number)

    def _operands(self, row: int) -> list[int]:
        return [self._rows[number] for number in self._integers(row, _OPERANDS) if number in self._rows]

    def _shape(self, row: int) -> Pieces:
        return self._of(row, _SHAPE).spans[:1]

    def _arrays(self, shape: Pieces, depth: int = 0) -> list[tuple[str | None, int]]:
        """Dtype and elements of each array in a shape."""
        if not len(shape) or depth > _DEEPEST:
            return []
        inside = self._document.fields(shape)
        parts = inside.where(_TUPLE, BYTES).spans
        if len(parts):
            return [leaf for n in range(len(parts)) for leaf in self._arrays(parts[n : n + 1], depth + 1)]
        sizes = self._document.integers(inside, _DIMENSIONS)
        dtype = _DTYPES.get(int(inside.last(_ELEMENT_TYPE, 1)[0]))
        return [(dtype, min(math.prod(max(size, 0) for size in sizes), _MOST_ELEMS))]

    def _assigned(self) -> list[int] | None:
        """The device of each place in the program; None if it has several replicas that each have several."""
        if not len(self._assignment):
            return None
        inside = self._document.fields(self._assignment[:1])
        computations = inside.where(3, BYTES).spans
        rows = [
            self._document.integers(self._document.fields(computations[n : n + 1]), 1)
            for n in range(min(len(computations), _MOST_DEVICES))
        ]
        if all(len(row) == 1 for row in rows):
            return [row[0] for row in rows]
        return rows[0] if len(rows) == 1 else None

    def _groups(self, row: int) -> DeviceGroups | None:
        """The groups of devices that an instruction names, or one of all devices; None if they are not known."""
        if self._devices is None:
            return None
        places = self._places(row)
        if places is None:
            return None
        places = places or (tuple(range(len(self._devices))),)
        if any(not 0 <= place < len(self._devices) for group in places for place in group):
            return None
        return tuple(tuple(sorted(self._devices[place] for place in group)) for group in places)

    def _places(self, row: int) -> DeviceGroups | None:
        listed = self._of(row, _DEVICES).spans[:1]
        groups = self._of(row, _GROUPS).spans
        if len(listed) and not len(groups):
            inside = self._document.fields(listed)
            groups, counted = inside.where(1, BYTES).spans, inside.where(2, BYTES).spans
            if len(counted):
                return self._counted(counted[:1])
            if len(inside.of) and not len(groups):
                return None  # said in a way that is not known
        return tuple(
            tuple(self._document.integers(self._document.fields(groups[n : n + 1]), 1)) for n in range(len(groups))
        )

    def _counted(self, span: Pieces) -> DeviceGroups | None:
        """Groups that are said as all numbers in order, reshaped and transposed (IotaReplicaGroupListProto)."""
        inside = self._document.fields(span)
        count, size = int(inside.last(1, 1)[0]), int(inside.last(2, 1)[0])
        shape, order = (self._document.integers(inside, number) for number in (3, 4))
        if not (0 < count <= _MOST_DEVICES and 0 < size <= _MOST_DEVICES and count * size <= _MOST_DEVICES):
            return None
        if any(part <= 0 for part in shape) or math.prod(shape) != count * size or len(shape) > _DEEPEST:
            return None
        if sorted(order) != list(range(len(shape))):
            return None
        numbers = np.arange(count * size).reshape(shape).transpose(order).reshape(count, size)
        return tuple(map(tuple, numbers.tolist()))
