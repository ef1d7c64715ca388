"""The state of a GPU through a stand-in for NVML."""

from types import SimpleNamespace

import pytest
from capturing import metas, three

from commtrace.profiling.machine.gpu_state import gpu_state
from commtrace.profiling.sessions import record


class FakeNVMLError(Exception):
    pass


def no_answer(*args: object) -> None:
    raise FakeNVMLError("Not Supported")


def counted(handle: str, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
    assert all(scope == 0xFFFFFFFF for _, scope in fields)
    kib = {138: 1000, 139: 2000}
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=kib[field])) for field, _ in fields]


def library(**changes: object) -> SimpleNamespace:
    answers = {
        "NVMLError": FakeNVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
        "nvmlClocksEventReasonSwPowerCap": 4,
        "nvmlClocksEventReasonHwThermalSlowdown": 64,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: "gpu" if uuid == "GPU-0" else no_answer(),
        "nvmlDeviceGetClockInfo": lambda handle, which: 1155,
        "nvmlDeviceGetTemperature": lambda handle, which: 87,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 64 | 1,
        "nvmlDeviceGetFieldValues": counted,
    }
    return SimpleNamespace(**{name: answer for name, answer in {**answers, **changes}.items() if answer is not None})


def test_all_that_nvml_tells() -> None:
    found = gpu_state("GPU-0", "start", library())
    assert (found.at, found.sm_clock_mhz, found.temperature_c) == ("start", 1155, 87)
    assert found.slowed_by == ["temperature (hardware)"]
    assert (found.nvlink_sent_bytes, found.nvlink_received_bytes) == (1_024_000, 2_048_000)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("nvmlDeviceGetFieldValues", no_answer),
        ("nvmlDeviceGetFieldValues", None),
        ("nvmlDeviceGetFieldValues", lambda *_: [SimpleNamespace(nvmlReturn=3)] * 2),
        ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", None),
    ],
)
def test_gpus_without_counters_of_links(name, answer) -> None:
    found = gpu_state("GPU-0", "end", library(**{name: answer}))
    assert (found.nvlink_sent_bytes, found.temperature_c) == (None, 87)


def test_what_a_driver_does_not_tell_is_not_known() -> None:
    asked = ("nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksEventReasons")
    found = gpu_state("GPU-0", "end", library(**dict.fromkeys(asked, no_answer)))
    assert (found.sm_clock_mhz, found.temperature_c, found.slowed_by) == (None, None, None)


@pytest.mark.parametrize("uuid", [None, "GPU-1"])
def test_without_such_a_gpu_there_is_no_state(uuid) -> None:
    assert gpu_state(uuid, "start", library()) is None
    assert gpu_state("GPU-0", "start", None) is None


def test_a_capture_has_the_state_at_both_ends(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(record, "gpu_state", lambda uuid, at: gpu_state("GPU-0", at, library()))
    with three(tmp_path, device="cpu") as session:
        session.step()
    assert [state["at"] for state in metas(tmp_path)[0]["gpu_states"]] == ["start", "end"]
