"""Links through a stand-in for NVML: two GPUs, twelve NVLink links of which eleven are up, one switch apart."""

from types import SimpleNamespace

import pytest

from commtrace.contract.machine import Pcie, Peer
from commtrace.profiling.machine import nvml

UUIDS = {"gpu0": "GPU-0000", "gpu1": "GPU-1111"}


class FakeNVMLError(Exception):
    pass


def no_answer(*args: object) -> None:
    raise FakeNVMLError("Not Supported")


def link_state(handle: str, link: int) -> int:
    if link >= 12:
        raise FakeNVMLError("Invalid Argument")
    return int(link != 5)


def by_uuid(uuid: str) -> str:
    found = [handle for handle, known in UUIDS.items() if known == uuid]
    return found[0] if found else no_answer()


def library(**changes: object) -> SimpleNamespace:
    answers = {
        "NVMLError": FakeNVMLError,
        "NVML_P2P_CAPS_INDEX_NVLINK": 2,
        "NVML_P2P_STATUS_OK": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.54.15",
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetNvLinkState": link_state,
        "nvmlDeviceGetNvLinkVersion": lambda handle, link: 3,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 4,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 4,
        "nvmlDeviceGetMaxPcieLinkWidth": no_answer,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetUUID": lambda handle: UUIDS[handle],
        "nvmlDeviceGetTopologyCommonAncestor": lambda handle, other: 10,
        "nvmlDeviceGetP2PStatus": lambda handle, other, index: 0,
    }
    return SimpleNamespace(**{**answers, **changes})


def test_links_of_a_gpu() -> None:
    links, reason = nvml.links("GPU-0000", library())
    assert reason is None
    assert (links.nvlink.links, links.nvlink.links_present, links.nvlink.version) == (11, 12, 3)
    assert links.pcie == Pcie(generation=4, width=16, max_generation=4, max_width=None)
    assert links.peers == [Peer(uuid="GPU-1111", topology="PIX", nvlink=True)]
    assert nvml.driver_version(library()) == "550.54.15"


def test_gpu_without_nvlink() -> None:
    links, _ = nvml.links("GPU-0000", library(nvmlDeviceGetNvLinkState=no_answer, nvmlDeviceGetP2PStatus=no_answer))
    assert (links.nvlink.links, links.nvlink.version) == (0, None)
    assert links.peers[0].nvlink is None


@pytest.mark.parametrize(
    ("uuid", "changes", "reason"),
    [
        (None, {}, "not a CUDA device"),
        ("GPU-0000", {"nvmlInit": no_answer}, "NVML: Not Supported"),
        ("GPU-2222", {}, "GPU GPU-2222: Not Supported"),
    ],
)
def test_what_is_missing_has_a_reason(uuid, changes, reason) -> None:
    assert nvml.links(uuid, library(**changes)) == (None, reason)


def test_without_the_package() -> None:
    assert nvml.links("GPU-0000", None) == (None, "the package nvidia-ml-py is not installed")
    assert nvml.driver_version(None) is None


def test_the_real_library_never_raises() -> None:
    assert isinstance(nvml.driver_version(), str | None)
    links, reason = nvml.links("GPU-of-nobody")
    assert links is None
    assert reason
