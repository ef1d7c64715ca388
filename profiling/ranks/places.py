"""Find this process's place in its job before there is a process group. Knows no torch."""

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from ..errors import UsageError

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

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


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


def local_size(env: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks of the job are on this host; None if no launcher says."""
    return next((int(env[name]) for name in _LOCAL_SIZES if env.get(name, "").isdecimal()), None)


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


def restarts(env: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has started this job again."""
    text = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdecimal() else 0


def join_launched(env: MutableMapping[str, str] = os.environ) -> None:
    """Make this process the rank that srun or mpirun has started it as, by the variables that torchrun sets.

    Where torchrun has set them, or nobody has started others, nothing changes. What the user has set of a place to meet
    stays; else it is the first node of the Slurm step, and a port made of the numbers of job and step. Raises
    UsageError if there is nothing to go by: each process would be a job of its own, and all would use the same GPUs.
    """
    if "RANK" in env or not one_of_several(env):
        return
    launcher = next((name for name in PLACES if name in env), "")
    rank, size = env.get(launcher, ""), env.get(_SIZES.get(launcher, ""), "")
    local = local_place(env)
    if not (rank.isdecimal() and size.isdecimal()) or local is None:
        raise UsageError(_CANNOT_JOIN.format(env.get("WORLD_SIZE", size) or "several"))
    where, port = _slurm_meeting(env) if launcher == "SLURM_PROCID" else _mpi_meeting(env, size)
    address = env.get("MASTER_ADDR", where)
    if address is None:
        raise UsageError(_CANNOT_JOIN.format(size))
    env.update(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=str(local), MASTER_ADDR=address)
    env.setdefault("MASTER_PORT", str(port))
    ranks_here = _ranks_here(env, launcher, int(size))
    if ranks_here is not None:
        env.setdefault("LOCAL_WORLD_SIZE", str(ranks_here))


_CANNOT_JOIN = (
    "a launcher has started {} of these processes, and does not say where they can meet; set MASTER_ADDR (a node) and "
    "MASTER_PORT for all of them, or start torchrun with one process on each node: torchrun ... -m commtrace ..."
)
_FIRST_PORT, _PORTS = 20_000, 10_000
_LOOPBACK = "127.0.0.1"


def _slurm_meeting(env: Mapping[str, str]) -> tuple[str | None, int]:
    """Where the ranks of a Slurm step meet: its first node, None if Slurm does not name it, and a port of this step."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    number = sum(int(env[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if env.get(name, "").isdecimal())
    alone = env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES")) == "1"
    return _LOOPBACK if alone else first_node(nodes), _FIRST_PORT + number % _PORTS


def _mpi_meeting(env: Mapping[str, str], size: str) -> tuple[str | None, int]:
    """The same for Open MPI and MPICH, which name no node: this one, if all ranks are here, as children of mpirun."""
    return _LOOPBACK if str(local_size(env)) == size else None, _FIRST_PORT + os.getppid() % _PORTS


def first_node(nodes: str) -> str | None:
    """The first of Slurm's `node[001-004,007]-ib,login`; None where there is none.

    Source: slurm.schedmd.com/scontrol.html, "hostlist".
    """
    found = re.match(r"([^,\[\]]+)(?:\[([^,\-\]]+)[^\]]*\]([^,\[]*))?", nodes.strip())
    return "".join(part or "" for part in found.groups()) if found else None


def _ranks_here(env: Mapping[str, str], launcher: str, size: int) -> int | None:
    """How many ranks of the job are on this node: of Slurm's `4(x2),3`, the number of this node."""
    if launcher != "SLURM_PROCID":
        return local_size(env)
    counts: list[int] = []
    for text in (env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text)
        counts += [int(found[1])] * int(found[2] or 1) if found else []
    node = env.get("SLURM_NODEID", "")
    if node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    return size if env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES")) == "1" else None
