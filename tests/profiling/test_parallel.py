import socket
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from commtrace.profiling.base import run_directory as rundir
from commtrace.profiling.errors import CaptureError, DeviceError, RunDirError, RunDirRefusedError
from commtrace.profiling.ranks import places
from commtrace.profiling.ranks import process_group as parallel
from commtrace.profiling.ranks.places import speaks_for_all
from commtrace.profiling.ranks.process_group import Identity


def who(rank: int, world_size: int = 2) -> Identity:
    return Identity(rank, rank, world_size, "host")


@pytest.fixture
def store(monkeypatch) -> object:
    """A process group that is only its store."""
    found = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: found)
    return found


def test_identity_comes_from_torchrun_when_there_is_no_process_group() -> None:
    found = parallel.identity({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert found == Identity(5, 1, 8, socket.gethostname())
    assert parallel.identity({}) == Identity(0, 0, 1, socket.gethostname())


def test_rank_0_names_the_run_directory_for_all(store, tmp_path) -> None:
    mine = parallel.agree_on_run_dir(who(0), tmp_path / "of-rank-0", rundir.create_empty)
    theirs = parallel.agree_on_run_dir(who(1), tmp_path / "of-rank-1", rundir.create_empty)
    assert mine == theirs == tmp_path / "of-rank-0"
    assert not (tmp_path / "of-rank-1").exists()


def test_a_second_run_is_agreed_on_anew(store, tmp_path) -> None:
    for name in ("first", "second"):
        parallel.agree_on_run_dir(who(0), tmp_path / name, rundir.create_empty)
        assert parallel.agree_on_run_dir(who(1), tmp_path / "x", rundir.create_empty) == tmp_path / name


def test_what_rank_0_refuses_is_refused_everywhere(store, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="found files in it"):
        parallel.agree_on_run_dir(who(0), tmp_path, rundir.create_empty)
    with pytest.raises(RunDirRefusedError, match="found files in it"):
        parallel.agree_on_run_dir(who(1), tmp_path, rundir.create_empty)


def test_rank_0_that_never_comes_is_said(store, tmp_path) -> None:
    with pytest.raises(CaptureError, match=r"rank 0 did not enter capture\(\) within 0.01 s; every rank has to"):
        parallel.agree_on_run_dir(who(1), tmp_path, rundir.create_empty, timedelta(milliseconds=10))


@pytest.mark.parametrize("rank", [1, 2])
def test_ranks_that_wait_for_rank_0_say_so_once(store, tmp_path, monkeypatch, capfd, rank) -> None:
    monkeypatch.setattr(parallel, "_SAID_AFTER", timedelta(milliseconds=10))
    with pytest.raises(CaptureError, match=rf"rank {rank}: rank 0 did not enter capture\(\) within 0.05 s"):
        parallel.agree_on_run_dir(who(rank, 3), tmp_path, rundir.create_empty, timedelta(milliseconds=50))
    said = "commtrace: ranks wait for rank 0 to enter capture(), 0.05 s at most\n"
    assert capfd.readouterr().err == (said if rank == 1 else "")


def test_a_rank_needs_a_gpu_of_its_own(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parallel.rank_device("auto", 1) == torch.device("cuda", 1)
    assert parallel.rank_device("cpu", 5) == torch.device("cpu")
    with pytest.raises(DeviceError, match="local rank 2: needs a GPU of its own, found 2"):
        parallel.rank_device("auto", 2)
    assert parallel.default_workers("auto") == 2
    assert parallel.default_workers("cpu") == 2


@pytest.mark.parametrize(("visible", "expected"), [(4, "cuda:3"), (1, "cuda:0")])
def test_the_gpu_of_a_rank_before_it_has_chosen_one(monkeypatch, visible, expected) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(parallel, "identity", lambda: who(3))
    assert str(parallel.current_device()) == expected


@pytest.mark.parametrize(
    ("env", "works"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "3"}, True),
        ({"RANK": "3", "WORLD_SIZE": "4"}, False),  # ranks that share the only GPU of a machine
        ({"CUDA_VISIBLE_DEVICES": "0"}, False),  # a launcher, before it starts four ranks
    ],
)
def test_a_rank_that_sees_only_its_own_gpu_has_one(monkeypatch, env, works) -> None:
    for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(parallel.gpus_here.one_for_each_rank, "__kwdefaults__", {"root": Path("/nowhere")})
    with nullcontext() if works else pytest.raises(DeviceError, match="local rank 3: needs a GPU of its own, found 1"):
        assert parallel.rank_device("auto", 3) == torch.device("cuda", 0)


def test_gpus_that_torch_cannot_use_are_no_reason_for_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(parallel.gpus_here, "why_unused", lambda: "there is one, but")
    assert parallel.rank_device("cpu", 0) == torch.device("cpu")
    for name in ("auto", "cuda"):
        with pytest.raises(DeviceError, match=f"--device {name}: there is one, but, or use --device cpu"):
            parallel.rank_device(name, 0)
    monkeypatch.setattr(parallel.gpus_here, "why_unused", lambda: None)
    assert parallel.rank_device("auto", 0) == torch.device("cpu")
    with pytest.raises(DeviceError, match="finds no GPU here; use --device cpu"):
        parallel.rank_device("cuda", 0)


@pytest.mark.parametrize(
    ("env", "speaks"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "1"}, False),
        ({"RANK": "0", "SLURM_PROCID": "5"}, True),
        ({"SLURM_PROCID": "5"}, False),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, False),  # Lightning's
        ({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}, True),
        ({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}, False),  # the directory is from the first try
    ],
)
def test_one_process_speaks_for_its_job(env, speaks) -> None:
    assert speaks_for_all(env) is speaks


@pytest.mark.parametrize(
    ("env", "place", "local"),
    [
        ({}, None, None),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_PROCID": "0"}, "3", 1),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None, 0),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8"}, "5", 1),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, None, 0),  # a batch script, without srun
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "2", 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, "1", 1),
    ],
)
def test_places_that_launchers_give(env, place, local) -> None:
    assert (places.place_of_several(env), places.one_of_several(env)) == (place, place is not None)
    assert places.local_place(env) == local
    assert places.local_rank(int(place or 0), env) == (local or 0)


@pytest.mark.parametrize("launcher", [{"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, {"PMI_RANK": "1"}, {}])
def test_a_rank_that_a_script_starts_has_not_the_place_of_that_script(launcher) -> None:
    assert places.local_rank(3, launcher) == 3


def test_a_rank_that_lightning_starts_is_one_of_several() -> None:
    assert places.one_of_several({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"})


def test_lost_peers_are_told_from_other_errors() -> None:
    assert parallel.lost_peer(RuntimeError("[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    assert not parallel.lost_peer(RuntimeError("shapes do not fit"))
    assert not parallel.lost_peer(ValueError("Connection closed by peer"))


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_the_backend_where_none_was_asked_for(monkeypatch, device, backend) -> None:
    """With a stand-in for the process group of `init_process_group()` on a machine with GPUs."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "undefined")
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(parallel, "current_device", lambda: torch.device(device))
    assert parallel.backend() == backend
