"""State of a GPU at one moment: clock, what throttles it, temperature, and bytes carried by its NVLinks."""

import time
from typing import Any

from ...contract.machine import End, GpuState
from . import nvml

try:
    import pynvml
except ImportError:
    pynvml = None

# nvmlClocksEventReasons, NVML API Reference; what is left out is no slowdown (idle), or what the user asked for.
_REASONS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "slowest GPU of a group that share a clock",
    "SwThermalSlowdown": "temperature (software)",
    "HwThermalSlowdown": "temperature (hardware)",
    "HwPowerBrakeSlowdown": "power brake of the machine",
}
_ALL_LINKS = 0xFFFFFFFF  # a counter's scope: the sum of all links
_COUNTER_BYTES = 1024


def gpu_state(uuid: str | None, at: End, library: Any = pynvml) -> GpuState | None:
    """The state of the GPU `uuid` from NVML; None without NVML."""
    if uuid is None:
        return None
    with nvml.asking(uuid, library) as ask:
        if ask is None:
            return None
        sent, received = _carried_bytes(ask, library)
        return GpuState(
            at=at,
            unix_ns=time.time_ns(),
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", getattr(library, "NVML_CLOCK_SM", 1)),
            slowed_by=_slowed_by(ask("nvmlDeviceGetCurrentClocksEventReasons"), library),
            temperature_c=ask("nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0)),
            nvlink_sent_bytes=sent,
            nvlink_received_bytes=received,
        )


def _slowed_by(bits: int | None, library: Any) -> list[str] | None:
    if bits is None:
        return None
    return [words for name, words in _REASONS.items() if bits & getattr(library, f"nvmlClocksEventReason{name}", 0)]


def _carried_bytes(ask: nvml.Ask, library: Any) -> tuple[int | None, int | None]:
    """Bytes that all links together have sent and received since the driver was loaded."""
    fields = [
        getattr(library, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{way}", None) for way in ("TX", "RX")
    ]  # in KiB, without protocol overhead
    if None in fields:
        return None, None
    values = ask("nvmlDeviceGetFieldValues", [(field, _ALL_LINKS) for field in fields])
    if values is None or any(value.nvmlReturn for value in values):
        return None, None
    sent, received = (int(value.value.ullVal) * _COUNTER_BYTES for value in values)
    return sent, received
