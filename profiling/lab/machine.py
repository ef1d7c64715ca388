"""The machine that a lab runs on."""

import os
import socket

from ...common.memory import free_bytes
from ..base.commands.choices import DeviceName
from .plan import Here


def this_machine(device: DeviceName) -> Here:
    """Its GPUs, unless `device` is cpu, its cores and free memory. Raises DeviceError."""
    import torch

    from ..ranks import process_group as parallel

    gpus = torch.cuda.device_count() if parallel.rank_device(device, 0).type == "cuda" else 0
    cores = _cores()
    free = free_bytes()
    if free is None:  # the system does not say it
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    of_gpus = f"{gpus} x {torch.cuda.get_device_name(0)}, " if gpus else ""
    name = f"{socket.gethostname()}: {of_gpus}{cores} cores, {free / 1e9:.0f} GB of free memory"
    return Here(gpus, cores, free, name)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
