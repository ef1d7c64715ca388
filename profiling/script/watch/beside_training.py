"""Traced steps that hold an evaluation or a checkpoint, by the calls that scripts make for them."""

from ....common.trigger import Beside
from .session import ScriptSession

_IN_WORDS: dict[Beside, str] = {
    "evaluation": "an evaluation (Module.eval)",
    "checkpoint": "a checkpoint (torch.save)",
}


class BesideTraining:
    """What steps of a capture hold besides training: of each the first thing."""

    def __init__(self) -> None:
        self._of_step: dict[int, Beside] = {}

    def note(self, session: ScriptSession, what: Beside) -> None:
        """Note that this is beside training in the present step, if that is recorded."""
        if session.records(session.steps_done):
            self._of_step.setdefault(session.steps_done, what)

    def said(self, session: ScriptSession) -> str | None:
        """The first traced step that holds more than training, in words; None where none does, or each of them.

        What every step holds belongs to the training: a frozen part that is set to `eval()` again and again, say. So
        does what is in each period of a loop. What is said once is forgotten.
        """
        if session.has_whole_periods:
            return None
        of_step, self._of_step = self._of_step, {}
        traced = session.traced_steps()
        held = [step for step in traced if step in of_step]
        return f"step {held[0]:,} holds {_IN_WORDS[of_step[held[0]]]}" if 0 < len(held) < len(traced) else None
