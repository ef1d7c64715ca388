"""Notice that the clock of this host was set while steps were traced. Knows no torch.

torch takes times of a trace from a counter of the CPU, and converts them by what the clock showed when the recording
began and ended. So a clock that is set in between, if only by two seconds, stretches or turns round all times of the
trace, and nothing in it tells. Source: ApproximateClockToUnixTimeConverter, c10/util/ApproximateClock.cpp of PyTorch.
"""

import time

# Clocks that NTP adjusts run up to 0.05 % faster or slower, and reading two of them takes some time.
_MOST_SHARE = 0.01
_MOST_NS = 1_000_000


class WallClock:
    """The clock of the host beside one that nobody sets."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Compare from now on."""
        self._unix_ns, self._ns = time.time_ns(), time.perf_counter_ns()

    def why_wrong(self) -> str | None:
        """Why times since `begin` cannot be believed; None if they can."""
        passed_ns = time.perf_counter_ns() - self._ns
        ahead_ns = time.time_ns() - self._unix_ns - passed_ns
        if abs(ahead_ns) <= _MOST_NS + _MOST_SHARE * passed_ns:
            return None
        how = "forward" if ahead_ns > 0 else "back"
        return (
            f"the clock of this host was set {how} by {abs(ahead_ns) / 1e9:,.3f} s while steps were traced; all times "
            "of the trace are wrong, so it is not kept; capture again"
        )
