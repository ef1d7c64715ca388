"""How a running job is asked for a capture, and how its ranks agree on the step: small files in its run directory.

    RUN_DIR/trigger                somebody asks: an empty file, or a `Request` as JSON
    RUN_DIR/.trigger/plan          rank 0 tells all ranks: a `Plan`
    RUN_DIR/.trigger/pulse-RANK    each rank tells how far it is: a `Pulse`

Whatever else is found under these names is taken for nothing: a job must go on whatever state its folder is in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import disk

REQUEST = "trigger"
FOLDER = ".trigger"
ON_DEMAND_STEPS = 5
"""Steps that are traced where a request names no number."""
MOST_STEPS = 1000
_PLAN = "plan"
_PULSE = "pulse-"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Request:
    """What somebody asks for: so many steps of these ranks; None for all of them."""

    steps: int = ON_DEMAND_STEPS
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What rank 0 has decided. `number` counts from 1; 0 says that nothing was asked for yet."""

    number: int = 0
    from_step: int = 0
    steps: int = ON_DEMAND_STEPS
    ranks: tuple[int, ...] | None = None

    def has(self, rank: int) -> bool:
        """Whether this rank is to be traced."""
        return self.ranks is None or rank in self.ranks


@dataclass(frozen=True)
class Pulse:
    """How far a rank is: steps that it has done, and how long the last ones took on average, since the pulse before."""

    rank: int
    step: int
    unix_ns: int
    step_ns: int | None
    every_s: float


_Message = TypeVar("_Message", Request, Plan, Pulse)


def folder_of_plan(run_dir: Path, plan: Plan) -> Path:
    """The run directory of what is captured on demand: beside that of the job."""
    named = run_dir.resolve() if run_dir.name in ("", "..") else run_dir
    return named.with_name(f"{named.name}-step{plan.from_step}")


def request_of(run_dir: Path) -> Request | None:
    """What is asked for at the moment; None for nothing."""
    path = run_dir / REQUEST
    try:
        descriptor, status = disk.open_plain(path)
        os.close(descriptor)
    except OSError:
        return None
    return (_read(path, Request) if status.st_size else None) or Request()


def ask(run_dir: Path, request: Request) -> None:
    """Ask for a capture, in place of whatever was asked for before. Raises OSError."""
    _write(run_dir / REQUEST, request)


def take_back(run_dir: Path) -> None:
    """Remove the request. Raises OSError."""
    (run_dir / REQUEST).unlink(missing_ok=True)


def plan_of(run_dir: Path) -> Plan | None:
    """What was decided last; None if nothing can be read.

    The file is opened, not looked for: a network file system asks its server again only for what is opened.
    """
    return _read(run_dir / FOLDER / _PLAN, Plan)


def decide(run_dir: Path, plan: Plan) -> None:
    """Tell all ranks. Raises OSError."""
    _write(run_dir / FOLDER / _PLAN, plan)


def beat(run_dir: Path, pulse: Pulse) -> None:
    """Tell how far a rank is. Raises OSError."""
    _write(run_dir / FOLDER / f"{_PULSE}{pulse.rank}", pulse)


def pulses_of(run_dir: Path) -> dict[int, Pulse]:
    """The last pulse of each rank; none of those that have ended by themselves."""
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in os.listdir(run_dir / FOLDER) if name.startswith(_PULSE)]  # noqa: PTH208
    found = (_read(run_dir / FOLDER / name, Pulse) for name in names)
    return {pulse.rank: pulse for pulse in found if pulse is not None}


def leave(run_dir: Path, rank: int) -> None:
    """Remove what a rank has left: rank 0 also the plan, and the last one the folder."""
    names = [f"{_PULSE}{rank}", *([_PLAN] if rank == 0 else [])]
    with suppress(OSError):
        for name in names:
            (run_dir / FOLDER / name).unlink(missing_ok=True)
        (run_dir / FOLDER).rmdir()


def _write(path: Path, message: Request | Plan | Pulse) -> None:
    """Replace the file as a whole. It need not last: after a power cut there is no job to tell."""
    with disk.replacing(path, lasting=False) as file:
        file.write(json.dumps(asdict(message)).encode())


def _read(path: Path, kind: type[_Message]) -> _Message | None:
    """The message in a file; None if there is none that makes sense."""
    try:
        descriptor, _ = disk.open_plain(path)
        with os.fdopen(descriptor, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        return _checked(kind(**found))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _checked(message: _Message) -> _Message:
    """The message, with ranks as a tuple. Raises ValueError where a number is none, or out of bounds."""
    values: dict[str, Any] = asdict(message)
    ranks: Sequence[Any] | None = values.pop("ranks", None)
    numbers = [*(value for name, value in values.items() if (name, value) != ("step_ns", None)), *(ranks or ())]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ValueError("no number")
    if not all(isinstance(number, int) and number < 1 << 63 for number in numbers if number != values.get("every_s")):
        raise ValueError("no whole number")
    if not 0 < values.get("steps", 1) <= MOST_STEPS:
        raise ValueError("steps")
    return message if ranks is None else type(message)(**{**asdict(message), "ranks": tuple(ranks)})
