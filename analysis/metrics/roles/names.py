"""Roles of process groups: their short names, those names in words, and how frameworks spell them.

A role is one dimension of a job's layout, such as `tp`, or several joined by hyphens, such as `dp-cp`.
"""

from __future__ import annotations

import re

from ....common.wording import counted, listed, ranks_in_words

COORDINATES = ("tp", "cp", "pp", "dp", "ep")
"""Columns of `places` with a place each."""

WORLD = "world"
DIMENSIONS = {
    "tp": "tensor",
    "cp": "context",
    "sp": "sequence",
    "dp": "data",
    "dp_shard": "sharded data",
    "dp_replicate": "replicated data",
    "pp": "pipeline",
    "ep": "expert",
    "etp": "expert tensor",
    "edp": "expert data",
}
"""Dimension -> what is parallel in it: a `tp` group is a tensor-parallel group."""
_OTHERS = {"embedding": "embedding group", "position embedding": "position-embedding group"}
"""Roles that are no dimension: pipeline stages that share a weight."""

# Megatron-Core spells dimensions out and joins them (megatron/core/parallel_state.py: DATA_PARALLEL_GROUP_WITH_CP,
# EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP); torch's DeviceMesh writes mesh_NAME with names that people or TorchTitan
# give (torch/distributed/device_mesh.py: mesh_dp_shard_cp); vLLM and SGLang say tp:0, moe_ep, dcp; NCCL Inspector shows
# what its user named: "DP Group 0".
_WORDS = {
    **{name: name for name in ("tp", "cp", "sp", "dp", "pp", "ep", "etp", "edp")},
    "tensor": "tp", "context": "cp", "sequence": "sp", "ulysses": "sp", "data": "dp", "pipeline": "pp", "pipe": "pp",
    "expert": "ep", "experts": "ep", "moe": "ep", "ddp": "dp", "dcp": "cp", "pcp": "cp", "hcp": "cp",
    "fsdp": "dp_shard", "efsdp": "edp", "batch": "dp",
}  # fmt: skip
_SPELLED_OUT = frozenset({"tensor", "context", "sequence", "data", "pipeline", "expert", "model", "batch", "moe"})
"""Words that mean other things, too: `data loading`. They count if all words are known, or one is `parallel`."""
_FILLING = frozenset({
    "group", "groups", "parallel", "mesh", "dim", "and", "with", "pg", "process", "cpu", "device", "comm", "partial",
    "hierarchical", "attention", "attn",
})  # fmt: skip
_EXPERTS_OWN = {"tp": "etp", "dp": "edp", "dp_shard": "edp", "dp_replicate": "edp"}


def described_role(description: str | None) -> str | None:
    """The role that a description of a process group names; None if it names none.

    `DATA_PARALLEL_GROUP_WITH_CP` is `dp-cp`, `mesh_dp_shard` is `dp_shard`, `EXPERT_DATA_PARALLEL_GROUP` is `edp`.
    """
    words = [word for word in re.split(r"[^a-z]+", (description or "").lower()) if word]
    if words in (["default", "pg"], ["world"]):
        return WORLD
    if {"no", "not", "non", "without"} & set(words):
        return None
    known = {*_WORDS, *_FILLING, *_SPELLED_OUT, "shard", "replicate", "intra", "inter", "mod", "in"}
    surely = "parallel" in words or known.issuperset(words)
    if "embedding" in words:
        return ("position embedding" if "position" in words else "embedding") if "group" in words else None
    if words in (["mesh", "shard"], ["mesh", "replicate"]):  # the names in torch's tutorial on hybrid sharding
        return f"dp_{words[1]}"
    if words == ["mesh", "loss"]:  # TorchTitan's: the ranks over which it averages the loss
        return "dp-cp"
    if "model" in words and surely and not {"tensor", "pipeline", "expert"} & set(words):
        return "tp-pp"
    found = dict.fromkeys(
        _WORDS[word] for word in words if word in _WORDS and (surely or word not in _SPELLED_OUT)
    )  # without doubles, in their order
    if {"shard", "replicate"} <= set(words) or {"intra", "inter"} <= set(words):
        pass  # both dimensions of hybrid sharding, as torch flattens a mesh: mesh_dp_replicate_dp_shard
    elif "shard" in words or "intra" in words:
        found = {("dp_shard" if role == "dp" else role): None for role in found}
    elif "replicate" in words or "inter" in words:
        found = {("dp_replicate" if role == "dp" else role): None for role in found}
    return "-".join(_of_experts(list(found), words)) or None


def _of_experts(found: list[str], words: list[str]) -> list[str]:
    """Dimensions of the experts' own layout, where a description speaks of experts.

    In TorchTitan, `dp_shard_mod_ep` is what the experts leave of data parallelism, and `dp_shard_in_ep` a part of `ep`.
    """
    if "ep" not in found or len(found) == 1:
        return found
    if "mod" in words:
        return ["edp"]
    if "in" in words:
        return ["ep"]
    if not {"expert", "moe"} & set(words):
        return found
    others = [_EXPERTS_OWN.get(role, role) for role in found if role != "ep"]
    # EXPERT_TENSOR_AND_MODEL: the experts' tensor parallelism, and their own.
    return [*others, "ep"] if "model" in words else others


def group_in_words(role: str | None, ranks: list[int], name: str | None = None) -> str:
    """`the tensor-parallel group of ranks 4-7`; by its name if the role is not known: `group 3 of ranks 4-7`."""
    whom = f" of {ranks_in_words(ranks)}" if ranks else ""
    if role == WORLD and len(ranks) != 1:
        return f"the group of all {counted(len(ranks), 'rank')}" if ranks else "the group of all ranks"
    if role is None or role == WORLD:
        return f"group {name}{whom}" if name is not None else f"the group{whom}" if whom else "a group not known"
    if role in _OTHERS:
        return f"the {_OTHERS[role]}{whom}"
    parts = [DIMENSIONS[part] for part in role.split("-")]
    return f"the {'model' if role == 'tp-pp' else listed([f'{part}-' for part in parts])[:-1]}-parallel group{whom}"
