"""What turns PyTorch's flight recorder on, and where its dumps go: environment variables. Knows no torch.

torch reads them when process groups are made, the place when it dumps. What the user has set stays. The names are those
since torch 2.8; newer ones warn of the older names.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

DUMP_PREFIX = "flight_recorder_rank_"
"""The rank follows: torch appends it to what TORCH_FR_DUMP_TEMP_FILE says."""

_RECORDING = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_TIMING": "1",
}


def record_calls(env: MutableMapping[str, str] = os.environ) -> None:
    """Let process groups that are made from now on record their calls, with times, and dump them on a timeout."""
    for name, value in _RECORDING.items():
        env.setdefault(name, value)


def keep_dumps_in(run_dir: Path, env: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's own dumps go to the run directory."""
    env.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(run_dir.absolute() / DUMP_PREFIX))
