"""Record the memory of a CUDA device: peaks of each step, and a snapshot of torch's allocator."""

import pickle
from contextlib import suppress
from pathlib import Path

import torch

from ...common import disk
from ...contract.rank import StepMemory
from ..base import run_directory as rundir
from ..base.torch_private import allocator_snapshot, record_allocations
from ..machine.memory import exhausted, first_line

MOST_ENTRIES = 100_000
"""Of the allocator's history, the newest ones: with stacks torch needs some KB of host memory for each."""


class MemoryRecord:
    """Records from `start` to `stop`. Nothing that fails here is an error of the training.

    `steps` are the peaks of all finished steps, `name` is the file of the snapshot, None while there is none, and
    `reason` why it could not be written, or that it is of an error; `is_recording` is set in between. The device's own
    peaks are reset with each step.
    """

    def __init__(self, run_dir: Path, rank: int, device: torch.device) -> None:
        self._path = run_dir / rundir.memory_snapshot_name(rank)
        self.is_recording = False
        self._device = device
        self.steps: list[StepMemory] = []
        self.name: str | None = None
        self.reason: str | None = None

    def start(self) -> None:
        """Begin to record the allocator's history."""
        try:
            record_allocations(MOST_ENTRIES)
            self.is_recording = True
            torch.cuda.reset_peak_memory_stats(self._device)
        except (AttributeError, RuntimeError, TypeError) as err:
            self.reason = f"torch could not record its allocator: {first_line(err)}"

    def look(self, step: int) -> None:
        """Note the peaks of a step that has ended, and begin those of the next."""
        with suppress(RuntimeError):  # of a device that has failed
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
            reserved_bytes = torch.cuda.memory_reserved(self._device)
            self.steps.append(
                StepMemory(
                    step=step,
                    peak_allocated_bytes=torch.cuda.max_memory_allocated(self._device),
                    peak_reserved_bytes=torch.cuda.max_memory_reserved(self._device),
                    outside_bytes=max(0, total_bytes - free_bytes - reserved_bytes),
                    device_bytes=total_bytes,
                )
            )
            self.reset()

    def reset(self) -> None:
        """Begin the peaks of the next step, as those of this one are not wanted."""
        with suppress(RuntimeError):
            torch.cuda.reset_peak_memory_stats(self._device)

    def write(self) -> None:
        """Write a snapshot of the allocator and its history, in place of an earlier one."""
        try:
            content = allocator_snapshot()
            with disk.replacing(self._path, mode=disk.permissions(self._path)) as file:
                pickle.dump(content, file)
            self.name = self._path.name
        except OSError as err:
            self.reason = f"{self._path.name} cannot be written: {err.strerror}"
        except (AttributeError, MemoryError, RuntimeError) as err:
            self.reason = f"torch gave no snapshot of its allocator: {first_line(err)}"

    def stop(self, error: BaseException | None) -> None:
        """End. If memory ran out, write a snapshot first: the history holds the request that failed."""
        if error is not None and exhausted(error):
            self.write()
            self.reason = self.reason or f"the snapshot is of {type(error).__name__}: {first_line(error)}"
        if self.is_recording:
            self.is_recording = False
            with suppress(RuntimeError):
                record_allocations(None)
