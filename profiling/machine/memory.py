"""Limit memory, and recognise running out of it. Imports torch only to set a limit."""

import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    import torch

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# How torch, CUDA's libraries, C++ and the kernel word it. cuBLAS has only a status for it, as its manual says.
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "MemoryError",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_NO_PRIMITIVE = "could not create a primitive"
# What cuDNN and cuBLAS say where they find no memory for what they need themselves, and also for other reasons.
_AMBIGUOUS = (
    "unable to find an engine",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_EXECUTION_FAILED",
)
_LITTLE_BYTES = 256 << 20  # the handles and workspaces of these libraries take less
_KERNEL_COUNTERS = Path("/proc/vmstat")
_SOURCE_PLACE = re.compile(r"^\[enforce fail at [^\]]*\] [^.]*\. ")
_STATUS = Path("/proc/self/status")


def parse_bytes(text: str, option: str = "--memory-limit") -> int:
    """Parse `4GiB` (2^30), `4GB` (1e9) or a plain number as bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise UsageError(f"{option} {text}: expected a size such as 4GiB (2^30 bytes), 500MB (1e6) or 1000000000")
    return round(float(match[1]) * unit)


def limit(limit_bytes: int, *cuda_indices: int | None) -> None:
    """Limit this process's memory: on GPUs of these indices through torch, or on the host for None.

    On the host it is RLIMIT_DATA: private writable memory, whether touched or not. What a library maps from its files
    does not count, so the limit means the same for every build of torch. Threads' stacks do count.
    """
    if None in cuda_indices:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = min(limit_bytes, sys.maxsize if hard == resource.RLIM_INFINITY else hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        return
    import torch

    for index in cuda_indices:
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), index)


def lift_limit() -> None:
    """Lift the limit of the host: a process that has reached it needs some memory to report that."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def wake(where: "torch.device", *, with_gradients: bool = True) -> None:
    """Make torch's libraries start threads and load code on the device before there is a limit.

    A thread that cannot be started ends the process, and neither threads nor code are what is measured.
    `with_gradients`: also what torch imports for a backward pass with a given gradient, which takes a second.
    """
    import torch

    torch.ones(1 << 20, device=where).add_(1)
    layers = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Flatten(), torch.nn.Linear(36, 1)).to(where)
    output = layers(torch.ones(1, 1, 8, 8, device=where))
    if with_gradients:
        output.backward(torch.ones_like(output))
    else:
        output.mean().backward()


def status_bytes(key: str) -> int | None:
    """A line of Linux's /proc/self/status in bytes, None elsewhere.

    VmData is what the host's limit applies to, VmHWM the peak of resident memory.
    """
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return int(values[0]) * 1024 if values else None


def exhausted(error: BaseException) -> bool:
    """Whether `error` means that memory ran out: on a GPU, by torch on the CPU, by Python or C++.

    cuDNN and cuBLAS have words of their own, which count only where a GPU's memory is used up. oneDNN does not say why
    it could not create a primitive, which needs memory for code and scratch space: in a process with limited memory
    this is the reason, elsewhere it may be a processor that it does not support.
    """
    if isinstance(error, MemoryError) or says_exhausted(str(error)):
        return True
    if any(words in str(error) for words in _AMBIGUOUS):
        return _gpu_is_full()
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return limited and str(error).strip() == _NO_PRIMITIVE


def _gpu_is_full() -> bool:
    """Whether almost none of a GPU's memory is left, or of torch's share of it."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        return any(_left_bytes(index) < _LITTLE_BYTES for index in range(torch.cuda.device_count()))
    except RuntimeError:  # a GPU that has failed tells nothing
        return False


def _left_bytes(index: int) -> float:
    import torch

    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    share_bytes = torch.cuda.get_per_process_memory_fraction(index) * total_bytes
    return min(free_bytes, share_bytes - torch.cuda.memory_reserved(index))


def first_line(error: BaseException) -> str:
    """The first line of `error`, without the place in torch's source where an allocation failed."""
    return _SOURCE_PLACE.sub("", (str(error).strip() or type(error).__name__).splitlines()[0])


def says_exhausted(text: str) -> bool:
    """Whether `text`, such as a process's last output, says that memory ran out."""
    return any(words in text for words in _WORDS)


def kernel_kills(counters: Path = _KERNEL_COUNTERS) -> int | None:
    """Number of processes killed by the kernel's OOM killer since boot, on the whole machine; None if not known."""
    try:
        match = re.search(r"^oom_kill (\d+)$", counters.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None


def killed_for_memory(kills_before: int | None, kills_after: int | None) -> str | None:
    """Why a process killed by SIGKILL in the meantime counts as out of memory; None if it does not.

    SIGKILL leaves no message. The kernel counts the processes that its OOM killer ends, on the whole machine.
    """
    if kills_before is None or kills_after is None:
        return "killed by SIGKILL, most likely by the kernel, which was out of memory"
    if kills_after == kills_before:
        return None
    return (
        f"killed by SIGKILL, most likely by the kernel: it killed {kills_after - kills_before} processes meanwhile, "
        "because memory was exhausted"
    )
