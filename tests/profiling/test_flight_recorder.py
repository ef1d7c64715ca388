"""What turns the flight recorder on, and when what it holds is written."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from commtrace.profiling.base import torch_private
from commtrace.profiling.base.flight_recorder import keep_dumps_in, record_calls
from commtrace.profiling.errors import CaptureError
from commtrace.profiling.sessions import flight_recorder
from commtrace.profiling.sessions.flight_recorder import FlightRecorder


class Recorder:
    """A flight recorder of torch, played."""

    def __init__(self, issued: int = 1, done: int = 0) -> None:
        self.issued, self.done = issued, done

    def dump(self) -> bytes:
        return f"{self.issued} {self.done}".encode()

    def state(self) -> bytes:
        status = {"last_enqueued_collective": str(self.issued), "last_completed_collective": str(self.done)}
        return json.dumps({"pg_status": {"0": status}}).encode()


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Those of this torch, to be filled."""
    found: list[Recorder] = []
    monkeypatch.setattr(flight_recorder, "flight_recorders", lambda: found)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "")
    return found


@pytest.fixture
def recorder(recorders: list[Recorder]) -> Recorder:
    recorders.append(Recorder())
    return recorders[0]


def written(folder: Path) -> str | None:
    file = folder / "flight_recorder_rank_3"
    return file.read_text() if file.exists() else None


def until_written(folder: Path, content: str) -> bool:
    end = time.monotonic() + 20
    while written(folder) != content and time.monotonic() < end:
        time.sleep(0.01)
    return written(folder) == content


def test_a_rank_that_stands_still_is_dumped_before_it_ends(recorder: Recorder, tmp_path: Path) -> None:
    watched = FlightRecorder(tmp_path, 3, still_s=0.05, look_every_s=0.01)
    watched.start()
    assert until_written(tmp_path, "1 0")
    recorder.done = 1  # it failed, and looks done
    watched.stop(failed=True)
    assert written(tmp_path) == "1 0"


def test_what_was_issued_meanwhile_is_worth_more(recorder: Recorder, tmp_path: Path) -> None:
    watched = FlightRecorder(tmp_path, 3, still_s=0.05, look_every_s=0.01)
    watched.start()
    assert until_written(tmp_path, "1 0")
    recorder.issued = recorder.done = 2
    watched.stop(failed=True)
    assert written(tmp_path) == "2 2"


def test_the_end_of_a_session_is_dumped(recorder: Recorder, tmp_path: Path) -> None:
    watched = FlightRecorder(tmp_path, 3)
    assert written(tmp_path) is None
    watched.stop(failed=False)
    assert written(tmp_path) == "1 0"


def test_a_rank_about_to_be_freed_keeps_what_it_waits_for(recorder: Recorder, tmp_path: Path) -> None:
    watched = FlightRecorder(tmp_path, 3)
    watched.keep()
    recorder.done = 1
    watched.stop(failed=True)
    assert written(tmp_path) == "1 0"


def test_a_folder_that_cannot_be_written_to_ends_nothing(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FlightRecorder(tmp_path / "gone", 3).stop(failed=False)
    assert "flight_recorder_rank_3: cannot be written" in capsys.readouterr().err


def test_that_of_the_backend_which_is_waited_for_is_dumped(recorders: list[Recorder], tmp_path: Path) -> None:
    """With a torch for GPUs, that of NCCL is there and empty where gloo hangs, and that of gloo where NCCL hangs."""
    nccl, others = Recorder(7, 7), Recorder(-1, -1)
    recorders += [nccl, others]
    watching = FlightRecorder(tmp_path, rank=3)
    watching.dump()
    assert written(tmp_path) == "7 7"
    others.issued, others.done = 3, 2
    watching.dump()
    assert written(tmp_path) == "3 2"
    nccl.issued = 8
    watching.keep()
    assert written(tmp_path) == "8 7"
    nccl.done = others.done = 9
    watching.stop(failed=True)  # nothing was issued meanwhile: failed calls look done
    assert written(tmp_path) == "8 7"


def test_recorders_of_torch_are_found_whichever_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    c10d = torch._C._distributed_c10d
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        for suffix in ("", "_json"):
            monkeypatch.delattr(c10d, name + suffix, raising=False)
    assert torch_private.flight_recorders() == []
    monkeypatch.setattr(c10d, "_dump_fr_trace", lambda: b"others", raising=False)
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda collectives, active: b"{}", raising=False)
    assert [one.dump() for one in torch_private.flight_recorders()] == [b"others"]
    monkeypatch.setattr(c10d, "_dump_nccl_trace", lambda: b"nccl", raising=False)
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda collectives, active: b"{}", raising=False)
    assert [one.dump() for one in torch_private.flight_recorders()] == [b"nccl", b"others"]


def test_a_torch_without_one_is_an_error(recorders: list[Recorder], tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="leave out --flight-recorder"):
        FlightRecorder(tmp_path, 0)


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    env = {"TORCH_FR_BUFFER_SIZE": "7"}
    record_calls(env)
    keep_dumps_in(tmp_path, env)
    assert env == {
        "TORCH_FR_BUFFER_SIZE": "7",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "flight_recorder_rank_"),
    }
    keep_dumps_in(tmp_path / "other", env)
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "flight_recorder_rank_")
