"""This process's rank and device, and process groups from start to end."""

import gc
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...contract.rank import GroupFacts
from ..base import torch_private
from ..base.console.notices import say
from ..errors import CaptureError, DeviceError, RunDirError, RunDirRefusedError
from ..machine import gpus_here
from . import places

_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # as gloo words it
_UNDEFINED = "undefined"
ENTRY_PATIENCE = timedelta(minutes=30)  # rank 0 may have a model to compile first
_SAID_AFTER = timedelta(seconds=20)
_ENTRIES = "commtrace/entries/{}"
_RUN_DIR = "commtrace/run_dir/{}"


@dataclass(frozen=True)
class Identity:
    """The place of this process in its job."""

    rank: int
    local_rank: int
    world_size: int
    host: str


def identity(env: Mapping[str, str] = os.environ) -> Identity:
    """The identity from torch.distributed if initialised, else from torchrun's variables, else rank 0 of 1.

    Those of other launchers say more than is true where nobody joins: Slurm's, in a batch script with no srun.
    """
    rank, world_size = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    return Identity(rank, places.local_rank(rank, env), world_size, socket.gethostname())


def under_torchrun(env: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as one rank of a job."""
    return "RANK" in env and "WORLD_SIZE" in env


def rank_device(name: str, local_rank: int) -> torch.device:
    """The device of this rank for `--device auto|cpu|cuda`: the GPU of its number. Raises DeviceError.

    `auto` is the CPU only where there is no GPU: not where torch cannot use those that are there.
    """
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = gpus_here.why_unused()
        if name == "auto" and why is None:
            return torch.device("cpu")
        why = f"{why}, or" if why else f"torch {torch.__version__} finds no GPU here;"
        raise DeviceError(f"--device {name}: {why} use --device cpu")
    count = torch.cuda.device_count()
    if count == 1 and under_torchrun() and gpus_here.one_for_each_rank():
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise DeviceError(f"local rank {local_rank}: needs a GPU of its own, found {count}; use fewer workers")
    return torch.device("cuda", local_rank)


def current_device() -> torch.device:
    """A script's default device: this rank's GPU if there are GPUs, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", identity().local_rank % torch.cuda.device_count())


def default_workers(name: str) -> int:
    """The default number of ranks to launch: one per GPU, or 2 on CPU."""
    use_cuda = name != "cpu" and torch.cuda.is_available()
    return torch.cuda.device_count() if use_cuda else 2


def default_backend(where: torch.device) -> str:
    """NCCL for CUDA, gloo for CPU."""
    return "nccl" if where.type == "cuda" else "gloo"


@contextmanager
def joined(backend_name: str, where: torch.device) -> Iterator[None]:
    """Join the default process group of all ranks in the block, with this backend.

    No reference to a wrapped model may be left when the block ends. After an error the group is not destroyed: peers
    may be gone, and that would wait for them.
    """
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if backend_name == "nccl":
        dist.init_process_group("nccl", device_id=where)
    else:
        dist.init_process_group(backend_name)
    yield
    # A DDP model that outlives its gloo group aborts the process at interpreter exit in about every fifth run.
    gc.collect()
    dist.destroy_process_group()


def process_groups() -> list[GroupFacts]:
    """Every process group of this rank, with all its ranks; empty without torch.distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    return [
        GroupFacts(
            name=config["pg_name"],
            desc=config["pg_desc"],
            backend=config["backend_config"],
            ranks=[int(rank) for rank in config["ranks"]],
        )
        for config in torch_private.process_group_configs()
    ]


def backend() -> str | None:
    """Backend of the default process group, such as `gloo` or `nccl`; None without one.

    `init_process_group()` without a backend takes one for each type of device, and torch calls them "undefined": then
    it is that of the current device.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    name = dist.get_backend()
    if name != _UNDEFINED:
        return name
    of_devices = dict(each.partition(":")[::2] for each in dist.get_backend_config().split(","))
    return of_devices.get(current_device().type) or next(iter(of_devices.values()), name) or name


def agree_on_run_dir(
    who: Identity, run_dir: Path, create: Callable[[Path], Path], patience: timedelta = ENTRY_PATIENCE
) -> Path:
    """The run directory, as rank 0 creates it; if it cannot, every rank raises the same error.

    Goes through the store of the process group, not through a collective: no communicator has to be set up for it, and
    rank 0 does not wait; the others do, for `patience`. Every rank must call this equally often. Raises RunDirError,
    CaptureError.
    """
    store = default_store()
    if store is None:
        return create(run_dir) if who.rank == 0 and who.world_size == 1 else run_dir
    key = _RUN_DIR.format(store.add(_ENTRIES.format(who.rank), 1))
    if who.rank == 0:
        try:
            made = create(run_dir)
        except RunDirError as err:
            store.set(key, json.dumps({"path": str(run_dir), "error": str(err)}))
            raise
        store.set(key, json.dumps({"path": str(made), "error": None}))
        return made
    _await_rank_0(store, key, who, patience)
    answer = json.loads(store.get(key))
    if answer["error"]:
        raise RunDirRefusedError(answer["error"])
    return Path(answer["path"])


def rank_0_came(who: Identity, within: timedelta) -> bool:
    """Whether rank 0 has agreed on the next run directory, or does so `within` this time: then no other rank waits."""
    store = default_store()
    if store is None or who.rank == 0:
        return True
    key = _RUN_DIR.format(entries(store, who) + 1)
    if store.check([key]) or not within:
        return bool(store.check([key]))
    try:
        store.wait([key], within)
    except RuntimeError:
        return False
    return True


def _await_rank_0(store: Any, key: str, who: Identity, patience: timedelta) -> None:
    """Wait for rank 0 to enter, and print a message if that takes long. Raises CaptureError."""
    try:
        try:
            store.wait([key], min(_SAID_AFTER, patience))
        except RuntimeError:
            if patience <= _SAID_AFTER:
                raise
            if who.rank == 1:  # once for all ranks
                say(f"ranks wait for rank 0 to enter capture(), {patience.total_seconds():g} s at most")
            store.wait([key], patience - _SAID_AFTER)
    except RuntimeError as err:
        raise CaptureError(
            f"rank {who.rank}: rank 0 did not enter capture() within {patience.total_seconds():g} s; every rank has to"
        ) from err


def default_store() -> Any:
    """The store of the default process group; None without one."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return torch_private.store_of_default_group()


def entries(store: Any, who: Identity) -> int:
    """Number of times this rank has agreed on a run directory: equal on all ranks inside a capture."""
    return int(store.add(_ENTRIES.format(who.rank), 0))


def absent_ranks(who: Identity) -> list[int]:
    """On rank 0: ranks that did not come to agree on this run directory; none without a process group."""
    store = default_store()
    if store is None or who.rank != 0:
        return []
    entered = entries(store, who)
    return [rank for rank in range(1, who.world_size) if entries(store, replace(who, rank=rank)) < entered]


def abort_process_groups() -> None:
    """Make communication that waits for a lost peer fail; NCCL can, gloo cannot."""
    if dist.is_available() and dist.is_initialized():
        with suppress(RuntimeError, ValueError, AssertionError):  # the main thread may be destroying the groups
            torch_private.abort_every_process_group()


def lost_peer(error: BaseException) -> bool:
    """Whether `error` looks like the result of another rank's end."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_PEER)
