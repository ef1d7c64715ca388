"""Kinds of device activities: compute, communication, or copies on one device; and the collective.

NCCL's kernels are not the only ones that communicate. In the other libraries too, no rank can leave an all_reduce,
all_gather, reduce_scatter, all_to_all or barrier before all ranks have arrived, so these calls split into wait and
transfer as NCCL's do. Source: what their kernels wait for.

- vLLM, SGLang, AITER (custom_all_reduce.cuh): `barrier_at_start`; quick reduce: a flag of every rank.
- torch symmetric memory (CUDASymmetricMemoryOps.cu): `sync_remote_blocks` comes first.
- Transformer Engine's user buffers (userbuffers.cu): flags of all ranks, at the start, or at the end of an all_gather.
- TensorRT-LLM and FlashInfer (trtllm_allreduce_fusion.cuh): `sync` kernels have a barrier, `lamport` kernels none, but
  they poll until the data of every rank has come. Of their MoE all_to_all (moeAlltoAllKernels.cu) dispatch waits for
  flags of all ranks at the end, combine at the start.
- DeepEP: notify and clean_low_latency_buffer are barriers (intranode.cu, internode_ll.cu). dispatch waits for the token
  counts of every rank, even if they are 0. combine waits only for ranks that hold tokens of its own, which in all but
  tiny batches are all. Layout kernels count, and epilogues copy, on their own GPU: these compute.
- NVSHMEM's collectives on streams: by their definition. torch's exchange of splits (nvshmem_extension.cu) ends with a
  barrier; the allToAllV that follows only fetches, and waits for no rank.

For the rest, as for Intel's oneCCL (`oneccl_allreduce_pcie`), it is not known whom they wait for: `send` (put, push)
waits for no rank, `recv` for a peer that no trace names.
"""

from __future__ import annotations

import functools
import re

from . import markers
from .expressions import MOST_LETTERS, search

COMPUTE, COMM, MEMORY = KINDS = "compute", "comm", "memory"
NEXT = "next"
"""Kind of the moment, without length, at which a device began with a step that was left out (`run.chosen_steps`)."""

# Kernels of other libraries: what each does, by the first pattern that fits. None: the name does not say.
_IN_DEEP_EP = r"\b(?:deep_ep|dpsk::ep)::(?:\w+::)*"
_DEEP_EP = rf"^[^<(]*{_IN_DEEP_EP}"
_TORCH_TYPED = r"<[^<>,]*,[^<>,]*,[^<>,]*"  # type, alignment and ranks
_OTHER_LIBRARIES: tuple[tuple[str | None, str], ...] = (
    ("all_reduce", r"cross_device_reduce|quickreduce::allreduce"),
    ("reduce_scatter", rf"two_shot_all_reduce_kernel{_TORCH_TYPED}, *(?:true|\(bool\)1)"),
    ("all_reduce", r"multimem_all_reduce|(?:one_?shot|two_?shot|hybridCubeMesh)\w*all_?reduce|allreduce_fusion(?!::)"),
    ("all_gather", r"multimem_all_gather"),
    ("barrier", r"symmetric_memory::barrier_kernel"),
    ("send", r"symmetric_memory::put_signal_kernel"),
    ("recv", r"symmetric_memory::wait_signal_kernel"),
    ("all_to_all", r"moeA2A(?:Dispatch|Combine)Kernel|moeAllToAllKernel"),
    ("all_gather", r"userbuffers_fp16_sum_inplace_gpu_\w*(?:_ag\b|allgather)"),
    ("reduce_scatter", r"userbuffers_fp16_sum_inplace_gpu_\w*_rs(?:_|\b)"),
    ("all_reduce", r"userbuffers_fp16_sum_inplace"),
    ("send", r"kuserbuffers_(?:push|pull)send\b"),
    ("recv", r"kuserbuffers_(?:push|pull)(?:send)?recv"),
    ("barrier", rf"{_DEEP_EP}(?:(?:cached_)?notify\w*|barrier\w*|clean_low_latency_buffer)\b(?!::)"),
    ("all_to_all", rf"{_DEEP_EP}(?:hybrid_)?(?:dispatch|combine)(?:_ll|_impl)?\b(?!::)"),
    (None, rf"^(?![^<(]*layout)[^<(]*{_IN_DEEP_EP}(?!\w+_(?:epilogue|prologue))\w+\b(?!::)"),
    ("barrier", r"\b(?:barrier|sync)(?:_all)?_on_stream_kernel|nvshmem_extension::exchangeSplitAndOffset"),
    ("peer_copy", r"nvshmem_extension::allToAllV"),
    ("all_to_all", r"\balltoall\w*_on_stream_kernel"),
    ("all_gather", r"\bfcollect\w*_on_stream_kernel"),
    ("reduce_scatter", r"\breducescatter\w*_on_stream_kernel"),
    ("all_reduce", r"\brdxn\w*_on_stream_kernel"),
    ("broadcast", r"\bbroadcast\w*_on_stream_kernel"),
    (None, r"nvshmem"),
    (None, r"\boneccl_"),
)
_OTHERS = [(collective, re.compile(pattern, re.IGNORECASE)) for collective, pattern in _OTHER_LIBRARIES]

