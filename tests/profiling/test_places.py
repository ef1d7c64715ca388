"""Ranks of Slurm and MPI join by what these launchers say, or are told what to do."""

import pytest

from commtrace.profiling.errors import UsageError
from commtrace.profiling.ranks.places import first_node, join_launched

SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_JOB_ID": "123", "SLURM_STEP_ID": "2",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip


def test_a_task_of_srun_becomes_a_rank() -> None:
    env = dict(SLURM)
    join_launched(env)
    assert {name: env[name] for name in env if name not in SLURM} == {
        "RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "node07", "MASTER_PORT": "20125",
    }  # fmt: skip


def test_a_process_of_mpirun_on_one_node_becomes_a_rank() -> None:
    env = dict(MPI)
    join_launched(env)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("3", "4", "3", "4")
    assert (env["MASTER_ADDR"], 20_000 <= int(env["MASTER_PORT"]) < 30_000) == ("127.0.0.1", True)


def test_where_the_user_says_ranks_meet_they_do() -> None:
    env = SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}
    join_launched(env)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "5")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        {"RANK": "0", "WORLD_SIZE": "2"} | SLURM,
        MPI | {"RANK": "1"},
        SLURM | {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_alone_in_a_batch_script_or_under_torchrun_nothing_changes(env) -> None:
    before = dict(env)
    join_launched(env)
    assert env == before


@pytest.mark.parametrize("env", [MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, SLURM | {"SLURM_STEP_NODELIST": ""}])
def test_processes_that_cannot_meet_are_told_what_to_do(env) -> None:
    with pytest.raises(UsageError, match=r"set MASTER_ADDR \(a node\) and MASTER_PORT for all of them, or"):
        join_launched(dict(env))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3,5]", "n1"),
        ("n[003,7]-ib", "n003-ib"),
        ("a-b[01-02],c", "a-b01"),
        ("", None),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes, first) -> None:
    assert first_node(nodes) == first
