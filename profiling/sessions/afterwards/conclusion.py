"""After the last trace of a capture: finish packing, gather recordings on rank 0, and analyse them there.

Whatever goes wrong here is said, and ends nothing: training is over, and its exit code its own.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals

from ....common.wording import ranks_in_words
from ....contract.rank import RankFile
from ....contract.record import json_bytes
from ...base import run_directory as rundir
from ...base.console.notices import say
from ...base.keeping import Keeping
from ...errors import RunDirError
from ...ranks.process_group import Identity
from .aside import run_aside
from .hand_over import SAME_SECRET, Allowance, HandOver, HandOverError, Parcel
from .packing import KeptFiles

_PACKING_S = 120.0
# torchrun, Slurm and our launcher give ranks 30 s after SIGTERM. There are three waits, and traces were written before.
_AFTER_SIGNAL_S = 7.0
# A rank that ends by an error has often lost another one, which nobody will hear of again.
_AFTER_ERROR_S = 15.0


@dataclass(frozen=True)
class Patience:
    """How long to wait at the end: less after an error, hardly after SIGTERM, not at all after Ctrl-C."""

    received: Callable[[], Signals | None]
    failed: bool = False

    def within(self, seconds: float) -> Callable[[], bool]:
        """A function that says when a wait that starts now is over."""
        until_s = time.monotonic() + (min(seconds, _AFTER_ERROR_S) if self.failed else seconds)

        def is_over() -> bool:
            nonlocal until_s
            signum = self.received()
            if signum is not None:
                until_s = min(until_s, time.monotonic() + (0 if signum is Signals.SIGINT else _AFTER_SIGNAL_S))
            return time.monotonic() >= until_s

        return is_over


class Conclusion:
    """The end of one capture on one rank. Made at the start of the capture, when all ranks are present."""

    def __init__(self, keeping: Keeping, who: Identity, run_dir: Path, show: Callable[[str], None]) -> None:
        self.files = KeptFiles(run_dir, keeping.kept)
        self._keeping = keeping
        self._who = who
        self._run_dir = run_dir.absolute()
        self._show = show
        self._history = None if keeping.history is None else str(Path(keeping.history).absolute())
        self._hand_over = HandOver.of(who) if keeping.analyse else None
        if self._hand_over is not None and who.rank == 0:
            self._hand_over.announce(self._run_dir)

    def finish_packing(self, patience: Patience) -> None:
        """Wait for recordings for a limited time."""
        self.files.finish(patience.within(_PACKING_S), tells=self._who.local_rank == 0)

    def gather(self, facts: RankFile, patience: Patience, *, together: bool) -> str | None:
        """Hand over what rank 0 analyses, or take it as rank 0; return the reason for a failure.

        Afterwards the store is not held any longer. `together`, no rank goes on before rank 0 does.
        """
        hand_over, self._hand_over = self._hand_over, None
        if not self._keeping.analyse or self._who.world_size == 1:
            return None
        if hand_over is None:
            return "there was no process group when the capture began"
        is_over = patience.within(self._keeping.max_seconds)
        share_bytes = self._keeping.share_bytes(self._who.world_size)
        if self._who.rank == 0:
            # A trace of each cycle, and the side file.
            most = Allowance(share_bytes, facts.schedule.repeat + 1)
            taken = hand_over.take(self._run_dir, most, is_over)
            for line in _lines_on_missing(taken.missing, self._run_dir):
                say(line)
            if taken.forged:
                say(_ignored(taken.forged))
            return None
        try:
            hand_over.give(self._run_dir, lambda: self._parcel(facts), share_bytes, is_over)
        except HandOverError as err:
            return str(err)
        if together:
            hand_over.until_closed(is_over)
        return None

    def _parcel(self, facts: RankFile) -> Parcel:
        """The recordings, and a side file that names only them. Raises HandOverError."""
        names = self.files.recordings
        meta = json_bytes(replace(facts, traces=names))
        try:
            contents = [(name, (self._run_dir / name).read_bytes()) for name in names]
        except OSError as err:
            raise HandOverError(f"{self._run_dir}: cannot be read: {err.strerror}") from err
        why = self.files.reason() or (None if names else "it has no trace")
        return Parcel([*contents, (rundir.meta_name(facts.worker), meta)], why)

    def analyse(self, patience: Patience) -> None:
        """As rank 0, print and write what the run shows, with the ranks that are here."""
        if not self._keeping.analyse or self._who.rank != 0:
            return
        if patience.received() is Signals.SIGINT:
            say("the run is not analysed: interrupted")
            return
        _verdict(self._run_dir, self._history, patience.within(self._keeping.max_seconds), self._show)


def _verdict(run_dir: Path, history: str | None, is_over: Callable[[], bool], show: Callable[[str], None]) -> None:
    """Print the summary of a run, write it, the report and the scalars to its folder, and print what failed."""
    kept = [] if history is None else ["--history", history]
    printed = run_aside(["summary", *_READING, *kept, str(run_dir)], is_over)
    if printed.out:
        show(printed.out.rstrip("\n"))
        try:
            rundir.write_bytes(run_dir / rundir.SUMMARY_FILE, printed.out.encode())
        except RunDirError as err:
            say(str(err))
    if printed.why is not None:
        what = "the summary is not complete" if printed.out else "the run is not analysed"
        say(f"{what}: {printed.why}; to analyse it later: commtrace {shlex.quote(str(run_dir))}")
    if not printed.out:
        return
    report, scalars = run_dir / rundir.REPORT_FILE, run_dir / rundir.SCALARS_FILE
    made = ["--output", str(report), "--scalars", str(scalars)]
    why = run_aside(["report", *_READING, *made, str(run_dir)], is_over).why
    if report.is_file():
        say(f"report: {report}")
    elif why is not None:
        say(f"there is no report: {why}")


# A damaged file costs its rank only. What is read here was packed just now: there is nothing to keep for later.
_READING = ("--keep-going", "--no-cache")


def _lines_on_missing(missing: Mapping[int, str], run_dir: Path) -> Sequence[str]:
    """One line per reason. Ranks that share the folder leave traces there silently."""
    by_reason: dict[str, list[int]] = {}
    for rank, why in missing.items():
        there = any(run_dir.glob(f"*_{rank}.*.pt.trace.*"))
        what = "here only in part" if there else "missing"
        by_reason.setdefault(f"{what}: {why}", []).append(rank)
    return [f"{ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} {why}" for why, ranks in by_reason.items()]


def _ignored(ranks: Sequence[int]) -> str:
    """A sentence on messages that did not verify."""
    return (
        f"messages in the name of {ranks_in_words(list(ranks))} on the store of the process group did not verify, and "
        f"were ignored: another process wrote them, or {SAME_SECRET}"
    )
