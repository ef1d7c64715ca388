"""What a process group is for, by what it does, where its description does not say.

A group whose calls fit several roles has none. Each rule says what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

StepOf = Callable[[int, int, int], tuple[int, int] | None]
"""Rank, cycle and step -> when that began on the device, and how long it took, in ns; None if that is not known."""

LEAST_BYTES = 1024  # smaller ones are flags, losses and norms, which any group may exchange
_MOSTLY = 0.8  # of the bytes, or messages
_EQUAL = 0.9  # of the calls: from there sizes are equal
_EARLY = 0.2  # of a step: layers are reduced from the first one on, gradients after the forward pass
_LAYERS = 3  # parameters of so many layers are gathered before the first gradient is ready
_LEAST_REDUCED = 4  # a step: of activations
_GRADIENT_BYTES = 1 << 14  # of a layer with 64 x 64 weights
_BUCKET_BYTES = 1 << 20  # the first bucket of torch's DistributedDataParallel; the others are larger
_LEAST_ROUTED = 4  # different splits in a step: more than an exchange of embeddings has, forward and backward
_OF_IDS = ("int64", "int32")


class Inferred(NamedTuple):
    """A role and what tells it; the role is None where several fit.

    Of a group of all ranks it is `alone` where no other group reduces anything: somebody has to reduce gradients.
    """

    role: str | None
    because: str
    alone: str | None = None


def inferred_role(calls: pd.DataFrame, members: Sequence[int], step_of: StepOf) -> Inferred | None:
    """The role of the group with these `members` by its rows of the table `calls`; None if they say nothing."""
    calls = calls[calls["collective"].notna()]
    if len(members) < 2 or not len(calls):
        return None
    messages = calls[calls["collective"].isin(["send", "recv"])]
    if len(messages) >= _MOSTLY * len(calls):
        return _by_messages(messages[messages["root"].notna()], members)
    one = calls[calls["rank"] == calls["rank"].iloc[0]]
    large = one[one["size_bytes"].fillna(LEAST_BYTES) >= LEAST_BYTES]
    moved = large.groupby("collective")["size_bytes"].sum()
    whole = float(moved.sum())
    if not whole:
        return None
    if moved.get("all_to_all", 0) >= _MOSTLY * whole:
        return _by_exchange(large[large["collective"] == "all_to_all"])
    both = [moved.get(name, 0) for name in ("all_gather", "reduce_scatter")]
    if all(both) and sum(both) >= _MOSTLY * whole:
        return _by_shards(large)
    if moved.get("all_reduce", 0) >= _MOSTLY * whole:
        return _by_reduction(large[large["collective"] == "all_reduce"], members, step_of)
    return None


def _by_messages(messages: pd.DataFrame, members: Sequence[int]) -> Inferred | None:
    """Stages of a pipeline send activations on and gradients back; in a ring the last one sends to the first, too."""
    place = {rank: number for number, rank in enumerate(members)}
    own, peer = messages["rank"].map(place), messages["root"].astype("int64").map(place)
    if not len(messages) or own.isna().any() or peer.isna().any():
        return None
    sends = messages["collective"] == "send"
    hops = set((peer - own).where(sends, own - peer).astype("int64"))
    last = len(members) - 1
    if not _is_connected(own.astype("int64"), peer, last):
        return Inferred(None, "messages do not link all its ranks")
    if not hops <= {1, -1, last, -last}:
        return Inferred(None, "messages between ranks that are no neighbours")
    messages = messages.assign(hop=(peer - own).astype("int64"))
    batches = messages[messages["batch"].notna()].groupby(["rank", "batch"])["collective"].nunique()
    pairs = int((batches > 1).sum())
    coupled = 2 * pairs == len(messages)
    on, back = (1 in hops), (-1 in hops)
    if last == 1:
        if coupled:
            return Inferred(None, "two ranks that send and receive at once: a pipeline, or a ring")
        if not (on and back):
            return Inferred(None, "messages one way between two ranks: a pipeline, or a transfer")
        return Inferred("pp", "messages between two ranks, and none at once both ways")
    around = last in hops or -last in hops
    if on and back:
        if around and coupled:
            return Inferred(None, "messages both ways around a ring")
        if not _passes_on(messages):
            return Inferred(None, "messages both ways at once: of stages, or of neighbours that exchange borders")
        return Inferred("pp", "messages between neighbours, both ways")
    if around:
        if messages["size_bytes"].nunique() > 1 or _passes_on(messages):
            return Inferred(None, "messages around a ring, one way: of a ring, or of stages that begin again")
        return Inferred("cp", "messages around a ring, one way")
    if {0, last} <= set(own.astype("int64")):
        return Inferred("pp", "messages between neighbours, one way, and none from the last to the first")
    return None


def _passes_on(messages: pd.DataFrame) -> bool:
    """Whether ranks send on what they have received, as stages do, in most steps of most of them.

    `hop` is 1 for messages from or to the next rank, -1 for those of the rank before.
    """
    firsts = messages.groupby(["rank", "cycle", "step", "collective", "hop"], dropna=False)["start_ns"].min()
    of_step = firsts.unstack(["collective", "hop"])  # noqa: PD010 - levels become columns, nothing is aggregated
    kept = [
        of_step[received].lt(of_step[sent])[of_step[received].notna() & of_step[sent].notna()]
        for received, sent in ((("recv", -1), ("send", 1)), (("recv", 1), ("send", -1)), (("recv", -1), ("send", -1)))
        if received in of_step and sent in of_step
    ]
    return not kept or float(pd.concat(kept).mean()) >= _MOSTLY


def _is_connected(own: pd.Series[int], peer: pd.Series[int], last: int) -> bool:
    """Whether each rank exchanges messages with the next one, where either of them is traced."""
    linked = {frozenset(pair) for pair in zip(own, peer, strict=True)}
    traced = set(own)
    return all(frozenset((rank, rank + 1)) in linked for rank in range(last) if {rank, rank + 1} & traced)


def _by_exchange(exchanges: pd.DataFrame) -> Inferred:
    """Experts get numbers of tokens that differ from call to call; sequence parallelism exchanges equal parts.

    Embeddings are exchanged in uneven parts as well, but those of numbers that are no ids are the same in each step.
    """
    uneven = exchanges["in_split"].map(_is_uneven).astype(bool) | exchanges["out_split"].map(_is_uneven).astype(bool)
    if not uneven.any():
        return Inferred(None, "all_to_alls with equal parts: of experts, or of sequences")
    routed = exchanges[uneven & ~exchanges["dtype"].isin(_OF_IDS)]
    splits = routed["in_split"]
    in_step = routed.groupby(["cycle", "step"], dropna=False)["in_split"].nunique()
    if splits.nunique() >= len(splits) / 2 and len(in_step) and in_step.median() >= _LEAST_ROUTED:
        return Inferred("ep", "all_to_alls with uneven parts, which differ from call to call")
    return Inferred(None, "all_to_alls with uneven parts: of experts, or of embeddings")


def _is_uneven(split: str | None) -> bool:
    return isinstance(split, str) and len(set(split.strip("[]").replace(",", " ").split()) - {"..."}) > 1


def _by_shards(calls: pd.DataFrame) -> Inferred | None:
    """Sharded parameters are gathered layer by layer before any gradient is scattered."""
    shards = calls[calls["collective"].isin(["all_gather", "reduce_scatter"]) & calls["step"].notna()]
    ahead, behind, turns = [], [], []
    for _, of_step in shards.sort_values("start_ns", kind="stable").groupby(["cycle", "step"]):
        gathers = (of_step["collective"] == "all_gather").tolist()
        if all(gathers) or not any(gathers):
            continue
        ahead.append(gathers.index(False))
        behind.append(gathers.index(True))
        turns.append(sum(a != b for a, b in pairwise(gathers)) / (len(gathers) - 1))
    if not ahead:
        return None
    if max(_median(ahead), _median(behind)) >= _LAYERS:
        order = ("all_gather", "reduce_scatter") if _median(ahead) >= _LAYERS else ("reduce_scatter", "all_gather")
        because = f"{max(_median(ahead), _median(behind)):.0f} {order[0]}s before the first {order[1]} of a step"
        if _are_of_parameters(shards):
            return Inferred("dp_shard", f"{because}, of units unlike each other")
        return Inferred(None, f"{because}: of parameters, or of keys and values", alone="dp_shard")
    if _median(turns) >= _MOSTLY:
        return Inferred(None, "all_gathers and reduce_scatters in turn: of activations, or of parameters in one unit")
    return Inferred(None, "all_gathers and reduce_scatters in no order that is known")


def _are_of_parameters(shards: pd.DataFrame) -> bool:
    """Whether some sizes are those of single units, such as embeddings, among those of layers.

    Keys and values that context parallelism gathers have the size, or the two sizes, of every layer. What is gathered
    besides, such as positions, is not scattered; gradients of parameters are, perhaps as another type.
    """
    kinds = shards[~shards["dtype"].isin(_OF_IDS)].groupby("collective")["size_bytes"]
    gathered, scattered = (kinds.get_group(name).value_counts() for name in ("all_gather", "reduce_scatter"))
    ratio = scattered.index.max() / gathered.index.max()
    both = gathered[[any(abs(size * ratio - other) <= 1 for other in scattered.index) for size in gathered.index]]
    counts = both / shards[["cycle", "step"]].drop_duplicates().shape[0]
    return bool(
        len(counts)
        and (counts.min() * _LAYERS <= counts.max() or (len(counts) >= _LAYERS and counts.min() < 2 * _LAYERS))
    )


def _by_reduction(calls: pd.DataFrame, members: Sequence[int], step_of: StepOf) -> Inferred | None:
    """Gradients are reduced once a step, after the forward pass; activations in every layer of both passes."""
    firsts, counts = [], []
    for _, of_step in calls[calls["step"].notna()].groupby(["cycle", "step"]):
        first = of_step.loc[of_step["start_ns"].idxmin()]
        window = step_of(int(first["rank"]), int(first["cycle"]), int(first["step"]))
        # Without these calls: where links are slow, a step is long for them, and its forward pass a small part of it.
        left_ns = window[1] - int(of_step["dur_ns"].sum()) if window is not None else 0
        if window is not None and left_ns > 0:
            firsts.append(min((int(first["start_ns"]) - window[0]) / left_ns, 1.0))
            counts.append(len(of_step))
    if not firsts:
        return None
    equal, many = _is_equal(calls["size_bytes"]), _median(counts) >= _LEAST_REDUCED
    if _median(firsts) < _EARLY and many and equal and _is_contiguous(members):
        return Inferred("tp", "all_reduces of equal size from the beginning of a step on, on neighbouring ranks")
    if calls["size_bytes"].max() < _GRADIENT_BYTES and not many:
        return Inferred(None, "small all_reduces: of gradients, or of metrics")
    if _median(firsts) >= _EARLY and not (many and (equal or calls["size_bytes"].max() < _BUCKET_BYTES)):
        return Inferred(
            "dp", f"mostly all_reduces, the first at {_median(firsts):.0%} of the step without communication"
        )
    return Inferred(None, "all_reduces: of activations, or of gradients")


def _is_equal(sizes: pd.Series[int]) -> bool:
    return float(sizes.value_counts(normalize=True).iloc[0]) >= _EQUAL


def _is_contiguous(members: Sequence[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(members))


def _median(values: Sequence[float]) -> float:
    return float(pd.Series(values).median())
