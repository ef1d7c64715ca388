"""What a rank issues in one step: data parallel, tensor parallel, sharded, and collectives in turn.

Each is a function of the place it runs at; give its options with `functools.partial`.
"""

from __future__ import annotations

from .draws import keyed
from .ops import Block, Comm, Cpu, Group, Kernel, Op, Wait
from .world import Place

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_ROWS = 79
_PARTS = (
    ("vectorized_layer_norm_kernel", "aten::native_layer_norm", 0.06),
    ("sm90_xmma_gemm_bf16bf16_qkv", "aten::mm", 0.28),
    ("flash_fwd_kernel", "aten::_flash_attention_forward", 0.26),
    ("sm90_xmma_gemm_bf16bf16_mlp", "aten::addmm", 0.40),
)


def everybody(place: Place) -> Group:
    """The default group."""
    return Group("default", tuple(range(place.world)))


def of_host(place: Place, kind: str = "tp") -> Group:
    """All ranks of this host."""
    first = place.host * place.gpus
    return Group(kind, tuple(range(first, first + place.gpus)))


def across_hosts(place: Place, kind: str = "dp") -> Group:
    """The ranks with the same place in every host."""
    return Group(kind, tuple(range(place.rank % place.gpus, place.world, place.gpus)))


def load(us: float = 60.0) -> Op:
    """The data loader hands over a batch."""
    return Cpu(us, LOADER, "user_annotation")


def layer(us: float) -> list[Op]:
    """The kernels of a layer, forward."""
    return [Kernel(name, us * share, op) for name, op, share in _PARTS]


def backward(us: float) -> list[Op]:
    """The kernels of a layer, backward: twice as long, in half as many."""
    return [
        Kernel("flash_bwd_kernel", us * 0.8, "autograd::engine::evaluate_function: FlashBackward"),
        Kernel("sm90_xmma_gemm_bf16bf16_bwd", us * 1.2, "autograd::engine::evaluate_function: MmBackward0"),
    ]


def optimizer(us: float, count: int = 2) -> list[Op]:
    """The kernels of an optimizer step."""
    return [Kernel("multi_tensor_apply_kernel", us / count, "aten::_foreach_addcdiv_")] * count


def read_loss() -> list[Op]:
    """`loss.item()`."""
    return [Block("cudaStreamSynchronize", copy_us=2.0)]


def ddp(
    place: Place,
    *,
    layers: int = 6,
    layer_us: float = 300.0,
    buckets: tuple[int, ...] = (1 << 20, 9 << 20, 3 << 20),
    item: bool = False,
) -> list[Op]:
    """Gradients in buckets, reduced while the backward pass goes on; the optimizer waits for them."""
    ops: list[Op] = [load()]
    for _ in range(layers):
        ops += layer(layer_us)
    group, done = everybody(place), 0
    for index in range(layers):
        ops += backward(layer_us)
        while done < len(buckets) and (index + 1) * len(buckets) >= (done + 1) * layers:
            ops.append(Comm("all_reduce", group, buckets[done], "Float", work=f"bucket{done}"))
            done += 1
    ops += [Wait(f"bucket{index}") for index in range(done)]
    ops += optimizer(layer_us)
    return ops + (read_loss() if item else [])


def tp(
    place: Place,
    *,
    layers: int = 6,
    layer_us: float = 250.0,
    elems: int = 4 << 20,
    gradient: bool = True,
    item: bool = False,
) -> list[Op]:
    """Equal all_reduces, two in each layer; without `gradient` nothing else, so that one call looks like another."""
    group = everybody(place)
    ops: list[Op] = [load()] if gradient else []
    for _ in range(2 * layers):
        ops += [Kernel("sm90_xmma_gemm_bf16bf16_tp", layer_us), Comm("all_reduce", group, elems)]
    if gradient:
        ops += [Comm("all_reduce", group, 3 * elems, "Float"), *optimizer(layer_us)]
    return ops + (read_loss() if item else [])


