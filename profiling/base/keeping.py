"""What is kept of each traced cycle, and whether the run is analysed where it ends. Knows no torch."""

from dataclasses import dataclass

from ...contract.rank import Keep
from ..errors import UsageError


@dataclass(frozen=True)
class Keeping:
    """The trace as torch wrote it, its recording, or both; with `analyse` recordings are made in any case.

    `max_seconds` bounds how long rank 0 waits for the other ranks, and how long the analysis may take; `max_gb` bounds
    what all ranks together hand over to rank 0, in 1e9 bytes. The analysis adds the capture to the file `history`.
    Raises UsageError.
    """

    keep: Keep = "trace"
    analyse: bool = False
    max_seconds: float = 60.0
    max_gb: float = 1.0
    history: str | None = None

    def __post_init__(self) -> None:
        if self.keep not in ("trace", "recording", "both"):
            raise UsageError(f"keep {self.keep!r}: expected 'trace', 'recording' or 'both'")
        for name, value in (("--analyse-max-seconds", self.max_seconds), ("--analyse-max-gb", self.max_gb)):
            if not 0 < value < float("inf"):
                raise UsageError(f"{name} {value:g}: expected a number above 0")
        if self.history is not None and not self.analyse:
            raise UsageError(f"--history {self.history}: needs --analyse, which keeps it")

    @property
    def kept(self) -> Keep:
        """What is kept in fact: an analysis leaves its recordings."""
        return "both" if self.analyse and self.keep == "trace" else self.keep

    def share_bytes(self, ranks: int) -> int:
        """What one rank may hand over."""
        return int(self.max_gb * 1e9 / ranks)


TRACES_ONLY = Keeping()
