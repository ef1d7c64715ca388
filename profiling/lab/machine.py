"""The machine that a lab runs on."""

import os
import re
import socket
from pathlib import Path

from ..base.commands.choices import DeviceName
from .plan import Here

_MEMINFO = Path("/proc/meminfo")


def this_machine(device: DeviceName) -> Here:
    """Its GPUs, unless `device` is cpu, its cores and free memory. Raises DeviceError."""
    import torch

    from ..ranks import process_group as parallel

    gpus = torch.cuda.device_count() if parallel.rank_device(device, 0).type == "cuda" else 0
    cores, free_bytes = _cores(), _free_bytes()
    of_gpus = f"{gpus} x {torch.cuda.get_device_name(0)}, " if gpus else ""
    name = f"{socket.gethostname()}: {of_gpus}{cores} cores, {free_bytes / 1e9:.0f} GB of free memory"
    return Here(gpus, cores, free_bytes, name)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes() -> int:
    """Memory that programs may still take; all of it where the system does not say."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