def fsdp(
    place: Place,
    *,
    layers: int = 4,
    layer_us: float = 400.0,
    elems: int = 6 << 20,
    extras: bool = True,
    item: bool = False,
    reshard: bool = True,
    beside: bool = False,
) -> list[Op]:
    """Parameters gathered one layer ahead, gradients scattered behind, and small collectives in a second group.

    Unless they `reshard`, parameters are gathered once; `beside` the gradients they are if in a group of their own.
    """
    group, share = everybody(place), place.world
    gathering = Group("gather", group.ranks) if beside else group
    small = Group("norm", group.ranks)

    def gather(index: int, way: str) -> Op:
        return Comm("all_gather", gathering, elems // share * share, work=f"{way}{index}")

    ops: list[Op] = [load(), gather(0, "fwd")]
    for index in range(layers):
        ops += [gather(index + 1, "fwd")] if index + 1 < layers else []
        ops += [Wait(f"fwd{index}"), *layer(layer_us)]
    ops += [gather(layers - 1, "bwd")] if reshard else []
    for index in reversed(range(layers)):
        ops += [gather(index - 1, "bwd")] if index and reshard else []
        ops += [*([Wait(f"bwd{index}")] if reshard else []), *backward(layer_us)]
        ops.append(Comm("reduce_scatter", group, elems // share * share, work=f"grad{index}"))
    ops += [Wait(f"grad{index}") for index in range(layers)]
    ops += [Comm("all_reduce", small, 1, "Float"), *optimizer(layer_us)]
    return ops + (_extras(place, small) if extras else []) + (read_loss() if item else [])


def _extras(place: Place, group: Group) -> list[Op]:
    """Loss to rank 0, its answer to all, and every other step a barrier."""
    first = group.ranks[0]
    ops: list[Op] = [Comm("reduce", group, 4, "Float", root=first), Kernel("elementwise_kernel", 3.0, "aten::div_")]
    ops.append(Comm("broadcast", group, 16, "Long", root=first))
    return ops + ([Comm("barrier", group, 0, "Byte"), Block("cudaStreamSynchronize")] if place.step % 2 else [])


def tp_dp(
    place: Place,
    *,
    layers: int = 3,
    layer_us: float = 350.0,
    elems: int = 4 << 20,
    buckets: int = 2,
    item: bool = False,
) -> list[Op]:
    """Tensor parallel inside a host; gradients over the hosts, reduced while the backward pass goes on."""
    inside, across = of_host(place), across_hosts(place)
    reducing: list[Op] = [Comm("all_reduce", inside, elems)] if len(inside.ranks) > 1 else []
    ops: list[Op] = [load()]
    for _ in range(layers):
        ops += [*layer(layer_us)[:2], *reducing, *layer(layer_us)[2:], *reducing]
    done = 0
    for index in range(layers):
        ops += [*backward(layer_us), *reducing]
        while len(across.ranks) > 1 and done < buckets and (index + 1) * buckets >= (done + 1) * layers:
            ops.append(Comm("all_reduce", across, (done + 1) * elems, "Float", work=f"bucket{done}"))
            done += 1
    ops += [Wait(f"bucket{index}") for index in range(done)]
    return ops + optimizer(layer_us) + (read_loss() if item else [])


def rooted(
    place: Place,
    *,
    rounds: int = 2,
    us: float = 300.0,
    elems: int = 1 << 20,
    reduce_between: bool = True,
) -> list[Op]:
    """Collectives with a root, which changes, and an all_reduce in between."""
    group = everybody(place)
    share = elems // place.world * place.world
    ops: list[Op] = [load()]
    for turn in range(rounds):
        root = (place.step * rounds + turn) % place.world
        for op in ("broadcast", "reduce", "gather", "scatter"):
            ops += layer(us)
            ops.append(Comm(op, group, share, "Float", root=root))
            if reduce_between:
                ops += [Kernel("elementwise_kernel", us, "aten::add_"), Comm("all_reduce", group, elems // 4, "Float")]
    return [*ops, *optimizer(us)]


def inference_graph(place: Place, *, layers: int = 4, layer_us: float = 60.0, elems: int = 1 << 17) -> list[Op]:
    """One token, replayed as a CUDA graph: all_reduce inside a host, all_to_all over all ranks; then it is read."""
    inside, all_ranks = of_host(place), everybody(place)
    share = elems // place.world * place.world
    ops: list[Op] = [Cpu(90.0, "cudaGraphLaunch")]
    for _ in range(layers):
        ops += [Kernel("gemv_kernel", layer_us, "", cpu_us=0.0)]
        ops += [Comm("all_reduce", inside, elems, cpu_us=0.0)] if len(inside.ranks) > 1 else []
        ops += [Kernel("moe_gate_kernel", layer_us / 4, "", cpu_us=0.0)]
        ops += [Comm("all_to_all", all_ranks, share, cpu_us=0.0)]
    return [*ops, Kernel("argmax_kernel", 8.0, "", cpu_us=0.0), *read_loss()]


def moe(
    place: Place,
    *,
    layers: int = 4,
    us: float = 200.0,
    rows: int = 120,
    width: int = 512,
    hot: int = 0,
    item: bool = False,
) -> list[Op]:
    """Experts: how many rows go where, the rows themselves, and back; the rank in place `hot` gets most of them.

    Nothing but all_to_alls, of which each rank knows its own part of the size only.
    """
    group, size = everybody(place), place.world
    ops: list[Op] = [load()]
    for turn in range(layers):
        drawn = keyed(place.seed, _ROWS, place.step, turn).integers(rows // 4, rows, (size, size))
        drawn[:, hot % size] *= 4
        there = tuple(tuple(row) for row in drawn.tolist())
        back = tuple(zip(*there, strict=True))
        most = max(*(sum(row) for row in there), *(sum(row) for row in back)) * width
        mine = sum(row[place.rank] for row in there) / (rows * size)
        ops += [*layer(us), Comm("all_to_all", group, size, "Long")]
        ops += [Comm("all_to_all", group, most, splits=there, width=width)]
        ops += [Kernel("grouped_gemm_kernel", us * mine, "aten::_grouped_mm")]
        ops += [Comm("all_to_all", group, most, splits=back, width=width)]
    return [*ops, *optimizer(us)] + (read_loss() if item else [])


def twins(
    place: Place,
    *,
    layers: int = 4,
    us: float = 250.0,
    elems: int = 1 << 20,
    ahead: bool = True,
    item: bool = False,
) -> list[Op]:
    """Two process groups of the same ranks, with the same calls in turn; those of the second run `ahead` of compute."""
    first, second = everybody(place), Group("norm", everybody(place).ranks)
    ops: list[Op] = [load()]
    for turn in range(layers):
        ops += [Comm("all_reduce", second, elems, work=f"ahead{turn}" if ahead else "")]
        ops += [*layer(us), Comm("all_reduce", first, elems)]
        ops += [Wait(f"ahead{turn}")] if ahead else []
    return [*ops, *optimizer(us)] + (read_loss() if item else [])


def cross(place: Place, *, rounds: int = 3, us: float = 300.0, elems: int = 3 << 20, item: bool = False) -> list[Op]:
    """Among each four ranks in turn the groups {0, 1} and {2, 3}, then {0, 2} and {1, 3}."""
    first, inner = place.rank // 4 * 4, place.rank % 4
    row = Group("row", (first + inner // 2 * 2, first + inner // 2 * 2 + 1))
    column = Group("column", (first + inner % 2, first + inner % 2 + 2))
    ops: list[Op] = [load()]
    for turn in range(rounds):
        ops += [*layer(us), Comm("all_reduce", row, elems), *backward(us / 2), Comm("all_reduce", column, elems // 2)]
        ops += [Comm("all_gather", row, elems // 4)] if turn == 1 else []
    return ops + optimizer(us) + (read_loss() if item else [])
