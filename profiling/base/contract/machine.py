"""Versions, machine, device and links: what a file says of where it was made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from .fields import Doc, People

Settings: TypeAlias = Mapping[str, str]
"""Environment variables by name."""


@dataclass(frozen=True)
class Versions:
    """Versions of everything between the script and the hardware; None where there is no such thing."""

    python: Annotated[str, People("version of Python")]
    torch: Annotated[str, Doc("version of torch")]
    torchvision: Annotated[str | None, People("version of torchvision")]
    pytorch_optimizer: Annotated[str | None, People("version of pytorch_optimizer")]
    cuda: Annotated[str | None, People("version of CUDA that torch was built with")]
    hip: Annotated[str | None, People("version of HIP that torch was built with")]
    cudnn: Annotated[str | None, People("version of cuDNN")]
    nccl: Annotated[str | None, People("version of NCCL")]
    driver: Annotated[str | None, People("version of the NVIDIA driver")]
    kernel: Annotated[str, People("release of the operating system's kernel")]


@dataclass(frozen=True)
class Machine:
    """The machine of a process."""

    host: Annotated[str, People("its host name")]
    boot_id: Annotated[
        str | None, Doc("an id that Linux makes when it boots: it is the same in all containers of one machine")
    ]
    cpu: Annotated[str | None, People("name of the CPU")]
    cores: Annotated[int | None, People("logical cores")]
    usable_cores: Annotated[int | None, People("cores that this process may use")]
    threads: Annotated[int, People("threads that torch uses for one operator")]
    memory_bytes: Annotated[int | None, People("memory of the machine")]


@dataclass(frozen=True)
class Device:
    """The device of one rank."""

    type: Annotated[str, People("`cpu` or `cuda`")]
    index: Annotated[int | None, Doc("CUDA ordinal in this process; null on CPU")]
    name: Annotated[str | None, Doc("name of the GPU, or of the CPU")]
    uuid: Annotated[str | None, People("what names a GPU on its host; null on CPU")]
    memory_bytes: Annotated[int | None, People("memory of the GPU, or of the machine")]
    compute_capability: Annotated[str | None, People("of a GPU, as in `9.0`", may_lack=True)] = None
    multiprocessors: Annotated[int | None, People("streaming multiprocessors of a GPU", may_lack=True)] = None


@dataclass(frozen=True)
class NvLink:
    """NVLink of one GPU."""

    links: Annotated[int, People("links that are up")]
    links_present: Annotated[int, People("links that the GPU has")]
    version: Annotated[int | None, People("NVML's number of the NVLink generation")]
    states: Annotated[Sequence[int | None], People("1 for each link that is up, 0 for one that is down, null for none")]


@dataclass(frozen=True)
class Pcie:
    """PCIe of one GPU; null where the driver does not say."""

    generation: Annotated[int | None, People("generation in use")]
    width: Annotated[int | None, People("lanes in use")]
    max_generation: Annotated[int | None, People("highest generation that GPU and slot have")]
    max_width: Annotated[int | None, People("most lanes that GPU and slot have")]


@dataclass(frozen=True)
class Peer:
    """Another GPU of the same host."""

    uuid: Annotated[str, People("what names that GPU")]
    topology: Annotated[str | int | None, People("how far away it is, in nvidia-smi's words: PIX, PXB, PHB, NODE, SYS")]
    nvlink: Annotated[bool | None, People("whether NVLink connects the two")]


@dataclass(frozen=True)
class Links:
    """What connects a GPU."""

    nvlink: Annotated[NvLink, People("NVLink")]
    pcie: Annotated[Pcie, People("PCIe")]
    peers: Annotated[Sequence[Peer], People("the other GPUs of the host")]
