"""Which of the processes of a job this is, before there is a process group. Knows no torch."""

import os
from collections.abc import Mapping

PLACES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables by which launchers tell each process its place: torchrun's, and those of others."""


def speaks_for_all(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process may check for all of its job what the job is about to create.

    Another rank would be too late, since the first one may have created it. So would the first one after torchrun has
    restarted the job: what is there then is its own.
    """
    place = next((env[name] for name in PLACES if name in env), "0")
    return place == "0" and env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
