"""`commtrace_capture`, a fixture for tests of how long steps communicate.

Everyone who has commtrace installed imports this whenever pytest starts: only what is there anyway, before a test asks.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..analysis.results.analysis import Analysis

_LEVEL = 0.1
"""Two-sided: what is said to be too much is so nineteen times in twenty."""
_LAST_LINES = 20


class CapturedRun:
    """A run whose communication is asserted. What its traces cannot tell skips the test, with the reason.

    Steps of a busy machine differ, so that an assertion fails only if what it forbids is so beyond chance.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._analysis: Analysis | None = None

    @property
    def analysis(self) -> Analysis:
        """The run as `commtrace.analyse` reads it. Raises AnalysisError."""
        if self._analysis is None:
            from .. import analyse

            self._analysis = analyse(self.folder)
        return self._analysis

    def assert_exposed_comm(self, *, most_frac: float) -> None:
        """Assert that communication behind which nothing is computed takes at most this fraction of a step.

        Raises AssertionError if it takes more by the mean of the steps that count, and by the lower end of its 90 %
        interval, by Student's t. Skips where no two steps count.
        """
        counted = self.analysis.typical_step.steps
        rows = self.analysis.breakdown_steps
        by_step = rows[rows["step"].isin(counted)].groupby("step")[["exposed_comm_ns", "window_ns"]].sum()
        fractions = [float(each) for each in by_step["exposed_comm_ns"] / by_step["window_ns"]]
        if len(fractions) < 2:
            self._skip(f"{len(fractions)} of its steps can be counted, and a mean needs two or more")
        mean, low = sum(fractions) / len(fractions), _least_mean(fractions)
        if low > most_frac:
            said = f"exposed communication takes {mean:.1%} of a step ({low:.1%} or more), and may take {most_frac:.1%}"
            raise AssertionError(self._with_headline(said))

    def assert_gain(self, *, most_frac: float, remedy: str | None = None) -> None:
        """Assert that no change that `commtrace table remedies` lists, or not this one, gains more of a step.

        Raises AssertionError if the lower end of a gain is above `most_frac`. Skips where the run cannot be played
        again, or where the gain is not known of a change that is about more. Names are those of the column `remedy`.
        """
        from ..analysis.core.schema import records

        table = self.analysis.remedies
        if self.analysis.prices is None:
            self._skip("it cannot be played again, so that gains are not known")
        step_ns = self.analysis.typical_step.parts["window_ns"]
        chosen = table if remedy is None else table[table["remedy"] == remedy]
        rows = records(chosen)
        for row in rows:
            if row["gain_low_ns"] is not None and row["gain_low_ns"] > most_frac * step_ns:
                least = f"{row['gain_frac']:.1%} of a step ({row['gain_low_ns'] / step_ns:.1%} or more)"
                said = f"{row['remedy']} ({row['what']}) gains {least}, and may gain {most_frac:.1%}"
                raise AssertionError(self._with_headline(said))
        for row in rows:
            about = row["concerned_frac"]
            if row["gain_ns"] is None and (about is None or about > most_frac):
                self._skip(f"what {row['remedy']} ({row['what']}) gains is not known")

    def _with_headline(self, said: str) -> str:
        headline = self.analysis.verdicts["headline"].iloc[0]
        return f"{said}. {headline}. More: commtrace {self.folder}"

    def _skip(self, why: str) -> None:
        pytest.skip(f"commtrace cannot tell from {self.folder}: {why}")


class CaptureFixture:
    """Captures of one test; each in a folder of its own below that of the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._captures = 0

    def new_folder(self) -> Path:
        """The name of a folder that is not there yet, for `commtrace.capture`."""
        self._captures += 1
        return self._folder / f"capture-{self._captures}"

    def script(
        self,
        script: str | Path,
        *arguments: object,
        workers: int | None = None,
        options: Sequence[str] = (),
        timeout_s: float = 600.0,
    ) -> CapturedRun:
        """Run a script as `commtrace run --workers WORKERS OPTIONS SCRIPT ARGUMENTS` does, and return what it shows.

        Fails the test if the script does, or takes longer than `timeout_s`.
        """
        folder = self.new_folder()
        ranks = [] if workers is None else ["--workers", str(workers)]
        named = ["--out", str(folder.parent), "--run-name", folder.name, "--strict"]
        command = ["-m", "commtrace", "run", *named, *ranks, *options, str(script), *map(str, arguments)]
        try:
            done = subprocess.run(  # noqa: S603 - what the test names
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.fail(f"{script} took longer than {timeout_s:g} s", pytrace=False)
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
            pytest.fail(f"{script} ended with exit code {done.returncode}:\n{last}", pytrace=False)
        return self.read(folder)

    def read(self, folder: str | Path) -> CapturedRun:
        """What a run directory shows, which may be from anywhere."""
        return CapturedRun(Path(folder))


@pytest.fixture
def commtrace_capture(tmp_path: Path) -> CaptureFixture:
    """Capture training in a test, and assert what its steps spend on communication (commtrace)."""
    return CaptureFixture(tmp_path)


def _least_mean(values: Sequence[float]) -> float:
    """The lower end of the interval of the mean."""
    from statistics import fmean, stdev

    from ..analysis.core.student import student_quantile

    return fmean(values) - student_quantile(len(values) - 1, _LEVEL) * stdev(values) / math.sqrt(len(values))
