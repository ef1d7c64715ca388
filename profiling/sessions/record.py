"""The side file of a rank, `<host>_<rank>.meta.json`: what is known of its capture, saved whenever that changes."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...contract.machine import End
from ...contract.rank import STILL_RUNNING, RankFile
from ..base import run_directory as rundir
from ..machine.gpu_state import gpu_state
from ..modes import FACTS
from ..ranks import process_group as parallel
from .afterwards.packing import KeptFiles
from .clock_probe import ClockProbe
from .side_files import Subject
from .step_clock import StepClock


class Record:
    """The facts of one rank, and the file that holds them from `begin` on.

    `reason` says why the capture is not complete, None once it is; `traces` are the files that are kept; `absent` are
    the ranks that are not captured, None where that is not known.
    """

    facts: RankFile

    def __init__(self, subject: Subject) -> None:
        self.reason: str | None = STILL_RUNNING
        self.traces: list[str] = []
        self.absent: list[int] | None = None
        self._subject = subject
        self._path: Path
        self._clock: StepClock
        self._probe: ClockProbe

    def begin(self, path: Path, facts: RankFile, clock: StepClock, probe: ClockProbe) -> None:
        """Write the file at `path` for the first time. Raises RunDirError."""
        self._path = path
        self._clock, self._probe = clock, probe
        self.facts = facts
        self.look_at_groups()
        self.save(STILL_RUNNING)

    def set(self, **facts: Any) -> None:
        """Set fields, which the next `save` writes."""
        self.facts = replace(self.facts, **facts)

    def content(self) -> RankFile:
        """The content of the file, with steps and clocks known so far."""
        return replace(
            self.facts,
            **self._probe.facts(),
            complete=self.reason is None,
            reason=self.reason,
            steps=self._clock.times(),
            traces=self.traces,
        )

    def save(self, reason: str | None) -> None:
        """Write the file; `reason` is why the capture is not complete. Raises RunDirError."""
        self.reason = reason
        rundir.write_json(self._path, self.content())

    def settle(self, files: KeptFiles, reason: str | None) -> None:
        """Save which files are kept by now, and only then remove the others. Raises RunDirError."""
        files.settle()
        self._save_files(files, reason)
        if not files.discard():
            self._save_files(files, reason)

    def _save_files(self, files: KeptFiles, reason: str | None) -> None:
        self.traces = files.names
        self.set(packing_reason=files.reason())
        self.save(reason)

    def look_at_groups(self) -> None:
        """Record process groups and the model, which may come and go inside the block."""
        model = self._subject.model() if self._subject.model else None
        groups = parallel.process_groups() or self.facts.process_groups
        modes = {mode: facts_of(model) for mode, facts_of in FACTS.items()} if model is not None else {}
        known: dict[str, Any] = {mode: facts for mode, facts in modes.items() if facts}
        self.set(process_groups=groups, **known)

    def look_at_gpu(self, at: End) -> None:
        """Add clocks, power and temperature of the GPU at an end of the block."""
        state = gpu_state(self.facts.device.uuid, at)
        if state is not None:
            self.set(gpu_states=[*self.facts.gpu_states, state])

    def look_for_absent(self) -> None:
        """Record which ranks are not captured, while there is a process group to ask."""
        with suppress(RuntimeError):
            if parallel.default_store() is not None:
                self.note_absent(parallel.absent_ranks(parallel.identity()))

    def note_absent(self, ranks: list[int]) -> None:
        """Set which ranks are not captured."""
        self.absent = ranks
        self.set(absent_ranks=ranks)
