"""Set how much GPU activity Kineto can hold, and notice whether a capture lost any.

By default that is 128 MB, warm-up included: some seconds of a busy GPU. A file that the environment variable
`KINETO_CONFIG` names raises the limit. Kineto asks for the name once, when the first profiler of the process begins,
and reads the file before every trace.
"""

import os
import re
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path

import torch

from ...contract.rank import Phase
from ..base.torch_private import kineto_has_stopped
from . import gpu_reach

_VARIABLE = "KINETO_CONFIG"
_DEFAULT_FILE = Path("/etc/libkineto.conf")
_KEY = "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB"
_LIMIT = re.compile(rf"^\s*{_KEY}\s*=.*$", re.MULTILINE)
# Memory of the host that a rank needs at most; Kineto takes it only as far as the trace needs it. All ranks of a host
# together get a quarter of what is free, and none less than Kineto's own limit.
LIMIT_MB, _LEAST_MB = 2048, 128
_SHARE = 4
_ADVICE = "trace fewer steps"


def limit_mb(ranks_here: int, free_bytes: int | None) -> int:
    """What one of the ranks of a host may take, in MiB, where nobody says it."""
    if free_bytes is None:
        return LIMIT_MB
    return max(_LEAST_MB, min(LIMIT_MB, free_bytes // _SHARE // max(1, ranks_here) >> 20))


def raise_limit(
    asked_mb: int | None = None, env: MutableMapping[str, str] = os.environ, default_mb: int = LIMIT_MB
) -> None:
    """Set Kineto's buffer to `asked_mb`, or to `default_mb` unless the user's file sets it.

    What else that file says is kept. Ours is in memory only, and gone with the process. A child that inherits the
    variable can read it as long as the parent lives, and makes its own if it captures. In one process what was asked
    for holds until something else is. Where none of this works, the limit stays as it is.
    """
    given = Path(env.get(_VARIABLE, _DEFAULT_FILE))
    with suppress(OSError, AttributeError):  # no right to read theirs; no memfd on this system
        text = given.read_text(encoding="utf-8", errors="replace") if given.is_file() else ""
        limited = _LIMIT.search(text) is not None
        if limited and asked_mb is None and not given.is_relative_to("/proc"):
            return
        if asked_mb is not None or not limited:
            text = f"{_LIMIT.sub('', text)}\n{_KEY}={asked_mb or default_mb}\n"
        if given.is_relative_to(f"/proc/{os.getpid()}/fd"):  # Kineto has asked for the name already
            given.write_text(text, encoding="utf-8")
            return
        ours = os.memfd_create("commtrace-kineto")  # stays open
        os.write(ours, text.encode())
        env[_VARIABLE] = f"/proc/{os.getpid()}/fd/{ours}"


class GpuRecord:
    """Notices GPU activity that a capture lost: `lost` describes it, None for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.lost: str | None = None

    def look(self, step: int, phase: Phase) -> None:
        """Check before the profiler goes on after `step`: a stop is forgotten when the next cycle begins."""
        if self._device.type == "cuda" and phase != "idle" and kineto_has_stopped():
            self._note(f"Kineto stopped recording the GPU by step {step}, because its buffers were full; {_ADVICE}")

    def examined(self, export: Callable[[str], None]) -> Callable[[str], None]:
        """`export`, followed by a check of what it has written."""

        def examine(path: str) -> None:
            export(path)
            file = Path(path)
            if self._device.type == "cuda" and file.is_file() and file.stat().st_size:
                self._examine(file)

        return examine

    def _examine(self, file: Path) -> None:
        why = gpu_reach.cut_short(file)
        if why is not None:
            self._note(f"a trace is cut short: {why}; {_ADVICE}")

    def _note(self, why: str) -> None:
        self.lost = self.lost or why
