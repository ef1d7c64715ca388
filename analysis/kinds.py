"""What a device activity is: computing, communicating, or moving memory on its own device."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

COMPUTE, COMM, MEMORY = KINDS = "compute", "comm", "memory"

# NCCL and RCCL first, then kernels that move data between GPUs without either.
COMM_PATTERNS = (
    r"^nccl",  # ncclKernel_*, ncclDevKernel_*, ncclSymkDevKernel_*, ncclDevKernel_Generic (RCCL)
    r"^rccl",
    r"multimem_(all_reduce|all_gather|one_shot_all_reduce)",  # torch symmetric memory
    r"(one|two)_shot_all_reduce",
    r"cross_device_reduce",  # vLLM, SGLang custom all-reduce
    r"deep_ep::",
    r"dpsk::ep::",
    r"nvshmem",
)

# What the name alone tells of the collective; SendRecv and Generic tell nothing.
_COLLECTIVES = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("reduce", re.compile(r"^ncclKernel_Reduce_|^ncclDevKernel_Reduce_", re.IGNORECASE)),
    ("peer_copy", re.compile(r"^Memcpy PtoP", re.IGNORECASE)),
)


def comm_pattern(extra: Iterable[str] = ()) -> re.Pattern[str]:
    """One pattern that finds communication kernels by name; `extra` are further regular expressions.

    Raises re.error when one of `extra` is no regular expression.
    """
    return re.compile("|".join(f"(?:{p})" for p in (*COMM_PATTERNS, *extra)), re.IGNORECASE)


@functools.lru_cache(maxsize=1 << 14)  # every part of a file has them again
def kernel_kind(name: str, pattern: re.Pattern[str]) -> str:
    """`comm` or `compute`."""
    return COMM if pattern.search(name) else COMPUTE


def memory_kind(name: str) -> str:
    """`comm` for copies from one GPU to another, else `memory`."""
    return COMM if name.startswith("Memcpy PtoP") else MEMORY


def is_copy(name: str) -> bool:
    """Whether it is a copy or a fill, and no kernel."""
    return name.startswith(("Memcpy", "Memset"))


def collective_in_name(name: str) -> str | None:
    """The collective a kernel's name tells, spelled as in torch, or None."""
    return next((collective for collective, pattern in _COLLECTIVES if pattern.search(name)), None)
