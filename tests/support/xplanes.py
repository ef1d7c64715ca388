"""XSpaces of JAX made in memory: of GPUs from Kineto documents, so that both can be compared, and of TPUs by hand.

space = Space("node00")
device = space.plane("/device:TPU:0")
device.line("XLA Ops").event("fusion.1", start_ns=0, end_ns=100)
space.write(folder / "node00.xplane.pb")

write_gpus(documents_in(folder), target, hosts=2)
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protobufs import double, integer, message, packed

from commtrace.common.nccl_tests import collective_name, dtype_name

BEGUN_NS = 1_759_299_000_000_000_000
OPCODES = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all", "broadcast": "collective-broadcast",
}  # fmt: skip
TYPES = {"float32": 11, "bfloat16": 16, "float16": 10, "int64": 5, "int32": 4, "uint8": 6}
Said = dict[str, "int | float | str"]


class _Names:
    """Texts by number, as an XPlane explains them."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)


@dataclass
class Line:
    """A line of a plane; its events are messages."""

    plane: Plane
    name: str
    id: int
    start_ns: int
    events: list[bytes] = field(default_factory=list)

    def event(
        self, name: str, start_ns: float, end_ns: float, said: Said | None = None, **more: int | float | str
    ) -> Line:
        """Add an event; what is said of it by name."""
        offset, took = round((start_ns - self.start_ns) * 1000), round((end_ns - start_ns) * 1000)
        content = integer(1, self.plane.names[name]) + integer(2, offset) + integer(3, took)
        self.events.append(
            content + b"".join(message(4, self.plane.stat(*each)) for each in {**(said or {}), **more}.items())
        )
        return self


@dataclass
class Plane:
    """A plane of an XSpace."""

    name: str
    said: Said = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    names: _Names = field(default_factory=_Names)
    stats: _Names = field(default_factory=_Names)
    of_names: dict[str, Said] = field(default_factory=dict)
    programs: dict[str, bytes] = field(default_factory=dict)

    def line(self, name: str, number: int = 0, start_ns: int = 0) -> Line:
        """A new line."""
        self.lines.append(Line(self, name, number or len(self.lines) + 1, start_ns))
        return self.lines[-1]

    def stat(self, name: str, value: float | str) -> bytes:
        """Something said: texts as references, as the profiler writes most of them, but `hlo_op`."""
        content = integer(1, self.stats[name])
        if isinstance(value, float):
            return content + double(2, value)
        if isinstance(value, str):
            return content + (message(5, value) if name == "hlo_op" else integer(7, self.stats[value]))
        return content + integer(4, value)

    def encoded(self) -> bytes:
        """The plane as a message, its fields in order."""
        said = b"".join(message(6, self.stat(*each)) for each in self.said.items())
        kinds = b""
        for name, number in self.names.numbers.items():
            own = b"".join(message(5, self.stat(*each)) for each in self.of_names.get(name, {}).items())
            if name in self.programs:
                own += message(5, integer(1, self.stats["Hlo Proto"]) + message(6, self.programs[name]))
            kinds += message(4, integer(1, number) + message(2, integer(1, number) + message(2, name) + own))
        lines = b"".join(
            message(3, integer(1, line.id) + message(2, line.name) + integer(3, line.start_ns)
                    + b"".join(message(4, event) for event in line.events))
            for line in self.lines
        )  # fmt: skip
        stats = b"".join(
            message(5, integer(1, number) + message(2, integer(1, number) + message(2, text)))
            for text, number in self.stats.numbers.items()
        )
        return message(2, self.name) + lines + kinds + stats + said


@dataclass
class Space:
    """An XSpace: the file of one host."""

    host: str = "node00"
    planes: list[Plane] = field(default_factory=list)

    def plane(self, name: str, **said: int | float | str) -> Plane:
        """A new plane, and what is said of it."""
        self.planes.append(Plane(name, dict(said)))
        return self.planes[-1]

    def encoded(self) -> bytes:
        """The bytes of the file."""
        return b"".join(message(1, plane.encoded()) for plane in self.planes) + message(4, self.host)

    def write(self, path: Path) -> Path:
        """Write it, packed if its name ends in .gz."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self.encoded()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program that communicates; `operand` is the instruction whose result it takes.

    An `async-start` is what it `wraps`, an opcode, in a computation of its own.
    """

    name: str
    opcode: str
    dtype: str = "float32"
    elems: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    operand: str | None = None
    iota: tuple[int, int, tuple[int, ...], tuple[int, ...]] | None = None
    wraps: str | None = None