# NCCL and RCCL first: ncclKernel_*, ncclDevKernel_*, ncclSymkDevKernel_*, ncclDevKernel_Generic (RCCL).
_COMM_PATTERNS = (*(f"^{prefix}" for prefix in markers.KERNEL_PREFIXES), *(pattern for _, pattern in _OTHER_LIBRARIES))
COMM_NAMES = re.compile("|".join(f"(?:{p})" for p in _COMM_PATTERNS), re.IGNORECASE)
"""Finds the names of communication kernels of all libraries that are known."""

# What the names of other kernels say about the collective; SendRecv and Generic say nothing.
_COLLECTIVES = (
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("reduce", re.compile("|".join(f"^{begin}" for begin in markers.REDUCE_KERNELS), re.IGNORECASE)),
    ("peer_copy", re.compile(f"^{markers.COPY_BETWEEN_GPUS}", re.IGNORECASE)),
)

# DeepEP's kernels for low latency send, receive, or both (internode_ll.cu: `phases`).
_IN_PHASES = re.compile(rf"{_DEEP_EP}(?:(?<=internode_ll::)(?:dispatch|combine)\b|(?:dispatch|combine)_ll\b)")
_NAMELESS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")


@functools.lru_cache(maxsize=1 << 14)  # every part of a file repeats them
def kernel_kind(name: str, further: tuple[str, ...] = ()) -> str:
    """`comm` or `compute`; `further` are regular expressions for names of communication kernels, beside the known ones.

    Raises SlowExpression, and ValueError if one of them is no regular expression.
    """
    known = COMM_NAMES.search(name[:MOST_LETTERS]) is not None
    return COMM if known or any(search(one, name, ignore_case=True) for one in further) else COMPUTE


def memory_kind(name: str) -> str:
    """`comm` for copies from one GPU to another, else `memory`."""
    return COMM if name.startswith(markers.COPY_BETWEEN_GPUS) else MEMORY


def is_copy(name: str) -> bool:
    """Whether it is a copy or a fill rather than a kernel."""
    return name.startswith(markers.COPIES)


@functools.lru_cache(maxsize=1 << 14)
def collective_in_name(name: str) -> str | None:
    """The collective in a kernel's name, spelled as in torch, or None."""
    start = name[:MOST_LETTERS]
    named = (collective for collective, pattern in (*_OTHERS, *_COLLECTIVES) if collective and pattern.search(start))
    return next(named, None)


@functools.lru_cache(maxsize=1 << 14)
def name_on_all_ranks(name: str) -> str | None:
    """The name that kernels of one collective share on all its ranks; None if not known.

    For NCCL and RCCL it is the whole name, for the libraries above the function without its template arguments.
    """
    if name.startswith(markers.KERNEL_PREFIXES):
        return name
    start = name[:MOST_LETTERS]
    return _function(name) if any(pattern.search(start) for _, pattern in _OTHERS) else None


def _function(name: str) -> str:
    """The function in a kernel's name, without return type, template arguments and parameters."""
    return re.split(r"[<(]", _NAMELESS.sub("", name).removeprefix("void "), maxsplit=1)[0]


def in_phases(name: str) -> bool:
    """Whether this kernel may only send, and the next of its name only receive, as DeepEP's with a hook."""
    return _IN_PHASES.search(name[:MOST_LETTERS]) is not None
