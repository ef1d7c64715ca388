"""Programs with messages: tensor, pipeline and data parallel at once, experts, and ring attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .draws import keyed
from .ops import P2P, Comm, Group, Kernel, Message, Op, Wait
from .programs import backward, everybody, layer, load, optimizer, read_loss
from .world import Place

_SPLITS = 77


@dataclass(frozen=True)
class Mesh:
    """Where a rank is: tensor parallel ranks are next to each other, then data parallel ones, then stages."""

    rank: int
    tp: int
    dp: int
    pp: int

    @property
    def stage(self) -> int:
        return self.rank // (self.tp * self.dp)

    @property
    def tp_group(self) -> Group:
        first = self.rank // self.tp * self.tp
        return Group("tp", tuple(range(first, first + self.tp)))

    @property
    def dp_group(self) -> Group:
        first = self.stage * self.tp * self.dp + self.rank % self.tp
        return Group("dp", tuple(range(first, first + self.tp * self.dp, self.tp)))

    @property
    def ep_group(self) -> Group:
        return Group("ep", self.dp_group.ranks)

    def pp_group(self, kind: str = "pp") -> Group:
        apart = self.tp * self.dp
        return Group(kind, tuple(range(self.rank % apart, apart * self.pp, apart)))

    def stage_rank(self, stage: int) -> int:
        return self.rank + (stage - self.stage) * self.tp * self.dp


def splits_of(seed: int, members: int, step: int, turn: int) -> tuple[tuple[int, ...], ...]:
    """Rows that each member sends to each, the same on all of them."""
    drawn = keyed(seed, _SPLITS, step, turn).integers(8, 120, (members, members))
    return tuple(tuple(row) for row in drawn.tolist())


@dataclass
class _Experts:
    """All_to_alls of one step: `none`, `even` or `uneven`."""

    place: Place
    group: Group
    kind: str
    elems: int
    turn: int = 0

    def around(self, inner: list[Op]) -> list[Op]:
        """`inner` with tokens sent to the experts before, and back after."""
        size = len(self.group.ranks)
        if self.kind == "none" or size == 1:
            return []
        self.turn += 1
        if self.kind == "even":
            share = self.elems // size * size
            there = back = Comm("all_to_all", self.group, share)
            return [there, *inner, back]
        sent = splits_of(self.place.seed, size, self.place.step, self.turn)
        returned = tuple(zip(*sent, strict=True))
        return [_uneven(self.group, sent, self.elems), *inner, _uneven(self.group, returned, self.elems)]


def _uneven(group: Group, splits: tuple[tuple[int, ...], ...], elems: int) -> Op:
    """An all_to_all whose busiest member moves about `elems`."""
    rows = max(max(map(sum, splits)), max(map(sum, zip(*splits, strict=True))))
    width = max(elems // rows, 1)
    return Comm("all_to_all", group, rows * width, splits=splits, width=width)


@dataclass
class _Stage:
    """How one stage sends and receives: `act`ivations to the next one, `grad`ients to the one before."""

    mesh: Mesh
    elems: int
    batched: bool
    sent: int = 0

    def messages(self, parts: list[tuple[str, str]]) -> list[Op]:
        """A kernel for all parts, such as (`send`, `act`), or one for each, without those that lead nowhere."""
        made: list[tuple[str, Message]] = []
        for op, what in parts:
            forwards = (op == "send") == (what == "act")
            stage = self.mesh.stage + (1 if forwards else -1)
            if 0 <= stage < self.mesh.pp:
                made.append((what, Message(op, self.mesh.stage_rank(stage), self.elems)))
        if not made:
            return []
        if self.batched:
            return [P2P(self.mesh.pp_group(), tuple(message for _, message in made))]
        return [self._single(what, message) for what, message in made]

    def _single(self, what: str, message: Message) -> Op:
        """Not batched: gradients go in a group of their own, or kernels of one pair would wait for each other."""
        group = self.mesh.pp_group("pp" if what == "act" else "pp_grad")
        self.sent += message.op == "send"
        work = f"sent{self.sent}" if message.op == "send" else ""
        return P2P(group, (message,), work=work, batched=False)


def gpipe(stage: int, stages: int, microbatches: int) -> Iterator[tuple[str, ...]]:
    """All microbatches forward, then all backward."""
    for _ in range(microbatches):
        yield from (("recv act",), ("forward",), ("send act",))
    for _ in range(microbatches):
        yield from (("recv grad",), ("backward",), ("send grad",))


def one_f_one_b(stage: int, stages: int, microbatches: int) -> Iterator[tuple[str, ...]]:
    """Forward and backward in turn once the pipeline is full, as Megatron does."""
    warmup = min(stages - stage - 1, microbatches)
    steady = microbatches - warmup
    for _ in range(warmup):
        yield from (("recv act",), ("forward",), ("send act",))
    if steady:
        yield ("recv act",)
    for turn in range(steady):
        yield from (("forward",), ("send act", "recv grad"), ("backward",))
        yield ("send grad", "recv act") if turn + 1 < steady else ("send grad",)
    for _ in range(warmup):
        yield from (("recv grad",), ("backward",), ("send grad",))


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


def three_d(
    place: Place,
    *,
    tp: int = 2,
    pp: int = 2,
    schedule: str = "1f1b",
    batched: bool = True,
    experts: str = "none",
    microbatches: int = 3,
    layer_us: float = 350.0,
    elems: int = 2 << 20,
    item: bool = False,
    together: bool = True,
) -> list[Op]:
    """Tensor, pipeline and data parallel: as many data parallel ranks as the world leaves.

    Without an all_reduce of all ranks `together`, only messages go from stage to stage.
    """
    mesh = Mesh(place.rank, tp, place.world // (tp * pp), pp)
    stage = _Stage(mesh, elems, batched)
    work = _Work(mesh, _Experts(place, mesh.ep_group, experts, elems), layer_us, elems)
    ops: list[Op] = [load()]
    for moves in SCHEDULES[schedule](mesh.stage, pp, microbatches):
        if moves[0] in ("forward", "backward"):
            ops += work.of(moves[0])
        else:
            ops += stage.messages([(move.split()[0], move.split()[1]) for move in moves])
    ops += [Wait(f"sent{number + 1}") for number in range(stage.sent)]
    if mesh.dp > 1:
        ops += [Comm("all_reduce", mesh.dp_group, size * elems, "Float") for size in (2, 3)]
    ops += [Comm("all_reduce", everybody(place), 1, "Float")] if together else []
    ops += optimizer(layer_us)
    return ops + (read_loss() if item else [])


@dataclass
class _Work:
    """What a stage computes for a microbatch."""

    mesh: Mesh
    experts: _Experts
    layer_us: float
    elems: int

    def of(self, way: str) -> list[Op]:
        """Kernels and collectives, `forward` or `backward`."""
        kernels = layer(self.layer_us) if way == "forward" else backward(self.layer_us)
        half = len(kernels) // 2
        reducing: list[Op] = [Comm("all_reduce", self.mesh.tp_group, self.elems)] if self.mesh.tp > 1 else []
        expert = self.experts.around([Kernel("grouped_gemm_kernel", self.layer_us / 2, "aten::_grouped_mm")])
        return [*kernels[:half], *reducing, *kernels[half:], *reducing, *expert]


def cp_ring(
    place: Place,
    *,
    layers: int = 2,
    chunk_us: float = 180.0,
    elems: int = 1 << 20,
    item: bool = False,
) -> list[Op]:
    """Ring attention: keys and values go to the next rank while a chunk is computed; then gradients are reduced."""
    group, size = everybody(place), place.world
    ring = Group("cp", group.ranks)
    messages = (
        Message("send", (place.rank + 1) % size, elems),
        Message("recv", (place.rank - 1) % size, elems),
    )
    ops: list[Op] = [load()]
    for index in range(layers):
        ops += layer(chunk_us)[:2]
        for turn in range(min(size, 8)):
            exchanged = turn + 1 < min(size, 8)
            ops += [P2P(ring, messages, work=f"kv{index}.{turn}")] if exchanged else []
            ops.append(Kernel("flash_fwd_kernel", chunk_us, "aten::_flash_attention_forward"))
            ops += [Wait(f"kv{index}.{turn}")] if exchanged else []
    ops += [*backward(2 * chunk_us), Comm("all_reduce", group, 4 * elems, "Float"), *optimizer(chunk_us)]
    return ops + (read_loss() if item else [])
