"""GPU links and power from the driver through NVML; None with a reason for missing values."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ...contract.machine import Links, NvLink, Pcie, Peer

try:
    import pynvml
except ImportError:
    pynvml = None

_MISSING = "the package nvidia-ml-py is not installed"
_NVLINK_MAX_LINKS = 18  # Hopper and Blackwell; numbers beyond a GPU's own links give an error, and are skipped
# nvmlGpuTopologyLevel_t: how far two GPUs of a host are apart, in nvidia-smi's words.
_TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class _UnavailableError(Exception):
    """NVML cannot be used; the message is the reason."""


def driver_version(library: Any = pynvml) -> str | None:
    """Version of the NVIDIA driver; None without one."""
    try:
        with _session(library):
            return _text(library.nvmlSystemGetDriverVersion())
    except _UnavailableError:
        return None


@dataclass(frozen=True)
class DriverFacts:
    """Number of NVIDIA GPUs, and the newest CUDA that the driver supports (`cuda`)."""

    gpus: int
    driver: str | None
    cuda: str | None


def driver_facts(library: Any = pynvml) -> DriverFacts | None:
    """Facts about the driver; None if NVML does not work."""
    try:
        with _session(library):
            count = _optional(library, library.nvmlDeviceGetCount)
            cuda = _optional(library, library.nvmlSystemGetCudaDriverVersion)
            driver = _optional(library, library.nvmlSystemGetDriverVersion)
    except _UnavailableError:
        return None
    driver = None if driver is None else _text(driver)
    return DriverFacts(count or 0, driver, None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}")


def links(uuid: str | None, library: Any = pynvml) -> tuple[Links | None, str | None]:
    """NVLink, PCIe and distances to the host's other GPUs of the GPU `uuid`; or None and the reason.

    Only NVLink links that are up count; `version` is the NVLink version as NVML numbers it.
    """
    if uuid is None:
        return None, "not a CUDA device"
    try:
        with _session(library):
            handle = _required(library, lambda: library.nvmlDeviceGetHandleByUUID(uuid), f"GPU {uuid}")
            facts = Links(_nvlink(library, handle), _pcie(library, handle), _peers(library, handle, uuid))
    except _UnavailableError as err:
        return None, str(err)
    return facts, None


@dataclass(frozen=True)
class Sensors:
    """One GPU's energy since the driver was loaded in mJ, and power in mW; None if it has no such sensor."""

    energy_mj: Callable[[], int | None]
    power_mw: Callable[[], int | None]


@contextmanager
def sensors(uuid: str, library: Any = pynvml) -> Iterator[tuple[Sensors | None, str | None]]:
    """Yield the sensors of the GPU `uuid` for the block; or None and the reason."""
    readers: Sensors | None = None
    reason: str | None = None
    with ExitStack() as stack:
        try:
            stack.enter_context(_session(library))
            handle = _required(library, lambda: library.nvmlDeviceGetHandleByUUID(uuid), f"GPU {uuid}")
        except _UnavailableError as err:
            reason = str(err)
        else:
            readers = Sensors(
                lambda: _optional(library, lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle)),
                lambda: _optional(library, lambda: library.nvmlDeviceGetPowerUsage(handle)),
            )
        yield readers, reason


Ask = Callable[..., Any]
"""The answer of a function of NVML, by its name, about one GPU; None where it has none."""


@contextmanager
def asking(uuid: str, library: Any = pynvml) -> Iterator[Ask | None]:
    """Yield a function that queries NVML about the GPU `uuid` for the block; None if impossible."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_session(library))
            handle = _required(library, lambda: library.nvmlDeviceGetHandleByUUID(uuid), f"GPU {uuid}")
        except _UnavailableError:
            yield None
        else:
            yield lambda name, *args: _optional(library, lambda: getattr(library, name)(handle, *args))


@contextmanager
def _session(library: Any) -> Iterator[None]:
    if library is None:
        raise _UnavailableError(_MISSING)
    _required(library, library.nvmlInit, "NVML")
    try:
        yield
    finally:
        _optional(library, library.nvmlShutdown)


def _required(library: Any, call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except library.NVMLError as err:
        raise _UnavailableError(f"{what}: {err}") from err


def _optional(library: Any, call: Callable[..., Any], *args: Any) -> Any:
    """The answer; None if this GPU, driver or NVML has none."""
    try:
        return call(*args)
    except (library.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _nvlink(library: Any, handle: Any) -> NvLink:
    states = [_optional(library, library.nvmlDeviceGetNvLinkState, handle, link) for link in range(_NVLINK_MAX_LINKS)]
    up = [link for link, state in enumerate(states) if state]
    versions = {_optional(library, library.nvmlDeviceGetNvLinkVersion, handle, link) for link in up} - {None}
    present = sum(state is not None for state in states)
    return NvLink(links=len(up), links_present=present, version=max(versions, default=None), states=states)


def _pcie(library: Any, handle: Any) -> Pcie:
    ask = {
        "generation": library.nvmlDeviceGetCurrPcieLinkGeneration,
        "width": library.nvmlDeviceGetCurrPcieLinkWidth,
        "max_generation": library.nvmlDeviceGetMaxPcieLinkGeneration,
        "max_width": library.nvmlDeviceGetMaxPcieLinkWidth,
    }
    return Pcie(**{name: _optional(library, call, handle) for name, call in ask.items()})


def _peers(library: Any, handle: Any, uuid: str) -> list[Peer]:
    peers = []
    for index in range(_optional(library, library.nvmlDeviceGetCount) or 0):
        other = _optional(library, library.nvmlDeviceGetHandleByIndex, index)
        other_uuid = _optional(library, library.nvmlDeviceGetUUID, other) if other is not None else None
        if other_uuid is None or _text(other_uuid) == uuid:
            continue
        level = _optional(library, library.nvmlDeviceGetTopologyCommonAncestor, handle, other)
        p2p = _optional(library, library.nvmlDeviceGetP2PStatus, handle, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
        linked = None if p2p is None else p2p == library.NVML_P2P_STATUS_OK
        peers.append(Peer(uuid=_text(other_uuid), topology=_TOPOLOGY.get(level, level), nvlink=linked))
    return peers
