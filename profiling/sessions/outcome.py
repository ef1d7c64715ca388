"""The outcome of a capture in one sentence: what was written and where, and what to do next."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...common.wording import counted, ranks_in_words
from .step_clock import Overhead

TOO_SHORT = "run more steps, or trace fewer (wait, warmup, active, repeat)"
NEVER_STEPPED = "session.step() was never called, so no step was traced; call it at the end of every training step"
ONE_STEP = "the script made one step, which opens the capture; none was left to trace"
NOT_REACHED = "the first that was to be traced"
CYCLE_LOST = "the trace of that cycle is lost"
EARLY = "are traced instead, in which much still warms up; --from-step names others"
EARLY_IN_LOOP = EARLY.replace("--from-step", "from_step")
_UNHEARD = "{} took no part: the request came too late there, or not at all, as on nodes that do not share this folder"
_NOT_SHARED = (
    "the files of {} are on nodes that do not share this folder: copy their folders of this name to this node, under "
    "other names, and give all of them: commtrace summary {} COPY ..."
)
_ALIKE = (TOO_SHORT, NEVER_STEPPED, ONE_STEP, NOT_REACHED, CYCLE_LOST, EARLY, EARLY_IN_LOOP)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a finished capture, on one rank.

    `why` says why it is not complete, and is None if it is; `absent` are ranks that took no part, None if not known.
    `asked` are the ranks that were to be traced, None for all of them; `elsewhere` are those whose files are on other
    nodes.
    """

    run_dir: Path
    rank: int
    world_size: int
    traces: int
    why: str | None
    absent: Sequence[int] | None = ()
    cost: Overhead | None = None
    asked: Collection[int] | None = None
    elsewhere: Collection[int] = ()

    def sentence(self) -> str | None:
        """The sentence for this rank; None if rank 0, or the first that was asked, says it for all."""
        if self.rank != min(self.asked or [0]) and (self.why is None or self.why.endswith(_ALIKE)):
            return None
        if self.why is not None:
            what = f"{counted(self.traces, 'trace')} in {self.run_dir}, but incomplete" if self.traces else "no trace"
            return f"rank {self.rank}: {what}: {self.why}"
        cost = f"; traced steps take {self.cost}" if self.cost else ""
        here = f"{self._ranks()} traced in {self.run_dir}{cost}"
        if self.absent:
            why = absence(self.absent) if self.asked is None else _UNHEARD.format(ranks_in_words(self.absent))
            return f"only {here}; {why}"
        folder = shlex.quote(str(self.run_dir))
        if self.elsewhere:
            return f"done: {here}; {_NOT_SHARED.format(ranks_in_words(self.elsewhere), folder)}"
        return f"done: {here}; next: commtrace {folder}"

    def _ranks(self) -> str:
        if self.absent is None and self.world_size > 1:
            return f"rank {self.rank} of {self.world_size:,}"
        here = (self.world_size if self.asked is None else len(self.asked)) - len(self.absent or ())
        return counted(here, "rank") + (f" of {self.world_size:,}" if here < self.world_size else "")


def ended_well(error: BaseException | None) -> bool:
    """Whether a block or script that ended with `error`, None for none, did not fail: `sys.exit()` is no failure."""
    return error is None or (isinstance(error, SystemExit) and not error.code)


def absence(ranks: Sequence[int]) -> str:
    """A sentence on ranks that took no part in a capture, and what to do."""
    shown = ", ".join(map(str, ranks[:5])) + (f" and {len(ranks) - 5:,} more" if len(ranks) > 5 else "")
    return (
        f"rank {shown} took no part: start every rank through the same launcher and command, such as torchrun ... -m "
        "commtrace run, and enter capture() on every rank"
    )
