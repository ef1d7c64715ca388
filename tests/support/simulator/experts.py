"""Experts by drawn routing: each rank sends its tokens to the ranks of their experts, who take as long as they have.

Which rank is slowest, and what that costs, is summed up here from what happened, not from traces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from .draws import keyed
from .ops import Comm, Group, Kernel, Op
from .physics import Timeline
from .programs import layer, load, optimizer, read_loss
from .world import Place

_ROUTING = 83
EXPERT = "cutlass_grouped_gemm"
_BACK = "autograd::engine::evaluate_function: {}Backward0"

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Routing:
    """How tokens are drawn: `hot` is the place in its group of the rank that gets `factor` times what others do.

    With `drift` it is another place in each step and layer. `spread` is how far others differ by chance (0..1), and
    `idle` places get nothing.
    """

    hot: int = 0
    factor: float = 1.0
    spread: float = 0.1
    drift: bool = False
    idle: tuple[int, ...] = ()

    def rows(self, seed: int, group: int, step: int, turn: int, size: int, tokens: int) -> Rows:
        """Rows that each member (first index) sends to each."""
        drawn = keyed(seed, _ROUTING, group, step, turn)
        weight: NDArray[np.float64] = 1 + self.spread * drawn.uniform(-1, 1, size)
        weight[drawn.integers(size) if self.drift else self.hot % size] *= self.factor
        weight[list(self.idle)] = 0.0
        return tuple(tuple(drawn.multinomial(tokens, weight / weight.sum()).tolist()) for _ in range(size))


def routed(
    place: Place,
    *,
    routing: Routing = Routing(),
    size: int = 0,
    layers: int = 3,
    tokens: int = 600,
    width: int = 512,
    us: float = 200.0,
    token_us: float = 0.5,
    batches: int = 1,
    counts: bool = True,
    backward: bool = True,
    under: bool = True,
    again: bool = False,
    weights: bool = False,
    balanced: bool = False,
    late: tuple[int, float] | None = None,
    item: bool = False,
) -> list[Op]:
    """Attention and experts in turn, forward and backward, in groups of `size` ranks that follow each other; 0 is all.

    A rank's experts take `token_us` for each row that they get, or the mean of the group if `balanced`. Layers are
    computed `again` in the backward pass; `weights` go with tokens in an exchange of their own. A rank is `late` by so
    many us before the first dispatch of each step. Without `under` nothing shows who issued a call.
    """
    size = size or place.world
    first = place.rank // size * size
    group, at = Group("ep", tuple(range(first, first + size))), place.rank - first
    ops: list[Op] = [load()]
    if late is not None and late[0] == place.rank:
        ops.append(Kernel("elementwise_kernel", late[1], "aten::add_"))
    for batch in range(batches):
        drawn = [
            routing.rows(place.seed, first, place.step, batch * layers + turn, size, tokens) for turn in range(layers)
        ]

        def experts(there: Rows, way: str, factor: float, *, with_counts: bool) -> Iterator[Op]:
            """The pass of one layer; `way` is empty forward."""
            back = tuple(zip(*there, strict=True))
            got = [sum(row) for row in back]
            most = max(*got, *(sum(row) for row in there))
            name = _BACK.format(way) if way and under else ""
            rows = fmean(got) if balanced else got[at]
            if with_counts:
                yield Comm("all_to_all", group, size, "Long", under=name)
            if weights:
                yield Comm("all_to_all", group, most, "Float", splits=there, under=name)
            yield Comm("all_to_all", group, most * width, splits=there, width=width, under=name)
            if rows:
                # Tokens are sorted by expert first.
                yield Kernel("permute_kernel", 0.1 * factor * token_us * rows, name or "aten::index")
                yield Kernel(EXPERT, 0.9 * factor * token_us * rows, name or "aten::_grouped_mm")
            yield Comm("all_to_all", group, most * width, splits=back, width=width, under=name)

        for there in drawn:
            ops += [*layer(us), *experts(there, "", 1.0, with_counts=counts)]
        for there in reversed(drawn) if backward else ():
            if again:
                ops += [*layer(us), *experts(there, "Checkpoint", 1.0, with_counts=False)]
            ops += experts(there, "AllToAll", 2.0, with_counts=False)
            ops.append(Kernel("flash_bwd_kernel", 2 * us, _BACK.format("Flash") if under else "aten::mm"))
    return [*ops, *optimizer(us)] + (read_loss() if item else [])


@dataclass(frozen=True)
class LayerTruth:
    """What is true of a layer in a step: by rank in us, and of its group; tokens are those of forward passes.

    `imbalance` is the largest number of tokens over their mean, the sum over batches.
    """

    expert_us: dict[int, float]
    received: dict[int, int]
    cost_us: float
    imbalance: float


def truth_of_experts(happened: Timeline, layers: int = 3) -> dict[tuple[int, int, tuple[int, ...]], LayerTruth]:
    """What is true of each layer, by step, layer and ranks of the group, from what happened.

    A pass is what lies between two all_to_alls of which the second sends back what the first brought. What members
    send each other tells passes of one layer and batch from others; the first of them is forward.
    """
    times = happened.times
    passes: dict[tuple[int, int], list[tuple[Comm, float]]] = defaultdict(list)
    for rank, own in enumerate(happened.ran):
        brought: Comm | None = None
        took = 0.0
        for ran in own:
            if isinstance(ran.op, Comm) and ran.op.splits and ran.op.width > 1:
                if brought is not None:
                    passes[rank, ran.step].append((brought, took))
                brought, took = (ran.op if brought is None else None), 0.0
            elif isinstance(ran.op, Kernel) and brought is not None:
                took += times[ran.end] - times[ran.start]
    found: dict[tuple[int, int, tuple[int, ...]], LayerTruth] = {}
    for (rank, step), of_rank in passes.items():
        group = of_rank[0][0].group.ranks
        if rank != group[0]:
            continue
        distinct = list(dict.fromkeys(brought.splits for brought, _ in of_rank))
        for layer_number in range(layers):
            mine = distinct[layer_number::layers]
            received = [[sum(row[place] for row in splits) for place in range(len(group))] for splits in mine]
            took_us = [
                {each: passes[each, step][number][1] for each in group}
                for number, (brought, _) in enumerate(of_rank)
                if brought.splits in mine
            ]
            found[step, layer_number, group] = LayerTruth(
                {each: sum(of_pass[each] for of_pass in took_us) for each in group},
                {each: sum(of_batch[place] for of_batch in received) for place, each in enumerate(group)},
                sum(max(of_pass.values()) - fmean(of_pass.values()) for of_pass in took_us),
                sum(map(max, received)) / sum(map(fmean, received)),
            )
    return found
