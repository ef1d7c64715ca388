"""The conventions of nccl-tests: sizes, bandwidths, item sizes, and names of collectives and dtypes.

Source: NVIDIA/nccl-tests doc/PERFORMANCE.md and the GetBw functions of src/*.cu. 1 GB = 1e9 bytes, so bytes per ns are
GB/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
POINT_TO_POINT = frozenset({"send", "recv", "send_recv", "peer_copy"})
PERMUTE = "collective_permute"
"""XLA's: each rank sends to one other at most, and receives from one. nccl-tests has sendrecv, which does that."""
# No rank can finish one of these before all ranks have arrived.
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

_MOST_ELEMS = 1 << 53
_SHARED_OUT = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})

_ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip

# c10::ScalarType as record_param_comms names it, and C++ type names as annotations do.
_DTYPES = {
    "Byte": "uint8", "Char": "int8", "Bool": "bool", "Short": "int16", "Half": "float16", "BFloat16": "bfloat16",
    "Int": "int32", "Float": "float32", "Long": "int64", "Double": "float64", "UInt16": "uint16", "UInt32": "uint32",
    "UInt64": "uint64", "ComplexHalf": "complex32", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
    "long int": "int64", "long": "int64", "short": "int16", "short int": "int16", "unsigned char": "uint8",
    "signed char": "int8", "char": "int8", "bool": "bool", "unsigned short": "uint16",
    "short unsigned int": "uint16", "unsigned int": "uint32", "unsigned long": "uint64", "long unsigned int": "uint64",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128", "c10::complex<c10::Half>": "complex32",
}  # fmt: skip

_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "send": "send",
    "recv": "recv", "barrier": "barrier", "allreducebarrier": "barrier", "peercopy": "peer_copy",
    "collectivepermute": PERMUTE,
}  # fmt: skip
_DECORATION = re.compile(r"(_into)?_tensor|_base|_coalesced|_oop|_sparse|_?any_?source")


class NoFormula(ValueError):
    """nccl-tests has no formula for a collective, or no size for a dtype."""


def algbw_gb_per_s(size_bytes: int, time_ns: float) -> float:
    """Size over time, in GB/s. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md, "Algorithm bandwidth"."""
    return size_bytes / time_ns


def bus_factor(collective: str, group_size: int) -> float:
    """busbw / algbw of `collective` over `group_size` ranks, dimensionless. Raises NoFormula.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md, "Summary"; the size is the whole array, not one rank's share.
    """
    if collective == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if collective in _SHARED_OUT:
        return (group_size - 1) / group_size
    if collective in ROOTED | POINT_TO_POINT | {PERMUTE}:  # one link carries every byte once
        return 1.0
    raise NoFormula(f"{collective}: nccl-tests has no bus bandwidth for it; known are all_reduce, all_gather, "
                    "reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, recv")  # fmt: skip


def size_elems(collective: str, in_elems: int, out_elems: int) -> int:
    """Elements of the size S of one rank's call. Raises NoFormula.

    `in_elems` and `out_elems` are what that rank hands in and gets back. For an uneven all_to_all the size is the
    largest over all ranks; this gives one rank's contribution to that maximum.

    Source: NVIDIA/nccl-tests src/*.cu, GetCollByteCount: count x n for the collectives that share an array out.
    """
    if collective in ("all_gather", "gather"):
        return out_elems
    if collective in ("reduce_scatter", "scatter"):
        return in_elems
    if collective == "all_to_all":
        return max(in_elems, out_elems)
    if collective in ("all_reduce", "broadcast", "reduce", "barrier", PERMUTE) or collective in POINT_TO_POINT:
        return in_elems
    raise NoFormula(f"{collective}: no rule for its size")


def elements(shapes: Iterable[object]) -> int | None:
    """Elements of tensors of these shapes, a shape being a list of sizes, or of such lists.

    None if one is neither, or if there are more elements than any memory holds.
    """
    total = 0
    for shape in shapes:
        if not isinstance(shape, list):
            return None
        flat = all(isinstance(size, int) for size in shape)
        count = math.prod(shape) if flat else elements(shape)
        if count is None:
            return None
        total += count
    return total if 0 <= total < _MOST_ELEMS else None


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype in torch's spelling. Raises NoFormula."""
    if dtype.startswith("float8_"):
        return 1
    if dtype in _ITEM_BYTES:
        return _ITEM_BYTES[dtype]
    raise NoFormula(f"{dtype}: no such dtype; expected torch's spelling, such as float32 or bfloat16")


@lru_cache(maxsize=1024)  # spellings are few, calls many
def dtype_name(recorded: str | None) -> str | None:
    """A dtype as a trace spells it (`BFloat16`, `c10::Half`, `long int`) in torch's spelling, None if unknown."""
    if recorded is None:
        return None
    plain = recorded.removeprefix("c10::").lower()
    if plain.startswith("float8_"):
        return plain
    return _DTYPES.get(recorded)


def recorded_dtype(dtype: str) -> str:
    """A dtype in torch's spelling as a trace spells it: `BFloat16`, `Float8_e4m3fn`."""
    return next((name for name, known in _DTYPES.items() if known == dtype), dtype.capitalize())


@lru_cache(maxsize=1024)
def collective_name(recorded: str) -> str | None:
    """A collective as a trace spells it (`_allgather_base`, `all_to_allv`, `send 0->1`) in torch's, None if unknown."""
    word = _DECORATION.sub("", recorded.split(" ")[0].lower()).replace("_", "")
    return _COLLECTIVES.get(word.removesuffix("v") if word.startswith("alltoall") else word)
