"""Dump PyTorch's flight recorder to the run directory: when a rank stalls, and when its session ends."""

import json
import sys
import threading
import time
from pathlib import Path

from ...common import disk
from ..base.flight_recorder import DUMP_PREFIX, keep_dumps_in
from ..base.torch_private import flight_recorder_dump, flight_recorder_state
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
        if not flight_recorder_state():
            raise CaptureError("this torch cannot dump its flight recorder; leave out --flight-recorder, or update it")
        self._path = run_dir / f"{DUMP_PREFIX}{rank}"
        self._still_s, self._look_every_s = still_s, look_every_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._kept: dict[str, str] | None = None
        keep_dumps_in(run_dir)

    def start(self) -> None:
        """Start to watch."""
        threading.Thread(target=self._watch, name="commtrace-flight-recorder", daemon=True).start()

    def stop(self, *, failed: bool) -> None:
        """End with the session. If it failed, keep an earlier dump unless more was issued: failed calls look done."""
        self._stopped.set()
        if not failed or self._kept != _issued():
            self.dump()

    def dump(self) -> None:
        """Write the present records in place of the earlier ones."""
        with self._lock:
            content = flight_recorder_dump()
            try:
                with disk.replacing(self._path, mode=disk.permissions(self._path)) as file:
                    file.write(content)
            except OSError as err:
                print(f"{self._path}: cannot be written: {err.strerror}", file=sys.stderr)

    def keep(self) -> None:
        """Dump now for good: the rank stalls, or is about to be freed, after which calls look done."""
        self._kept = _issued()
        self.dump()

    def _watch(self) -> None:
        known, since_s = flight_recorder_state(), time.monotonic()
        while not self._stopped.wait(self._look_every_s):
            state = flight_recorder_state()
            if state != known:
                known, since_s = state, time.monotonic()
                self._kept = None
            elif self._kept is None and time.monotonic() - since_s > self._still_s:
                self.keep()


def _issued() -> dict[str, str]:
    """Number of the last issued call in each process group."""
    states = json.loads(flight_recorder_state() or b"{}").get("pg_status", {})
    return {group: state["last_enqueued_collective"] for group, state in states.items()}
