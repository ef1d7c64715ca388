"""Names of the snapshots of torch's allocator. Knows no torch."""


def snapshot_name(rank: int) -> str:
    """The file in a run directory that holds the snapshot of a rank."""
    return f"memory_snapshot_rank_{rank}.pickle"
