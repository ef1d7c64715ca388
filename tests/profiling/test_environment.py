import json

import torch

from commtrace.contract.record import content
from commtrace.profiling.machine import environment


def test_versions_of_a_machine_without_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    versions = environment.versions()
    assert versions.torch == torch.__version__
    assert versions.nccl is None
    json.dumps(content(versions))


def test_machine_and_cpu_device() -> None:
    machine = environment.machine()
    assert machine.cores >= machine.usable_cores >= 1
    assert machine.memory_bytes > 1 << 28
    device = environment.device(torch.device("cpu"))
    assert (device.type, device.index, device.uuid) == ("cpu", None, None)


def test_missing_package_is_none(monkeypatch) -> None:
    def missing(name: str) -> str:
        raise environment.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment.metadata, "version", missing)
    assert environment.versions().torchvision is None


def test_settings_are_those_of_communication_only() -> None:
    env = {
        "NCCL_ALGO": "Ring",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "1",
        "SECRET_TOKEN": "x",
        "PATH": "/",
    }
    assert environment.settings(env) == {"CUDA_VISIBLE_DEVICES": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring"}
