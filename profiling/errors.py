"""Every error of this package that a user can do something about; each message is one line.

Errors that a sweep must distinguish have their own exit codes, which it gets from the commands that it runs.

ProfilingError
├── UsageError       options that contradict each other, or a profiler schedule that cannot work
│   └── TargetError  there is no such script or module to run
├── RunDirError      the run directory is taken, or cannot be written
│   ├── UnwritableError       a file or folder cannot be written
│   └── RunDirRefusedError    by rank 0, which says so itself
├── DataError        a data set is missing or damaged
│   └── OutOfDataError        it has less than one batch for every rank
├── OutOfMemoryError a rank could not allocate memory
├── DeviceError      a device that was asked for is not there
├── LibraryError     a library this needs is not installed, or does not load
├── MeasurementError  nothing could be measured, or results are wrong
├── CaptureError     the profiler cannot start, or ranks did not enter it together
└── RankFailedError  a launched rank ended with an error of its own
"""


class ProfilingError(Exception):
    """Root of the errors above. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(ProfilingError):
    """Options that contradict each other, or a profiler schedule that cannot work."""

    exit_code = 2


class TargetError(UsageError):
    """There is no such script or module to run."""


class RunDirError(ProfilingError):
    """The run directory is taken, or cannot be written."""


class UnwritableError(RunDirError):
    """A file or folder of a run cannot be written: the disk is full, read-only, or somebody else's."""


class RunDirRefusedError(RunDirError):
    """Rank 0 could not use the run directory, and says so itself."""


class DataError(ProfilingError):
    """A data set is missing or damaged."""


class OutOfDataError(DataError):
    """A data set has less than one batch for every rank."""

    exit_code = 4


class OutOfMemoryError(ProfilingError):
    """A rank could not allocate memory."""

    exit_code = 3


class DeviceError(ProfilingError):
    """A device that was asked for is not there."""


class LibraryError(ProfilingError):
    """A library this needs is not installed, or does not load."""


class CaptureError(ProfilingError):
    """The profiler cannot start, or ranks did not enter it together."""


class MeasurementError(ProfilingError):
    """Nothing of what was asked for could be measured, or collectives gave wrong results."""


class RankFailedError(ProfilingError):
    """A launched rank ended with an error of its own; `exit_code` is that rank's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
