"""What a rank writes into the run directory, which all ranks agree on: its side file, traces, and NCCL's log."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from pathlib import Path

from ...contract.rank import RankFile
from ...contract.run import RUN_FILE
from ..base import run_directory as rundir
from ..base.console.notices import say
from ..ranks import nccl_log
from ..ranks import process_group as parallel
from ..ranks.process_group import Identity
from . import side_files as sidefiles
from .clock_probe import ClockProbe
from .kineto_buffers import GpuRecord
from .profiler import Export
from .record import Record
from .side_files import Subject
from .step_clock import StepClock


class RankFiles:
    """The files of one rank: `agree` on the directory first, then `begin`; `run_dir` is final from then on.

    `agreed` are the ranks of a capture that they have agreed on before, with its directory; None where rank 0 decides.
    """

    who: Identity
    worker: str

    def __init__(self, run_dir: Path, subject: Subject, agreed: Collection[int] | None) -> None:
        self.run_dir = run_dir
        self.record = Record(subject)
        self.cycles = 0
        """The number of traces that have been written."""
        self._subject = subject
        self._agreed = agreed

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and says what is the same for all."""
        return self.who.rank == min(self._agreed or [0])

    def agree(self, create: Callable[[Path], Path], patience: timedelta, also: Sequence[str]) -> None:
        """Take the directory of rank 0, which makes it by `create`; the files `also` are this rank's, too.

        Raises RunDirError.
        """
        who, asked = parallel.identity(), self.run_dir
        self.who, self.worker = who, rundir.worker_name(who.host, who.rank)
        if self._agreed is None:
            self.run_dir = parallel.agree_on_run_dir(who, asked, create, patience)
            if who.local_rank == 0 and self.run_dir.absolute().parent != asked.absolute().parent:
                say(f"rank {who.rank}: traces go to {self.run_dir}, as on rank 0, and not to {asked.parent}")
            elif who.rank == 0 and self.run_dir != asked:
                say(f"{asked} has files in it; traces go to {self.run_dir}")
            rundir.make(self.run_dir)
        else:
            rundir.check_made(self.run_dir)
        rundir.claim(self.run_dir, self.worker, [*also, *([RUN_FILE] if self.is_first else [])])

    def begin(self, facts: RankFile, clock: StepClock, probe: ClockProbe) -> None:
        """Write the side file of this rank, and as the first one that of the run. Raises RunDirError."""
        self.record.begin(self.run_dir / rundir.meta_name(self.worker), facts, clock, probe)
        if self.is_first:
            of_run = sidefiles.run_facts(self.run_dir.name, self.who, self._subject)
            rundir.write_json(self.run_dir / RUN_FILE, of_run)

    def keep_nccl_log(self) -> None:
        """Have NCCL write its log here, as far as it has not begun one."""
        log = self.run_dir / rundir.nccl_log_name(self.worker)
        if nccl_log.keep(log) and self.who.rank == 0:
            say(f"NCCL's log of each rank is {self.run_dir / rundir.nccl_log_name('*')}")

    def write_trace(self, export: Export, gpu: GpuRecord, cycle: int) -> str:
        """Write the trace of a cycle; return its name. Raises RunDirError."""
        name = rundir.trace_name(self.worker, cycle)
        rundir.write_trace(self.run_dir / name, gpu.examined(export))
        self.cycles += 1
        return name

    def look_for_absent(self) -> None:
        """Record which ranks are not captured."""
        if self._agreed is None:
            self.record.look_for_absent()
        elif self.is_first:
            self.record.note_absent(sorted(set(self._agreed) - rundir.ranks_here(self.run_dir)))

    def elsewhere(self) -> Collection[int]:
        """The ranks that took part, but whose files this node does not see; none where that is not asked for."""
        absent, here = self.record.absent, rundir.ranks_here(self.run_dir)
        if self.who.rank or self._agreed is not None or absent is None or 0 not in here:
            return ()
        return set(range(self.who.world_size)) - here - set(absent)
