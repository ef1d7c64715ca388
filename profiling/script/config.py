"""The options of `run`, checked against each other. Knows no torch."""

import re
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..base.detail import SHAPES_ONLY, Detail
from ..base.keeping import TRACES_ONLY, Keeping
from ..base.schedule import Schedule, check_leading_steps
from ..errors import UsageError

WHOLE_RUN = Schedule(wait=0, warmup=0, active=1)
UNTIL_PLANNED = 10**9
"""The steps that a schedule waits for which begins at a minute: until rank 0 has told all ranks the step."""


@dataclass(frozen=True)
class Target:
    """What to run: a script, or a module if `is_module`, and its arguments."""

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def stem(self) -> str:
        """A name of the target for a folder."""
        name = self.name if self.is_module else Path(self.name).resolve().stem
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "script"


@dataclass(frozen=True)
class Limits:
    """Where `--whole-run` stops tracing: after some seconds, or when the process has grown by some GB."""

    seconds: float = 60.0
    memory_gb: float = 8.0

    def __post_init__(self) -> None:
        for option, value in (("--max-seconds", self.seconds), ("--max-memory-gb", self.memory_gb)):
            if not value > 0:
                raise UsageError(f"{option} {value:g}: expected a number above 0")


@dataclass(frozen=True)
class StepOn:
    """A function whose return ends a step: its module, None for the script itself, and its name in there."""

    module: str | None
    name: str

    @classmethod
    def parsed(cls, text: str) -> "StepOn":
        """From `MODULE:NAME`, or `NAME` in the script itself. Raises UsageError."""
        module, _, name = text.rpartition(":")
        if not all(word.isidentifier() for word in f"{module or '__main__'}.{name}".split(".")):
            raise UsageError(f"--step-on {text}: expected MODULE:NAME, or the NAME of a function of the script")
        return cls(module or None, name)

    def is_of(self, target: Target) -> bool:
        """Whether the function is the script's own."""
        return self.module in (None, "__main__", target.name if target.is_module else Path(target.name).stem)


@dataclass(frozen=True)
class RunConfig:
    """One run of a script. With `limits`, all of it is traced, without a schedule.

    `out` is absolute: the script may change the directory. `steps_of` is the number of optimizer steps in a step, None
    to find out; `step_on` names the function whose return ends a step.
    """

    target: Target
    out: Path
    schedule: Schedule = WHOLE_RUN
    limits: Limits | None = None
    run_name: str | None = None
    detail: Detail = SHAPES_ONLY
    keeping: Keeping = TRACES_ONLY
    flight_recorder: bool = False
    strict: bool = False
    from_minute: float | None = None
    steps_of: int | None = None
    step_on: str | None = None

    def __post_init__(self) -> None:
        if self.run_name is not None and Path(self.run_name).name != self.run_name:
            raise UsageError(f"--run-name {self.run_name}: expected one folder name; give the folder above it as --out")
        if self.step_on is not None:
            StepOn.parsed(self.step_on)  # which refuses what is none
        if self.limits is None:
            # The step that opens the capture is the first of DDP's two.
            check_leading_steps(
                self.schedule, 1, "DDP rebuilds its buckets at the beginning of the second optimizer step"
            )

    def run_dir(self, world_size: int, part: str | None = None, restarts: int = 0) -> Path:
        """The run directory; `part` distinguishes captures of one command, and `restarts` those of one job."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        name = self.run_name or f"{self.target.stem}-w{world_size}-{stamp}"
        again = f"restart{restarts}" if restarts else None
        return self.out / "-".join(filter(None, (name, part, again)))

    def as_json(self) -> dict[str, Any]:
        """Every option, for run.json."""
        return asdict(self) | {"out": str(self.out)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "RunConfig":
        """The config that `as_json` wrote."""
        limits = state["limits"]
        parts = {
            "target": Target(**state["target"]),
            "out": Path(state["out"]),
            "schedule": Schedule(**state["schedule"]),
            "detail": Detail(**state["detail"]),
            "keeping": Keeping(**state["keeping"]),
            "limits": None if limits is None else Limits(**limits),
        }
        return cls(**{**state, **parts})
