"""Why torch uses no GPU, on machines that are stand-ins: files of a driver, an NVML, and builds of torch."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from commtrace.profiling.machine import gpus_here
from commtrace.profiling.machine.nvml import driver_facts

CPU = SimpleNamespace(__version__="2.13.0+cpu", version=SimpleNamespace(cuda=None, hip=None))
CUDA = SimpleNamespace(__version__="2.13.0+cu130", version=SimpleNamespace(cuda="13.0", hip=None))
ROCM = SimpleNamespace(__version__="2.13.0+rocm7.0", version=SimpleNamespace(cuda=None, hip="7.0.1"))
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12"


class FakeNVMLError(Exception):
    pass


def library(gpus: int = 8, cuda: int = 12040) -> SimpleNamespace:
    return SimpleNamespace(
        NVMLError=FakeNVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: gpus,
        nvmlSystemGetDriverVersion=lambda: "550.54.15",
        nvmlSystemGetCudaDriverVersion=lambda: cuda,
    )


def eight_gpus():
    return driver_facts(library())


@pytest.fixture
def machine(tmp_path):
    """Makes the root of a file system with these files."""

    def made(*names: str) -> Path:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(VERSION)
        return tmp_path

    return made


DRIVER = ("proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("build", "told", "files", "gpus", "why"),
    [
        (CPU, library(), (), "this machine has 8 NVIDIA GPUs (driver 550.54.15)",
         "is built for CPUs only; install torch for CUDA 12.4 or older"),
        (CPU, None, DRIVER, "this machine has 2 NVIDIA GPUs (driver 550.54.15)",
         "is built for CPUs only; install torch for CUDA"),
        (CUDA, library(gpus=1), (), "this machine has 1 NVIDIA GPU (driver 550.54.15)",
         "the driver supports CUDA 12.4 or older; update the driver, or install torch for CUDA 12.4 or older"),
        (CUDA, library(cuda=13000), (), "this machine has 8 NVIDIA GPUs (driver 550.54.15)",
         "see what nvidia-smi says, and whether the driver is older than that CUDA"),
        (ROCM, None, ("dev/nvidia0",), "this machine has 1 NVIDIA GPU (driver of unknown version)",
         "is built for ROCm; install torch for CUDA"),
        (CPU, None, ("dev/kfd",), "this machine has AMD GPUs", "is not built for ROCm; install that"),
        (ROCM, None, ("dev/kfd",), "torch 2.13.0+rocm7.0, built for ROCm 7.0.1", "see what rocminfo says"),
    ],
)  # fmt: skip
def test_why_torch_uses_none(machine, build, told, files, gpus, why) -> None:
    found = gpus_here.why_unused({}, root=machine(*files), ask_driver=lambda: driver_facts(told), build=build)
    assert found is not None
    assert found.startswith(gpus)
    assert found.endswith(why)
    assert build.__version__ in found


@pytest.mark.parametrize(
    ("told", "files"),
    [
        (library(gpus=0), DRIVER),
        (None, ("proc/driver/nvidia/version", "dev/nvidiactl")),  # a container that was given no GPU
        (None, ()),
    ],
)
def test_where_there_is_none_there_is_no_reason(machine, told, files) -> None:
    assert gpus_here.why_unused({}, root=machine(*files), ask_driver=lambda: driver_facts(told), build=CPU) is None


@pytest.mark.parametrize("value", ["", " ", "-1"])
def test_gpus_that_are_hidden_on_purpose_are_not_missed(value) -> None:
    assert gpus_here.why_unused({"CUDA_VISIBLE_DEVICES": value}, ask_driver=eight_gpus, build=CPU) is None
    assert gpus_here.why_unused({"CUDA_VISIBLE_DEVICES": "0"}, ask_driver=eight_gpus, build=CPU) is not None


def test_nvml_that_fails_is_none(machine) -> None:
    def failing() -> None:
        raise FakeNVMLError("Driver Not Loaded")

    broken = SimpleNamespace(**{**vars(library()), "nvmlInit": failing})
    assert gpus_here.why_unused({}, root=machine(), ask_driver=lambda: driver_facts(broken), build=CPU) is None


def test_a_rank_may_have_its_only_gpu_to_itself(machine) -> None:
    assert gpus_here.one_for_each_rank({"CUDA_VISIBLE_DEVICES": "2"}, root=machine())
    assert not gpus_here.one_for_each_rank({}, root=machine("dev/nvidia0"))
    assert gpus_here.one_for_each_rank({}, root=machine("dev/nvidia3"))
