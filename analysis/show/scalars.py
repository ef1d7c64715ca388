"""A run as a few numbers of constant names, for what logs a training. What people see of it first says the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from ..core.schema import records
from ..results.analysis import Analysis
from .first_screen import COMMUNICATION, FirstScreen, Rate, first_screen

SCALAR_PREFIX = "commtrace/"
SCALAR_TIMES = {
    "step_ms": ("window_ns", "length of a step"),
    "compute_ms": ("compute_ns", "with at least one compute kernel running"),
    "exposed_comm_ms": ("exposed_comm_ns", "communicating, and not computing"),
    "exposed_wait_ms": ("exposed_wait_ns", "the part of that spent waiting for other ranks"),
    "exposed_transfer_ms": ("exposed_transfer_ns", "the part of that in which data moved"),
    "hidden_comm_ms": ("overlap_ns", "communicating behind compute"),
    "idle_ms": ("idle_ns", "with nothing running"),
}
"""Times of a step in ms: names -> columns of `breakdown`, and what they are. TensorBoard has them of each step too."""
_PARTS_OF_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns")
_NOT_SPLIT = "no exposed communication could be split into waiting and transfer"


class _Looked(NamedTuple):
    """What scalars are made of."""

    analysis: Analysis
    screen: FirstScreen
    step_ns: dict[str, float]


class RunScalar(NamedTuple):
    """A number of a run: its name with its unit, what it is, and why it is not known where it is None."""

    name: str
    what: str
    of: Callable[[_Looked], float | None]
    unknown: str


@dataclass(frozen=True)
class ScalarsOfRun:
    """The numbers that are known, by name with prefix, and why others are not; `headline` is the first sentence."""

    run: str
    headline: str
    scalars: dict[str, float]
    unknown: dict[str, str]

    def as_json(self) -> str:
        """The same as JSON, in lines."""
        return f"{json.dumps(asdict(self), indent=2)}\n"


def run_scalars(analysis: Analysis) -> ScalarsOfRun:
    """The scalars of a run: times are those of a typical step. Raises AnalysisError."""
    screen = first_screen(analysis)
    looked = _Looked(analysis, screen, _times(analysis) if screen.parts else {})
    values = [(scalar, scalar.of(looked)) for scalar in RUN_SCALARS]
    return ScalarsOfRun(
        run=screen.name,
        headline=screen.headline,
        scalars={SCALAR_PREFIX + scalar.name: float(value) for scalar, value in values if value is not None},
        unknown={SCALAR_PREFIX + scalar.name: scalar.unknown for scalar, value in values if value is None},
    )


def _times(analysis: Analysis) -> dict[str, float]:
    """The columns of `breakdown` in a typical step, in ns; those that are not known are left out."""
    parts = analysis.typical_step.parts
    exposed = sum(parts[column] for column in COMMUNICATION)
    found = {column: parts[column] for column in ("window_ns", "overlap_ns", "idle_ns")} | {
        "compute_ns": parts["compute_alone_ns"] + parts["overlap_ns"],
        "exposed_comm_ns": exposed,
    }
    if exposed > parts["exposed_unsplit_ns"] or not exposed:
        found |= {column: parts[column] for column in _PARTS_OF_EXPOSED}
    return found


def _time(column: str) -> Callable[[_Looked], float | None]:
    return lambda looked: looked.step_ns[column] / 1e6 if column in looked.step_ns else None


def _exposed_frac(looked: _Looked) -> float | None:
    whole = looked.step_ns.get("window_ns")
    return looked.step_ns["exposed_comm_ns"] / whole if whole else None


def _mfu_frac(looked: _Looked) -> float | None:
    mfu = looked.screen.mfu
    return None if mfu is None or mfu.is_bound else mfu.frac


def _busbw(looked: _Looked) -> float | None:
    rate = _first_rate(looked)
    return None if rate is None else rate.slowest_gb_per_s


def _of_normal_frac(looked: _Looked) -> float | None:
    rate = _first_rate(looked)
    return None if rate is None else rate.of_normal_frac


def _first_rate(looked: _Looked) -> Rate | None:
    return next((rate for rate in looked.screen.rates if not rate.is_latency), None)


def _latest(looked: _Looked, column: str) -> float | None:
    rows = [row for row in records(looked.analysis.table("ranks")) if row["caused_wait_ns"]]
    latest = max(rows, key=lambda row: row["caused_wait_ns"], default=None)
    return None if latest is None else latest[column]


def _gain_ms(looked: _Looked) -> float | None:
    screen = looked.screen
    if screen.nothing_to_gain:
        return 0.0
    gain_ns = screen.remedies[0].gain_ns if screen.remedies else None
    return None if gain_ns is None else gain_ns / 1e6


def _steps(looked: _Looked) -> float | None:
    return len(looked.analysis.typical_step.steps) if looked.step_ns else None


def _ranks(looked: _Looked) -> float | None:
    return len(looked.analysis.run.ranks)


_UNTIMED = "no device was seen at work"
_NO_RATE = "no bandwidth of a collective could be measured"
_NOT_LATE = "no rank is known to have made others wait"
RUN_SCALARS = (
    *(
        RunScalar(name, what, _time(column), _NOT_SPLIT if column in _PARTS_OF_EXPOSED else _UNTIMED)
        for name, (column, what) in SCALAR_TIMES.items()
    ),
    RunScalar("exposed_comm_frac", "`exposed_comm_ms` / `step_ms`", _exposed_frac, _UNTIMED),
    RunScalar("mfu_frac", "model FLOPs utilisation", _mfu_frac, "FLOPs of kernels or the peak are not known"),
    RunScalar("busbw_gb_per_s", "bus bandwidth of the collective that most time is spent on, in its slowest group",
              _busbw, _NO_RATE),
    RunScalar("busbw_of_normal_frac", "the same / what others reach on such devices", _of_normal_frac,
              "what others reach there is not known"),
    RunScalar("late_rank", "the rank that caused most waiting of others", lambda looked: _latest(looked, "rank"),
              _NOT_LATE),
    RunScalar("late_rank_wait_frac", "what it caused / waiting of all ranks",
              lambda looked: _latest(looked, "caused_wait_frac"), _NOT_LATE),
    RunScalar("first_gain_ms", "what a step would gain by the first change to try; 0 if there is none", _gain_ms,
              "the run cannot be played again"),
    RunScalar("steps", "steps that count", _steps, _UNTIMED),
    RunScalar("ranks", "ranks with a trace", _ranks, _UNTIMED),
)  # fmt: skip
"""All of them, in the order of the page that lists them."""
