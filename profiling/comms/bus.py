"""Bandwidth as nccl-tests defines it. 1 GB = 1e9 bytes, so bytes per nanosecond are GB/s.

`analysis` has these factors too, since the packages share no code: a test compares the two.
"""

_SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw of `collective` over `ranks`, dimensionless.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md and the GetBw functions in src.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _SHARED_OUT else 1.0


def algbw_gb_per_s(size_bytes: int, time_ns: float) -> float:
    """Size divided by time, in GB/s."""
    return size_bytes / time_ns
