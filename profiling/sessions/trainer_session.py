"""The session of a trainer's callback: after an error, nothing keeps the training from ending."""

from .outcome import ended_well
from .session import Session


class TrainerSession(Session):
    """A `Session` that leaves traces as they are where the training failed.

    Launchers kill what goes on after another rank has ended, Lightning's at once: then the error of the training would
    not be seen.
    """

    def _conclude(self, error: BaseException | None) -> None:
        """Gather recordings and analyse the run, if the training did not fail."""
        if ended_well(error):
            super()._conclude(error)
