"""Choose the backend to measure, and check that it is available."""

import torch
import torch.distributed as dist

from ..errors import DeviceError, UsageError
from ..ranks import process_group as parallel

# MPI has no store, and its ranks are started by mpirun: neither this launcher nor torchrun can run it.
_NOT_LAUNCHED_HERE = ("mpi",)


def backend_for(name: str, where: torch.device) -> str:
    """The backend `name`, or for `auto` the device's usual one. Raises UsageError, DeviceError."""
    if name == "auto":
        return parallel.default_backend(where)
    known = [
        known_name
        for known_name in dist.Backend.backend_list
        if known_name != dist.Backend.UNDEFINED and known_name != "fake"
    ]
    if name not in known:
        raise UsageError(f"--backend {name}: this torch knows {', '.join(known)}; choose one, or auto")
    if not dist.is_backend_available(name):
        offered = ", ".join(known_name for known_name in known if dist.is_backend_available(known_name))
        raise DeviceError(f"--backend {name}: torch {torch.__version__} was built without it; it offers {offered}")
    if name in _NOT_LAUNCHED_HERE:
        raise UsageError(f"--backend {name}: its ranks are started by mpirun and not by torchrun; use another backend")
    if name == "nccl" and where.type != "cuda":
        raise UsageError("--backend nccl: communicates between GPUs, but the device is cpu; use --backend gloo")
    return name
