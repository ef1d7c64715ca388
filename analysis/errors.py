"""Every error a caller can expect, as a tree.

AnalysisError
├── TraceError            one file cannot be used
│   ├── UnreadableFile    it cannot be opened or read
│   │   └── UnreachableFile   it is named by URL, and its filesystem says why; also an OSError
│   ├── NotATrace         it is not a Kineto trace
│   ├── DamagedTrace      it is one, but ends early or is malformed
│   └── UnsafePickle      it is a pickle that would run something
├── RunError              the files do not form one run
│   ├── NoTraces          nothing to read there
│   ├── UnknownRank       a file does not say which rank it is of
│   ├── DuplicateRank     two files claim one rank
│   ├── MixedJobs         files of different jobs
│   ├── NoSuchRanks       what was chosen of the ranks is not there
│   └── NoSuchSteps       what was chosen of the steps is not there
├── TimingsError          the timings of a sweep cannot be used
│   ├── DamagedTimings    a file that holds them is malformed, or contradicts another
│   ├── NoTimings         there are none
│   └── DuplicateCell     two timings of one cell
├── TrainingError         the epochs of a training cannot be used
│   ├── DamagedTraining   a file that holds them is malformed
│   └── NoTraining        there are none
├── DamagedMeasurement    a file of `layers` or `lab` is malformed
├── NotACeiling           a file given as a ceiling holds no measurement of collectives
├── NothingMeasured       the run holds nothing of what was asked for
├── NotPredictable        a run does not come out again when it is replayed
├── BadScenario           what is to be predicted makes no sense for the run
├── CannotServe           a viewer cannot be given a file
├── NothingListens        no running job takes requests for captures there
├── WatchedAlready        another process follows the run, and remembers so in the same place
├── UnknownTable          no table has this name
├── UnknownTerm           no term, table or column has this name
├── SlowExpression        a regular expression that was given takes too long on a name
├── MissingLibrary        an option needs a library that is not installed
├── ClusterError          workers elsewhere cannot be reached, or cannot do the work
└── SchemaError           a table does not have the columns it promises

A message says which file, rank or collective, what was expected and found, and what to do next.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MOST_COMMANDS = 4


class AnalysisError(Exception):
    """Root: the input is at fault, not the program."""


class TraceError(AnalysisError):
    """One file cannot be used."""


class UnreadableFile(TraceError):
    """The file cannot be opened or read."""


class UnreachableFile(OSError, UnreadableFile):
    """A file named by URL cannot be used, for a reason of its filesystem: denied, too slow, changed."""

    def __str__(self) -> str:
        """The URL, and the reason."""
        return f"{self.filename}: {self.strerror}" if self.strerror is not None else super().__str__()


class NotATrace(TraceError):
    """The file is not a Kineto trace."""


class DamagedTrace(TraceError):
    """The file is a Kineto trace, but ends early or is malformed."""


class UnsafePickle(TraceError):
    """The file is a pickle with more than texts, numbers, lists and dictionaries."""


class TooLarge(TraceError):
    """The content of the file would fill the memory."""


class RunFiles(NamedTuple):
    """A run among others that were found with it: a name that tells it apart, its files, and what to type for them."""

    name: str
    paths: tuple[Path, ...]
    words: str


class RunError(AnalysisError):
    """The files do not form one run; they form these `runs`, if it is known which files are of which."""

    def __init__(self, message: str = "", runs: tuple[RunFiles, ...] = ()) -> None:
        """Say what to type for the first of the runs after the message."""
        listed = [f"`commtrace {run.words}`" for run in runs[:_MOST_COMMANDS]]
        more = f" and {len(runs) - _MOST_COMMANDS:,} more" if len(runs) > _MOST_COMMANDS else ""
        super().__init__(message + (f": {', '.join(listed)}{more}" if listed else ""))
        self.runs = runs


class NoTraces(RunError):
    """There is nothing to read."""


class UnknownRank(RunError):
    """A file does not say which rank it is of."""


class DuplicateRank(RunError):
    """Two files claim one rank."""


class MixedJobs(RunError):
    """The files come from different jobs."""


class NoSuchRanks(RunError):
    """The chosen ranks are not there."""


class NoSuchSteps(RunError):
    """The chosen steps are not there."""


class TimingsError(AnalysisError):
    """The timings of a sweep cannot be used."""


class DamagedTimings(TimingsError):
    """A file that holds timings is malformed, or contradicts another."""


class NoTimings(TimingsError):
    """There are no timings."""


class DuplicateCell(TimingsError):
    """Two timings of one cell."""


class TrainingError(AnalysisError):
    """The epochs of a training cannot be used."""


class DamagedTraining(TrainingError):
    """A file that holds the epochs of a training is malformed."""


class NoTraining(TrainingError):
    """There are no epochs of a training."""


class DamagedMeasurement(AnalysisError):
    """A file of `layers` or `lab` is malformed."""


class NotACeiling(AnalysisError):
    """A file given as a ceiling holds no measurement of collectives."""


class NotMeasuredPeaks(AnalysisError):
    """A file given as the peaks of a device holds none that were measured."""


class NothingMeasured(AnalysisError):
    """The run has no data for this result."""


class BadScenario(AnalysisError):
    """The scenario makes no sense for the run."""


class NotPredictable(AnalysisError):
    """The replay is too far from the measured steps to predict from it."""


class CannotServe(AnalysisError):
    """The file cannot be served to the viewer: its port is in use."""


class NothingListens(AnalysisError):
    """No running job takes requests for captures in this run directory, or answers them."""


class WatchedAlready(AnalysisError):
    """Another process follows the run with the same state file."""


class UnknownTable(AnalysisError):
    """No table has this name."""


class UnknownTerm(AnalysisError):
    """No term, table or column has this name."""


class MissingLibrary(AnalysisError):
    """An option needs a library that is not installed."""


class SlowExpression(AnalysisError):
    """A regular expression that somebody gave takes too long on a name."""


class ClusterError(AnalysisError):
    """Remote workers cannot be reached, or cannot do the work."""


class SchemaError(AnalysisError):
    """A table does not have the columns it promises."""
