"""Dump PyTorch's flight recorder to the run directory: when a rank stalls, and when its session ends."""

import json
import sys
import threading
import time
from pathlib import Path

from ...common import disk
from ..base.flight_recorder import DUMP_PREFIX, keep_dumps_in
from ..base.torch_private import TorchRecorder, flight_recorders
from ..errors import CaptureError

STILL_S = 60.0
"""So long without a call issued or done a rank stands still, whether it waits in a call or never comes to the next."""


class FlightRecorder:
    """Watches this rank's records in a thread, and dumps them; the first dump takes torch seconds.

    torch itself dumps when a collective of NCCL times out; gloo never does, and forgets at its timeout what was not
    done. So whoever stands still is dumped before that, whatever the backend.
    """

    def __init__(self, run_dir: Path, rank: int, still_s: float = STILL_S, look_every_s: float = 1.0) -> None:
        """Prepare to watch. Raises CaptureError if this torch has no recorder."""
        self._recorders = flight_recorders()
        if not self._recorders:
            raise CaptureError("this torch cannot dump its flight recorder; leave out --flight-recorder, or update it")
        self._path = run_dir / f"{DUMP_PREFIX}{rank}"
        self._still_s, self._look_every_s = still_s, look_every_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._kept: list[list[str]] | None = None
        keep_dumps_in(run_dir)

    def start(self) -> None:
        """Start to watch."""
        threading.Thread(target=self._watch, name="commtrace-flight-recorder", daemon=True).start()

    def stop(self, *, failed: bool) -> None:
        """End with the session. If it failed, keep an earlier dump unless more was issued: failed calls look done."""
        self._stopped.set()
        if not failed or self._kept != self._issued():
            self.dump()

    def dump(self) -> None:
        """Write the present records in place of the earlier ones."""
        with self._lock:
            content = max(self._recorders, key=_tells).dump()
            try:
                with disk.replacing(self._path, mode=disk.permissions(self._path)) as file:
                    file.write(content)
            except OSError as err:
                print(f"{self._path}: cannot be written: {err.strerror}", file=sys.stderr)

    def keep(self) -> None:
        """Dump now for good: the rank stalls, or is about to be freed, after which calls look done."""
        self._kept = self._issued()
        self.dump()

    def _watch(self) -> None:
        known, since_s = self._states(), time.monotonic()
        while not self._stopped.wait(self._look_every_s):
            state = self._states()
            if state != known:
                known, since_s = state, time.monotonic()
                self._kept = None
            elif self._kept is None and time.monotonic() - since_s > self._still_s:
                self.keep()

    def _states(self) -> list[bytes]:
        return [recorder.state() for recorder in self._recorders]

    def _issued(self) -> list[list[str]]:
        """Number of the last issued call in each process group, of each recorder."""
        return [[issued for issued, _ in _calls(recorder)] for recorder in self._recorders]


def _tells(recorder: TorchRecorder) -> int:
    """How much a recorder has to tell: of a call that is not done, of calls at all, or nothing."""
    calls = _calls(recorder)
    return 2 * any(issued != done for issued, done in calls) or int(any(issued != _NONE for issued, _ in calls))


_NONE = "-1"


def _calls(recorder: TorchRecorder) -> list[tuple[str, str]]:
    """Numbers of the last issued and the last done call of each process group; -1 before the first one."""
    groups = json.loads(recorder.state() or b"{}").get("pg_status", {})
    return [(group["last_enqueued_collective"], group["last_completed_collective"]) for group in groups.values()]
