"""Versions, machine, device and links: what a file says about where it was made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from .limits import Count, FromZero
from .record import Doc, Needed, People

Settings: TypeAlias = Mapping[str, str]
"""Environment variables by name."""
End = Literal["start", "end"]
"""Of a capture."""


@dataclass(frozen=True)
class Versions:
    """Versions of everything between the script and the hardware; null for what is not installed."""

    python: Annotated[str, People("version of Python")]
    torch: Annotated[str | None, Doc("version of torch", always=True)]
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
    """The machine that a process runs on."""

    host: Annotated[str, People("host name")]
    boot_id: Annotated[
        str | None, Doc("Linux's boot id: the same in all containers of a machine, and another one after a reboot")
    ]
    cpu: Annotated[str | None, People("name of the CPU")]
    cores: Annotated[int | None, People("logical cores")]
    usable_cores: Annotated[Count | None, Doc("cores that this process may use")]
    threads: Annotated[int, People("threads that torch uses within an operator")]
    memory_bytes: Annotated[int | None, People("memory of the machine")]


@dataclass(frozen=True)
class Device:
    """The device of one rank."""

    type: Annotated[str | None, Doc("`cpu` or `cuda`", always=True)]
    index: Annotated[int | None, Doc("CUDA ordinal in this process; null on CPU")]
    name: Annotated[str | None, Doc("name of the GPU, or of the CPU")]
    uuid: Annotated[str | None, Doc("UUID of the GPU; null on CPU")]
    memory_bytes: Annotated[int | None, People("memory of the GPU, or of the machine if the device is its CPU")]
    compute_capability: Annotated[str | None, People("compute capability of the GPU, such as `9.0`", may_lack=True)] = (
        None
    )
    multiprocessors: Annotated[int | None, People("number of streaming multiprocessors of the GPU", may_lack=True)] = (
        None
    )


@dataclass(frozen=True)
class Numerics:
    """Switches of torch that trade precision or reproducibility for speed."""

    matmul_precision: Annotated[str, People("of float32: `highest`; `high` and `medium` may use TF32 or bfloat16")]
    cudnn_allow_tf32: Annotated[bool, People("whether convolutions may use TF32")]
    cudnn_benchmark: Annotated[bool, People("whether cuDNN tries algorithms and takes the fastest")]
    cudnn_deterministic: Annotated[bool, People("whether cuDNN must be reproducible")]
    deterministic_algorithms: Annotated[bool, People("whether all of torch must be")]


@dataclass(frozen=True)
class GpuState:
    """A GPU at one end of a capture; null for what the driver does not report."""

    at: Annotated[End, Needed("which end")]
    unix_ns: Annotated[int, People("when, on the host's clock")]
    sm_clock_mhz: Annotated[FromZero | None, Doc("clock of its multiprocessors", unit="MHz")]
    slowed_by: Annotated[Sequence[str] | None, Doc("what held the clock down: power, temperature, ...")]
    temperature_c: Annotated[FromZero | None, Doc("temperature of the chip", unit="C")]
    nvlink_sent_bytes: Annotated[FromZero | None, Doc("what its NVLinks have sent since the driver was loaded")]
    nvlink_received_bytes: Annotated[int | None, People("what they have received")]


@dataclass(frozen=True)
class NvLink:
    """The NVLink connections of a GPU."""

    links: Annotated[int, People("number of links that are up")]
    links_present: Annotated[int, People("number of links that the GPU has")]
    version: Annotated[int | None, People("NVLink version, as NVML numbers it")]
    states: Annotated[
        Sequence[int | None], People("one entry per link number: 1 for up, 0 for down, null if there is no such link")
    ]


@dataclass(frozen=True)
class Pcie:
    """The PCIe connection of a GPU; null for what the driver does not report."""

    generation: Annotated[int | None, People("generation in use")]
    width: Annotated[int | None, People("lanes in use")]
    max_generation: Annotated[int | None, People("highest generation that GPU and slot support")]
    max_width: Annotated[int | None, People("most lanes that GPU and slot support")]


@dataclass(frozen=True)
class Peer:
    """Another GPU of the same host."""

    uuid: Annotated[str, People("UUID of that GPU")]
    topology: Annotated[str | int | None, People("the path to it, in nvidia-smi's terms: PIX, PXB, PHB, NODE or SYS")]
    nvlink: Annotated[bool | None, People("whether NVLink connects the two GPUs")]


@dataclass(frozen=True)
class Links:
    """How a GPU is connected."""

    nvlink: Annotated[NvLink, People("NVLink")]
    pcie: Annotated[Pcie, People("PCIe")]
    peers: Annotated[Sequence[Peer], People("the other GPUs of the host")]
