"""Run stages, each in a fresh process, and find whether they fit."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ...contract.single import Try
from ..errors import MeasurementError
from ..machine import memory
from ..ranks import launch
from .config import Share
from .stage import Stage, stage_command

_POLL_S = 0.02
# The longer a program runs, the more freed memory glibc's malloc keeps: a stack that fits would no longer fit some
# steps later. With a fixed threshold, larger blocks are returned to the system at once.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}


@dataclass(frozen=True)
class _Ended:
    """A finished process: its exit code, negative after a signal, and its stdout and stderr.

    `code` is None if we ended it because another one did not fit or failed.
    """

    code: int | None
    said: Mapping[str, Any] | None
    errors: str


def run_stages(stages: Sequence[Stage]) -> Try:
    """Run the stages at once, linked if there are several. Raises MeasurementError for other failures."""
    shares = [Share(stage.conv, stage.linear) for stage in stages]
    kills_before, begun = memory.kernel_kills(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        ended = _run(_linked(stages, Path(folder)), Path(folder))
    dur_s = round(time.monotonic() - begun, 3)
    killed = memory.killed_for_memory(kills_before, memory.kernel_kills())
    for place, each in enumerate(ended):
        reason = _exhausted(each, killed)
        if reason is not None:
            return Try(shares, False, dur_s, reason, place)
    # Those that we ended are not the cause.
    said = [_report_of(each, share) for each, share in zip(ended, shares, strict=True) if each.code is not None]
    times_ns = [max(times) for times in zip(*(each["times_ns"] for each in said), strict=True)]
    peaks, baselines = ([each[key] for each in said] for key in ("peak_bytes", "baseline_bytes"))
    return Try(shares, True, dur_s, None, None, times_ns, peaks, baselines)


def _linked(stages: Sequence[Stage], folder: Path) -> list[Stage]:
    if len(stages) == 1:
        return list(stages)
    meet = str(folder / "rendezvous")
    return [replace(stage, rank=rank, ranks=len(stages), rendezvous=meet) for rank, stage in enumerate(stages)]


def _run(stages: Sequence[Stage], folder: Path) -> list[_Ended]:
    """Run all to their ends. If one does not fit or fails, kill the others, which would wait for it."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        outputs = [
            (
                files.enter_context((folder / f"{rank}.out").open("w+b")),
                files.enter_context((folder / f"{rank}.err").open("w+b")),
            )
            for rank in range(len(stages))
        ]
        try:
            for stage, (out, err) in zip(stages, outputs, strict=True):
                # A session of its own: Ctrl-C reaches only us.
                processes.append(
                    subprocess.Popen(  # noqa: S603  (this program itself)
                        stage_command(os.getpid(), stage),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        env=_environment(len(stages)),
                        start_new_session=True,
                    )
                )
            while any(process.poll() is None for process in processes):
                gone = [place for place, process in enumerate(processes) if process.poll() is not None]
                if not all(_fits(processes[place].returncode, _json(outputs[place][0])) for place in gone):
                    break
                time.sleep(_POLL_S)
        finally:
            ours = _killed(processes)
        return [
            _Ended(None if process in ours else process.returncode, _json(out), _text(err))
            for process, (out, err) in zip(processes, outputs, strict=True)
        ]


def _environment(ranks: int) -> dict[str, str]:
    """Environment of the processes: the user's variables, else as for the ranks of `train`."""
    return launch.launch_settings(ranks) | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | _MALLOC | os.environ


def _killed(processes: Sequence["subprocess.Popen[bytes]"]) -> list["subprocess.Popen[bytes]"]:
    """Kill what still runs; return what was killed."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.kill()
    for process in running:
        process.wait()
    return running


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _json(file: IO[bytes]) -> Mapping[str, Any] | None:
    """The report of a stage; None if it could not write one."""
    try:
        said = json.loads(_text(file))
    except ValueError:
        return None
    return said if isinstance(said, dict) and "status" in said else None


def _fits(code: int, said: Mapping[str, Any] | None) -> bool:
    return code == 0 and said is not None and said["status"] == "fits"


def _exhausted(ended: _Ended, killed: str | None) -> str | None:
    """Why the end counts as out of memory, None if it does not. `killed` is the reason to give after SIGKILL."""
    if ended.said is not None:
        return str(ended.said["reason"]) if ended.said["status"] == "out_of_memory" else None
    if memory.says_exhausted(ended.errors):  # C++ or Python could not report it properly
        return _last_line(ended.errors)
    return killed if ended.code == -signal.SIGKILL else None


def _report_of(ended: _Ended, share: Share) -> Mapping[str, Any]:
    if ended.said is None:
        assert ended.code is not None
        how = (
            f"was ended by {signal.Signals(-ended.code).name}"
            if ended.code < 0
            else f"ended with exit code {ended.code}"
        )
        last = _last_line(ended.errors)
        raise MeasurementError(
            f"a try of {share} layers {how} instead of fitting or running out of memory"
            f"{': ' if last else ''}{last}; so larger and smaller stacks are not known either"
        )
    return ended.said


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
