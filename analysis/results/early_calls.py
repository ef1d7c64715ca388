"""Calls of each file, found while others are still being read.

Finding calls was a third of the work after reading 16 ranks, on one core, while the others were idle.
The calls of a file need only that file, if it lists the same process groups as all files of its rank.
"""

from __future__ import annotations

from pathlib import Path

from ..core.tables.communication import CALLS, PENDING
from ..metrics.calls.calls import Communication, Told, communication_of
from ..recording.header import ProcessGroup
from ..run.file_tables import TraceFile, of_rank
from ..run.run import Run, listed_groups


class EarlyCalls:
    """The calls of the files taken so far."""

    def __init__(self) -> None:
        self._groups: dict[Path, tuple[ProcessGroup, ...]] = {}
        self._found: dict[Path, Communication] = {}

    def take(self, file: TraceFile) -> None:
        """Find the calls of a file."""
        self.keep(file, calls_of(file))

    def keep(self, file: TraceFile, found: Communication | None) -> None:
        """Keep the calls that were found in a file."""
        self._groups[file.path] = file.header.process_groups
        if found is not None:
            self._found[file.path] = found

    def of(self, run: Run) -> Communication | None:
        """The calls of the run; None if they cannot be found from its files one by one."""
        calls, pending, before = [], [], 0
        for rank in run.ranks:
            paths = run.files[rank]
            if any(self._groups[path] != self._groups[paths[-1]] for path in paths):
                return None
            for cycle, path in enumerate(paths):
                if path not in self._found:
                    return None
                found = self._found[path]
                own = of_rank(found.calls, rank, cycle)
                calls.append(own.assign(call_id=own["call_id"] + before, batch=own["batch"] + before))
                pending.append(of_rank(found.pending, rank, cycle))
                before += len(own)
        return Communication(CALLS.concat(calls), PENDING.concat(pending))


def calls_of(file: TraceFile) -> Communication | None:
    """The calls of a file; None if it does not list its process groups."""
    if not file.header.process_groups:
        return None
    told = Told(file.annotation_rows, file.comm_rows, listed_groups(file))
    return communication_of(file.ran, file.launches, told)
