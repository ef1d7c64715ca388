"""Find this process's place in its job before there is a process group. Knows no torch."""

import os
from collections.abc import Mapping, Sequence

_SIZES = {
    "RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",  # of srun; a batch script has the rank 0 too, and runs alone
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}
PLACES = tuple(_SIZES)
"""Variables by which launchers tell each process its place: those of torchrun, Slurm, Open MPI, and of MPICH."""
LOCAL_PLACES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""The same on its host. Lightning sets no other one."""


def speaks_for_all(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process may check, for its whole job, what the job is about to create.

    Another rank would be too late, since the first one may have created it. So would the first one after torchrun has
    restarted the job: what is there then is its own.
    """
    place = next((env[name] for name in (*PLACES, *LOCAL_PLACES) if name in env), "0")
    return place == "0" and env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def local_place(env: Mapping[str, str] = os.environ) -> int | None:
    """Number of this process on its host; None if no launcher says."""
    return next((int(env[name]) for name in LOCAL_PLACES if env.get(name, "").isdecimal()), None)


def local_rank(rank: int, env: Mapping[str, str] = os.environ) -> int:
    """The local number of the process with this `rank`; `rank` itself if its launcher does not say.

    Ranks that a script of Slurm or MPI starts itself inherit the variables of another one.
    """
    local = local_place(env)
    is_of_rank = "LOCAL_RANK" in env or _place(env) == str(rank)
    return local if local is not None and is_of_rank else rank


def one_of_several(env: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher says that it has started other processes of this job."""
    place = next((name for name in PLACES if name in env), None)
    if place is None:
        return env.get("WORLD_SIZE", "1") != "1"  # Lightning's
    return env.get(_SIZES[place], "1" if place == "SLURM_PROCID" else "") != "1"


def place_of_several(env: Mapping[str, str] = os.environ) -> str | None:
    """Number of this process among several; None if it is alone or has none."""
    return _place(env) if one_of_several(env) else None


def words_of_launcher(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments that DeepSpeed and `torch.distributed.launch` prepend: `--local_rank=N`, for the script."""
    return tuple(word for word in args[:1] if word.startswith(("--local_rank=", "--local-rank=")))


def _place(env: Mapping[str, str]) -> str | None:
    return next((env[name] for name in PLACES if name in env), None)
