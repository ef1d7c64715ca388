"""Power through a stand-in for NVML, with a clock that `work` moves on."""

from types import SimpleNamespace
from typing import Any

import pytest

from commtrace.profiling.machine.power import Power, power


class FakeNVMLError(Exception):
    pass


def no_answer(*args: object) -> None:
    raise FakeNVMLError("Not Supported")


class Gpu:
    """Draws `watts[0]` W in the first second, and then the next ones, 0.25 s at a time."""

    def __init__(self, *watts: float, **changes: object) -> None:
        self.now_s = 100.0
        self._energy_mj = 5_000
        self._watts = watts
        answers: dict[str, object] = {
            "NVMLError": FakeNVMLError,
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: "gpu" if uuid == "GPU-0" else no_answer(),
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self._energy_mj,
            "nvmlDeviceGetPowerUsage": lambda handle: round(self._drawn() * 1e3),
        }
        self.library = SimpleNamespace(**{**answers, **changes})

    def work(self) -> None:
        self._energy_mj += round(self._drawn() * 250)
        self.now_s += 0.25

    def _drawn(self) -> float:
        return self._watts[min(int(self.now_s - 100), len(self._watts) - 1)]

    def asked(self, at_least_s: float, uuid: str | None = "GPU-0") -> Power:
        return power(uuid, self.work, at_least_s, library=self.library, now_s=lambda: self.now_s)


def test_energy_over_time() -> None:
    assert Gpu(100.0, 300.0).asked(2.0) == Power(200.0, "energy")


def test_readings_where_there_is_no_energy_counter() -> None:
    gpu = Gpu(100.0, 300.0, 300.0, nvmlDeviceGetTotalEnergyConsumption=no_answer)
    assert gpu.asked(3.0) == Power(300.0, "readings"), "without the first second"


def test_short_work_is_measured_once() -> None:
    found = Gpu(100.0).asked(0.1)
    assert found == Power(100.0, "energy")


@pytest.mark.parametrize(
    ("uuid", "changes", "reason"),
    [
        (None, {}, "NVML knows NVIDIA GPUs only: not a CUDA device"),
        ("GPU-0", {"nvmlInit": no_answer}, "NVML: Not Supported"),
        ("GPU-9", {}, "GPU GPU-9: Not Supported"),
        (
            "GPU-0",
            {"nvmlDeviceGetTotalEnergyConsumption": no_answer, "nvmlDeviceGetPowerUsage": no_answer},
            "this GPU or its driver reports neither energy nor power to NVML",
        ),
    ],
)
def test_what_is_missing_has_a_reason(uuid, changes: dict[str, Any], reason) -> None:
    assert Gpu(100.0, **changes).asked(0.5, uuid) == Power(None, reason=reason)


def test_without_the_package() -> None:
    found = power("GPU-0", lambda: None, 0.1, library=None)
    assert found == Power(None, reason="the package nvidia-ml-py is not installed")
