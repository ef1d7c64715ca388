"""Stand-ins for launchers: `launching.py {srun,mpirun,mpiexec,deepspeed} WORDS...` starts two ranks of `python WORDS`.

They get the variables that Slurm, Open MPI, MPICH and DeepSpeed set, and the arguments that these give. All but
DeepSpeed leave it to scripts to find a place to meet; here that is MASTER_ADDR and MASTER_PORT.
"""

import os
import socket
import subprocess
import sys

RANKS = 2


def variables(launcher: str, rank: int) -> dict[str, int]:
    """What it tells rank `rank` of one node."""
    of_launcher = {
        "srun": {
            "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_NNODES": 1, "SLURM_NODEID": 0, "SLURM_NTASKS": RANKS,
            "SLURM_STEP_NUM_TASKS": RANKS, "SLURM_PROCID": rank, "SLURM_LOCALID": rank,
        },
        "mpirun": {
            "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": RANKS, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": RANKS, "OMPI_COMM_WORLD_NODE_RANK": rank,
        },
        "mpiexec": {"PMI_RANK": rank, "PMI_SIZE": RANKS, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": RANKS},
        "deepspeed": {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_SIZE": RANKS,
            "CROSS_RANK": 0, "CROSS_SIZE": 1,
        },
    }  # fmt: skip
    return of_launcher[launcher]


def command(launcher: str, rank: int, words: list[str]) -> list[str]:
    """What it starts as rank `rank`; DeepSpeed as after `deepspeed --module`."""
    if launcher != "deepspeed":
        return [sys.executable, *words]
    assert words[0] == "-m"
    return [sys.executable, "-u", "-m", words[1], f"--local_rank={rank}", *words[2:]]


def main(launcher: str, *words: str) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(RANKS):
        own = {name: str(value) for name, value in variables(launcher, rank).items()}
        ranks.append(subprocess.Popen(command(launcher, rank, list(words)), env=os.environ | meeting | own))
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