def program(instructions: Iterable[Instruction], devices: int, name: str = "jit_step") -> bytes:
    """An HloProto with these instructions, each with a parameter that it takes unless it names an operand."""
    made = wrapped = b""
    ids: dict[str, int] = {}
    for instruction in instructions:
        if instruction.operand is None:
            shape = integer(2, TYPES[instruction.dtype]) + packed(3, (instruction.elems,))
            ids[f"{instruction.name} given"] = operand = len(ids) + 1
            given = message(1, f"param.{operand}") + message(2, "parameter") + message(3, shape)
            made += message(2, given + integer(35, operand))
        else:
            operand = ids[instruction.operand]
        ids[instruction.name] = len(ids) + 1
        content = message(1, instruction.name) + message(2, instruction.opcode) + integer(26, 1)
        content += integer(35, ids[instruction.name]) + packed(36, (operand,)) + integer(71, 1)
        content += b"".join(message(49, packed(1, group)) for group in instruction.groups)
        if instruction.iota is not None:
            count, size, shape_of, order = instruction.iota
            listed = integer(1, count) + integer(2, size) + packed(3, shape_of) + packed(4, order)
            content += message(87, message(2, listed))
        if instruction.wraps is not None:
            ids[f"{instruction.name} wrapped"] = number = len(ids) + 1
            content += packed(38, (number,))
            core = message(1, f"wrapped.{number}") + message(2, instruction.wraps) + integer(35, number)
            wrapped += message(3, message(2, core + packed(36, (operand,))) + integer(5, number))
        made += message(2, content)
    computation = wrapped + message(3, message(1, "main") + made + integer(5, 1))
    places = b"".join(message(3, packed(1, (device,))) for device in range(devices))
    assigned = message(15, integer(1, 1) + integer(2, devices) + places)
    return message(1, message(1, name) + computation + integer(5, 1) + assigned)


def write_gpus(
    documents: Sequence[dict[str, Any]], folder: Path, *, hosts: int = 1, programs: bool = True
) -> list[Path]:
    """What the GPUs of these Kineto documents did, by rank, as so many hosts would have written it."""
    per_host = len(documents) // hosts
    paths = []
    for host in range(hosts):
        own = documents[host * per_host : (host + 1) * per_host]
        space = Space(f"node{host:02}")
        metadata, cpu = space.plane("/host:metadata"), Plane("/host:CPU")
        instructions: dict[str, Instruction] = {}
        for number, document in enumerate(own):
            _add_gpu(space, cpu, number, document, instructions, len(documents))
        space.planes.append(cpu)
        if programs:
            metadata.names["jit_step(7)"]
            metadata.programs["jit_step(7)"] = program(instructions.values(), len(documents))
        space.plane("Task Environment", profile_start_time=BEGUN_NS)
        paths.append(space.write(folder / f"node{host:02}.xplane.pb"))
    return paths


def _add_gpu(
    space: Space, cpu: Plane, number: int, document: dict[str, Any], instructions: dict[str, Instruction], world: int
) -> None:
    device = space.plane(
        f"/device:GPU:{number}", core_count=132, gpu_device_name=document["deviceProperties"][0]["name"]
    )
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    streams: dict[int, Line] = {}
    threads: dict[int, Line] = {}

    def span(event: dict[str, Any]) -> tuple[int, int]:
        start = int(document.get("baseTimeNanoseconds", 0)) + round(event["ts"] * 1000) - BEGUN_NS
        return start, start + round(event["dur"] * 1000)

    for event in events:
        kind, args = event.get("cat"), event.get("args", {})
        correlation = args.get("correlation", 0) + (number << 24)
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            said: Said = {"correlation_id": correlation}
            name = event["name"]
            if kind == "gpu_memcpy":
                way, _, rest = name.removeprefix("Memcpy ").partition(" (")
                source, _, target = rest.rstrip(")").lower().replace(" ", "_").partition("_->_")
                name = f"Memcpy{way.replace('to', '2')}"
                said["memcpy_details"] = (
                    f"kind_src:{source} kind_dst:{target} size:{args.get('bytes', 4)} dest:0 async:1"
                )
            elif kind == "gpu_memset":
                memory = name.removeprefix("Memset (").rstrip(")").lower()
                name, said["Memset_details"] = "Memset", f"kind:{memory} num_bytes:{args.get('bytes', 4)} async:1"
            else:
                said["kernel_details"] = "regs:32 static_shared:0 dynamic_shared:0 grid:66,2,1 block:256,1,1 occ_pct:50"
            if "Collective name" in args:
                one = _instruction(args, instructions, world)
                said |= {"hlo_op": one.name, "hlo_module": "jit_step", "program_id": 7}
            if args["stream"] not in streams:
                streams[args["stream"]] = device.line(f"Stream #{args['stream']}(Kernel)", args["stream"])
            streams[args["stream"]].event(name, *span(event), said)
        elif kind in ("cuda_runtime", "user_annotation"):
            if event["tid"] not in threads:
                threads[event["tid"]] = cpu.line(f"python/{event['tid']}", event["tid"] + (number << 24))
            if kind == "cuda_runtime" and "correlation" in args:
                threads[event["tid"]].event(
                    event["name"], *span(event), correlation_id=correlation, device_id=100 + number
                )
            elif event["name"].startswith("ProfilerStep#") and number == 0:
                step = int(event["name"].removeprefix("ProfilerStep#"))
                threads[event["tid"]].event("train", *span(event), step_num=step)


def _instruction(args: dict[str, Any], instructions: dict[str, Instruction], world: int) -> Instruction:
    """The instruction that a collective of torch would be, the same for calls that are alike."""
    kind = collective_name(args["Collective name"]) or "all_reduce"
    ranks = tuple(json.loads(args["Process Group Ranks"])) if "Process Group Ranks" in args else tuple(range(world))
    elems, dtype = args["In msg nelems"], dtype_name(args["dtype"]) or "float32"
    key = f"{kind} {elems} {dtype} {sorted(ranks)}"
    opcode = OPCODES.get(kind, "all-reduce")
    if key not in instructions:
        rest = tuple(rank for rank in range(world) if rank not in ranks)
        groups = (ranks, rest) if rest else ()
        instructions[key] = Instruction(f"{opcode}-start.{len(instructions)}", f"{opcode}-start", dtype, elems, groups)
    return instructions[key]
