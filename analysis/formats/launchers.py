"""The rank of a process and the number of ranks, from the variables with which launchers begin a process."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"), ("PMIX_RANK", ""), ("SLURM_PROCID", ""),
)  # fmt: skip
"""Variables of torchrun, MPI and Slurm; of the latter only the rank: its job may be larger than what is begun in it."""
_NUMBER = re.compile(r"[0-9]{1,7}")


def rank_of_launcher(variables: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Rank and number of ranks by the environment variables of a process, None where missing."""
    for of_rank, of_world in _LAUNCHERS:
        rank = _number(variables.get(of_rank))
        if rank is not None:
            return rank, _number(variables.get(of_world))
    return None, None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
