"""The environment of a run: versions, machine, device, settings. Missing values are None; nothing here raises."""

import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import torch

from ...contract.machine import Device, Machine, Numerics, Versions
from . import nvml

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Settings that change how communication behaves.
_SETTINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "CUDA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH_DIST")


def versions() -> Versions:
    """Versions of the software between the script and the hardware."""
    return Versions(
        python=platform.python_version(),
        torch=torch.__version__,
        torchvision=_distribution_version("torchvision"),
        pytorch_optimizer=_distribution_version("pytorch_optimizer"),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        cudnn=_cudnn_version(),
        nccl=_nccl_version(),
        driver=nvml.driver_version(),
        kernel=platform.release(),
    )


def machine() -> Machine:
    """The machine: names, CPU, memory in bytes, and the cores that this process may use."""
    return Machine(
        host=socket.gethostname(),
        boot_id=boot_id(),
        cpu=_cpu_name(),
        cores=os.cpu_count(),
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(),
    )


def boot_id() -> str | None:
    """Linux's boot id: different for each machine, and equal in all containers of one."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def device(where: torch.device) -> Device:
    """The device of one rank. `index` is its CUDA ordinal in this process, `uuid` names it on the host."""
    if where.type != "cuda":
        return Device(type=where.type, index=None, name=_cpu_name(), uuid=None, memory_bytes=_memory_bytes())
    index = where.index if where.index is not None else torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(index)
    uuid = getattr(facts, "uuid", None)
    return Device(
        type="cuda",
        index=index,
        name=facts.name,
        uuid=f"GPU-{uuid}" if uuid is not None else None,
        memory_bytes=facts.total_memory,
        compute_capability=f"{facts.major}.{facts.minor}",
        multiprocessors=facts.multi_processor_count,
    )


def numerics() -> Numerics:
    """Switches of torch that change its speed, with their current values."""
    cudnn = torch.backends.cudnn
    return Numerics(
        matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_allow_tf32=bool(cudnn.allow_tf32),
        cudnn_benchmark=bool(cudnn.benchmark),
        cudnn_deterministic=bool(cudnn.deterministic),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
    )


def settings(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that affect communication."""
    return {key: env[key] for key in sorted(env) if key.startswith(_SETTINGS)}


def _distribution_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cudnn_version() -> str | None:
    version = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return None if version is None else str(version)


def _nccl_version() -> str | None:
    if not (torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.machine() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
