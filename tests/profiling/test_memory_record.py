"""Memory of a CUDA device, which is played: peaks of each step, snapshots, and what a failure leaves."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from allocator import MIB, Allocator, OutOfMemory, called, snapshot
from capturing import ROOT, SCRIPTS

from commtrace import step as end_step
from commtrace.analysis.formats.snapshots.snapshot import read_snapshot
from commtrace.profiling.base import torch_private
from commtrace.profiling.base.detail import Detail
from commtrace.profiling.capture import capture
from commtrace.profiling.errors import UsageError
from commtrace.profiling.sessions import memory_record
from commtrace.profiling.sessions.memory_record import MOST_ENTRIES, MemoryRecord
from commtrace.profiling.sessions.session import Session

CUDA = torch.device("cuda", 0)
_TOTAL, _OUTSIDE = 400 * MIB, 9 * MIB


class Device:
    """A CUDA device and torch's allocator on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocator = Allocator(capacity=100 * MIB)
        self.recorded: list[int | None] = []
        self.since = 0
        monkeypatch.setattr(memory_record, "record_allocations", self.recorded.append)
        monkeypatch.setattr(memory_record, "allocator_snapshot", lambda: snapshot(self.allocator))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak(0))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.peak(2))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.allocator.total[2])
        monkeypatch.setattr(
            torch.cuda, "mem_get_info", lambda device: (_TOTAL - _OUTSIDE - self.allocator.total[2], _TOTAL)
        )

    def reset(self, device: torch.device) -> None:
        self.since = len(self.allocator.totals)
        self.begun = self.allocator.total

    def peak(self, which: int) -> int:
        return max(total[which] for total in (self.begun, *self.allocator.totals[self.since :]))

    def step(self, size: int) -> None:
        self.allocator.free(self.allocator.malloc(size, frames=called("step", 5)))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_peaks_of_each_step_and_a_snapshot(device: Device, tmp_path: Path) -> None:
    record = MemoryRecord(tmp_path, 3, CUDA)
    record.start()
    for step, size in enumerate((30 * MIB, 8 * MIB)):
        device.step(size)
        record.look(step)
    record.write()
    record.stop(None)
    assert device.recorded == [MOST_ENTRIES, None]
    assert [(one.step, one.peak_allocated_bytes) for one in record.steps] == [(0, 30 * MIB), (1, 8 * MIB)]
    assert [one.outside_bytes for one in record.steps] == [_OUTSIDE] * 2
    assert [one.device_bytes for one in record.steps] == [_TOTAL] * 2
    assert (record.name, record.reason) == ("memory_snapshot_rank_3.pickle", None)
    assert max(read_snapshot(tmp_path / "memory_snapshot_rank_3.pickle").devices[0].entries.size) == 30 * MIB


def test_running_out_of_memory_leaves_a_snapshot_of_it(device: Device, tmp_path: Path) -> None:
    record = MemoryRecord(tmp_path, 0, CUDA)
    record.start()
    with pytest.raises(OutOfMemory):
        device.step(200 * MIB)
    record.stop(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 MiB.\nmore"))
    assert record.reason == "the snapshot is of OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB."
    content = pickle.loads((tmp_path / "memory_snapshot_rank_0.pickle").read_bytes())
    assert [one["action"] for one in content["device_traces"][0]] == ["oom"]


def test_another_error_writes_none(device: Device, tmp_path: Path) -> None:
    record = MemoryRecord(tmp_path, 0, CUDA)
    record.start()
    record.stop(ValueError("no"))
    assert list(tmp_path.iterdir()) == []
    assert record.name is None


def test_a_folder_that_takes_nothing_is_only_a_reason(device: Device, tmp_path: Path) -> None:
    record = MemoryRecord(tmp_path / "gone", 0, CUDA)
    record.start()
    record.write()
    assert record.reason == "memory_snapshot_rank_0.pickle cannot be written: No such file or directory"
    assert record.name is None


def test_a_torch_that_cannot_record_is_only_a_reason(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AttributeError("module 'torch.cuda.memory' has no attribute '_record_memory_history'")

    monkeypatch.setattr(memory_record, "record_allocations", refuse)
    monkeypatch.setattr(memory_record, "allocator_snapshot", refuse)
    record = MemoryRecord(tmp_path, 0, CUDA)
    record.start()
    assert record.reason is not None
    assert record.reason.startswith("torch could not record its allocator: ")
    record.write()
    record.stop(None)
    assert record.name is None


def test_a_session_keeps_what_was_recorded(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(session: Session) -> None:
        session._memory = MemoryRecord(session.run_dir, 0, CUDA)
        session._memory.start()

    monkeypatch.setattr(Session, "_begin_memory", begin)
    run = tmp_path / "run"

    @capture(run, wait=1, warmup=0, active=1, memory=True, device="cpu")
    def train() -> None:
        for size in (8 * MIB, 30 * MIB):
            device.step(size)
            end_step()
        with pytest.raises(OutOfMemory):
            device.step(200 * MIB)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        train()
    [side] = (json.loads(path.read_text()) for path in run.glob("*.meta.json"))
    assert side["profiler"]["profile_memory"] is True
    assert [one["peak_allocated_bytes"] for one in side["step_memory"]] == [8 * MIB, 30 * MIB]
    assert side["memory_snapshot"] == "memory_snapshot_rank_0.pickle"
    assert side["memory_snapshot_reason"] == "the snapshot is of OutOfMemoryError: CUDA out of memory."


def test_without_the_option_nothing_is_asked_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    for name in ("record_allocations", "allocator_snapshot"):
        monkeypatch.setattr(torch_private, name, refuse)
        monkeypatch.setattr(memory_record, name, refuse)
    with capture(tmp_path / "run", wait=0, warmup=0, active=1, device="cpu") as session:
        session.step()
    [side] = (json.loads(path.read_text()) for path in (tmp_path / "run").glob("*.meta.json"))
    assert (side["step_memory"], side["memory_snapshot"]) == ([], None)


def test_light_and_memory_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="--light --memory"):
        Detail(light=True, memory=True)


def test_an_older_torch_takes_fewer_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def record(enabled: object, **options: object) -> None:
        if "global_record_annotations" in options:
            raise TypeError("an unexpected keyword argument")
        asked.append({"enabled": enabled, **options})

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    torch_private.record_allocations(7)
    torch_private.record_allocations(None)
    assert asked == [
        {"enabled": "all", "context": "all", "stacks": "python", "max_entries": 7}, {"enabled": None},
    ]  # fmt: skip


@pytest.mark.slow
def test_run_writes_a_snapshot_of_what_fails_after_the_traced_steps(tmp_path: Path) -> None:
    words = ["run", "--memory", "--from-step", "2", "--active", "2", "--out", tmp_path, "--run-name", "run"]
    script = SCRIPTS / "late_out_of_memory.py"
    done = subprocess.run(
        [sys.executable, "-m", "commtrace", *words, script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr
    [side] = (json.loads(path.read_text()) for path in (tmp_path / "run").glob("*.meta.json"))
    assert side["complete"] is True
    assert side["memory_snapshot_reason"].startswith("the snapshot is of OutOfMemoryError: CUDA out of memory.")
    device = read_snapshot(tmp_path / "run" / "memory_snapshot_rank_0.pickle").devices[0]
    assert device.entries.size[-1] == 500 * MIB
