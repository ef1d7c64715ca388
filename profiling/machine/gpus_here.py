"""Find GPUs that torch does not see, and why, from the driver and the devices."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...common.wording import counted
from . import nvml
from .nvml import DriverFacts

# Set to nothing, or to -1, one of these hides all GPUs; otherwise it chooses some.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_HIDDEN = re.compile(r"\s*(-1\b.*)?")
_ROOT = Path("/")


def why_unused(
    env: Mapping[str, str] = os.environ,
    *,
    root: Path = _ROOT,
    ask_driver: Callable[[], DriverFacts | None] = nvml.driver_facts,
    build: Any = torch,
) -> str | None:
    """Why torch, which finds no GPU, uses none of those present, and what to do.

    None where there are none, or where they are hidden on purpose.
    """
    if any(_HIDDEN.fullmatch(env[name]) for name in _VISIBLE if name in env):
        return None
    driver = _nvidia(root, ask_driver())
    if driver is not None:
        return _nvidia_unused(driver, build)
    kfd = root / "dev" / "kfd"
    return _amd_unused(kfd, build) if kfd.exists() else None


def one_for_each_rank(env: Mapping[str, str] = os.environ, *, root: Path = _ROOT) -> bool:
    """Whether a rank that sees one GPU may have it alone: it was chosen for the rank, or there are others."""
    return any(name in env for name in _VISIBLE) or any(number > 0 for number in _device_numbers(root))


def _nvidia(root: Path, driver: DriverFacts | None) -> DriverFacts | None:
    if driver is not None:
        return driver if driver.gpus else None
    numbers = _device_numbers(root)
    return DriverFacts(len(numbers), _driver_of_module(root), None) if numbers else None


def _device_numbers(root: Path) -> list[int]:
    names = (path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia[0-9]*"))
    return [int(name) for name in names if name.isdecimal()]


def _driver_of_module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return version[0] if version else None


def _nvidia_unused(facts: DriverFacts, build: Any) -> str:
    driver = f"driver {facts.driver or 'of unknown version'}"
    here = f"this machine has {counted(facts.gpus, 'NVIDIA GPU')} ({driver})"
    fits = f"CUDA {facts.cuda} or older" if facts.cuda else "CUDA"
    if build.version.cuda is None:
        made_for = "ROCm" if getattr(build.version, "hip", None) else "CPUs only"
        return f"{here}, but torch {build.__version__} is built for {made_for}; install torch for {fits}"
    built = f"torch {build.__version__}, built for CUDA {build.version.cuda}, can use none of them"
    if facts.cuda is not None and _major(facts.cuda) < _major(build.version.cuda):
        return f"{here}, but {built}: the driver supports {fits}; update the driver, or install torch for {fits}"
    return f"{here}, but {built}; see what nvidia-smi says, and whether the driver is older than that CUDA"


def _amd_unused(kfd: Path, build: Any) -> str:
    if getattr(build.version, "hip", None) is None:
        return f"this machine has AMD GPUs ({kfd}), but torch {build.__version__} is not built for ROCm; install that"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return f"{kfd} may not be opened; join the groups that own it (render, video)"
    return f"torch {build.__version__}, built for ROCm {build.version.hip}, can use no GPU here; see what rocminfo says"


def _major(version: str) -> int:
    return int(version.partition(".")[0])
