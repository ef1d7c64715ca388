"""How a running job is asked for a capture, and how its ranks agree on the step: small files in its run directory.

    RUN_DIR/trigger                somebody asks: an empty file, or a `Request` as JSON
    RUN_DIR/trigger.refused        rank 0 says why it did not take the last request
    RUN_DIR/.trigger/plan          rank 0 tells all ranks: a `Plan`
    RUN_DIR/.trigger/pulse-RANK    each rank tells how far it is: a `Pulse`
    RUN_DIR-stepN/                 where a capture goes, which rank 0 makes

No link is followed at any of these names. A request that makes no sense is refused, and what else is found is taken for
nothing unless it is right: a job must go on whatever state its folder is in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from . import disk
from .wording import ranks_in_words

REQUEST = "trigger"
REFUSAL = "trigger.refused"
FOLDER = ".trigger"
ON_DEMAND_STEPS = 5
"""Steps that are traced where a request names no number."""
MOST_STEPS = 1000
MOST_RANKS = 1 << 20
_PLAN = "plan"
_PULSE = "pulse-"
_MOST_BYTES = 1 << 20
_MOST_S = 1e6
_MOST_FOLDERS = 100
_MOST_SHOWN = 60
_MOST_NAME = 255
_EXPECTED = 'expected an empty file, or JSON such as {"steps": 2, "ranks": [0, 1]}'


class WrongRequest(ValueError):
    """A request that makes no sense; the message says what was expected and found."""


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


Beside = Literal["evaluation", "checkpoint"]
"""What a rank does that is no step of training."""
Need = Literal["collective", "backward"]
"""What ended the time that a rank needed no other one for: a collective, or a backward pass, which holds some."""


@dataclass(frozen=True)
class Pulse:
    """How far a rank is: steps that it has done, and how long the last ones took on average, since the pulse before.

    Ranks that train together take the same time, as all wait for the last one. So there is also how long one of these
    steps went on before this rank needed any other: `alone_ns`, from the end of the step before until what `need` says;
    None where that was not seen. `beside` was done since the pulse before, or goes on.
    """

    rank: int
    step: int
    unix_ns: int
    step_ns: int | None
    every_s: float
    host: str = ""
    alone_ns: int | None = None
    need: Need | None = None
    beside: Beside | None = None


_Message = TypeVar("_Message", Plan, Pulse)


def folder_of_plan(run_dir: Path, plan: Plan) -> Path:
    """The run directory of what is captured on demand: beside that of the job."""
    named = run_dir.resolve() if run_dir.name in ("", "..") else run_dir
    return named.with_name(f"{named.name}-step{plan.from_step}")


def make_folder_of_plan(run_dir: Path, plan: Plan) -> Plan:
    """Make the run directory of a capture, and return the plan; a later one where a step's name is taken.

    Whatever has a name already, be it a link, is left alone. Raises OSError.
    """
    for later in range(_MOST_FOLDERS):
        tried = replace(plan, from_step=plan.from_step + later)
        with suppress(FileExistsError):
            folder_of_plan(run_dir, tried).mkdir()
            return tried
    raise FileExistsError(None, f"{folder_of_plan(run_dir, plan)} and the next {_MOST_FOLDERS - 1} are there already")


def request_of(run_dir: Path, world_size: int = MOST_RANKS) -> Request | None:
    """What a job of this many ranks is asked for at the moment; None for nothing. Raises WrongRequest."""
    try:
        content = _content(run_dir / REQUEST, None)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise WrongRequest(f"{_EXPECTED}; found something that {err.strerror or err}") from err
    if not content:
        return Request()
    request = _request(content)
    if request.ranks is not None and min(request.ranks) >= world_size:
        has = ranks_in_words(range(world_size))
        raise WrongRequest(f'"ranks" names none of the job, which has {has}; found {_shown(list(request.ranks))}')
    return request


def ask(run_dir: Path, request: Request) -> None:
    """Ask for a capture, in place of whatever was asked for before, or refused. Raises OSError."""
    (run_dir / REFUSAL).unlink(missing_ok=True)
    with disk.replacing(run_dir / REQUEST, lasting=False) as file:
        file.write(json.dumps(asdict(request)).encode())


def refuse(run_dir: Path, why: str) -> None:
    """Say beside the request why it is not answered. Raises OSError."""
    with disk.replacing(run_dir / REFUSAL, lasting=False) as file:
        file.write(f"{REQUEST}: refused: {why}\n".encode())


def refusal_of(run_dir: Path) -> str | None:
    """Why the last request was refused; None if none was."""
    try:
        return _content(run_dir / REFUSAL, None).decode("utf-8", "replace").strip()
    except OSError:
        return None


def take_back(run_dir: Path) -> None:
    """Remove the request. Raises OSError."""
    (run_dir / REQUEST).unlink(missing_ok=True)


def plan_of(run_dir: Path) -> Plan | None:
    """What was decided last; None if nothing can be read.

    The file is opened, not looked for: a network file system asks its server again only for what is opened.
    """
    try:
        with _folder(run_dir) as folder:
            return _read(_PLAN, folder, Plan)
    except OSError:
        return None


def make_folder(run_dir: Path) -> None:
    """Make the folder of what ranks tell each other, if there is none. Raises OSError."""
    with suppress(FileExistsError):
        (run_dir / FOLDER).mkdir()


def decide(run_dir: Path, plan: Plan) -> None:
    """Tell all ranks. Raises OSError."""
    _write(run_dir, _PLAN, plan)


def beat(run_dir: Path, pulse: Pulse) -> None:
    """Tell how far a rank is. Raises OSError."""
    _write(run_dir, f"{_PULSE}{pulse.rank}", pulse)


def pulses_of(run_dir: Path) -> dict[int, Pulse]:
    """The last pulse of each rank; none of those that have ended by themselves."""
    with suppress(OSError), _folder(run_dir) as folder:
        names = [name for name in os.listdir(folder) if name.startswith(_PULSE)]  # noqa: PTH208
        found = {name: _read(name, folder, Pulse) for name in names}
        return {pulse.rank: pulse for name, pulse in found.items() if pulse and name == f"{_PULSE}{pulse.rank}"}
    return {}


def leave(run_dir: Path, rank: int) -> None:
    """Remove what a rank has left: rank 0 also the plan, and the last one the folder."""
    with suppress(OSError):
        with _folder(run_dir) as folder:
            for name in (f"{_PULSE}{rank}", *([_PLAN] if rank == 0 else [])):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        (run_dir / FOLDER).rmdir()


@contextmanager
def _folder(run_dir: Path) -> Iterator[int]:
    """The open folder of what ranks tell each other. Raises OSError if there is none, also for a link to one."""
    try:
        folder = disk.held_folder(run_dir / FOLDER, follow=False)
    except NotADirectoryError as err:
        raise NotADirectoryError(err.errno, f"{FOLDER} is no folder") from err
    try:
        yield folder
    finally:
        os.close(folder)


def _write(run_dir: Path, name: str, message: Plan | Pulse) -> None:
    """Replace the file as a whole. It need not last: after a power cut there is no job to tell."""
    with _folder(run_dir) as folder, disk.replacing(Path(name), lasting=False, within=folder) as file:
        file.write(json.dumps(asdict(message)).encode())


def _read(name: str, folder: int, kind: type[_Message]) -> _Message | None:
    """The message in a file; None if there is none that makes sense."""
    try:
        found = json.loads(_content(Path(name), folder))
        if isinstance(found, dict) and found.get("ranks") is not None:
            found["ranks"] = _ranks(found["ranks"])
        return _checked(kind(**found))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _content(path: Path, within: int | None) -> bytes:
    """What a file holds, up to one byte more than the largest one that is read. Raises OSError."""
    descriptor, _ = disk.open_plain(path, follow=False, within=within)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_BYTES + 1)


def _checked(message: _Message) -> _Message:
    """The message. Raises ValueError where a number is none, or out of bounds."""
    values: dict[str, Any] = {name: value for name, value in asdict(message).items() if name != "ranks"}
    for name in ("step_ns", "alone_ns"):
        if values.get(name, 0) is None:
            del values[name]
    if values.pop("need", None) not in (None, *get_args(Need)):
        raise ValueError("need")
    if values.pop("beside", None) not in (None, *get_args(Beside)):
        raise ValueError("beside")
    host = values.pop("host", "")
    if not isinstance(host, str) or len(host) > _MOST_NAME:
        raise ValueError("host")
    every_s = values.pop("every_s", 0)
    if not isinstance(every_s, int | float) or isinstance(every_s, bool) or not 0 <= every_s < _MOST_S:
        raise ValueError("every_s")
    if not all(_is_whole(number, 0, (1 << 63) - 1) for number in values.values()):
        raise ValueError("no whole number")
    if not 0 < values.get("steps", 1) <= MOST_STEPS:
        raise ValueError("steps")
    return message


def _request(content: bytes) -> Request:
    """The request that a file holds. Raises WrongRequest."""
    if len(content) > _MOST_BYTES:
        raise WrongRequest(f"{_EXPECTED}; found more than {_MOST_BYTES:,} bytes")
    try:
        found = json.loads(content, object_pairs_hook=_once_each)
    except WrongRequest:
        raise
    except (ValueError, RecursionError) as err:
        raise WrongRequest(f"{_EXPECTED}; found no JSON: {err}") from err
    if not isinstance(found, dict):
        raise WrongRequest(f"{_EXPECTED}; found {_shown(found)}")
    unknown = sorted(found.keys() - {"steps", "ranks"})
    if unknown:
        raise WrongRequest(f'expected no other fields than "steps" and "ranks"; found {_shown(unknown[0])}')
    steps, ranks = found.get("steps", ON_DEMAND_STEPS), found.get("ranks")
    if not _is_whole(steps, 1, MOST_STEPS):
        raise WrongRequest(f'expected as "steps" a whole number from 1 to {MOST_STEPS:,}; found {_shown(steps)}')
    try:
        return Request(steps, None if ranks is None else _ranks(ranks))
    except ValueError as err:
        raise WrongRequest(
            f'expected as "ranks" a list of ranks such as [0, 1, 2], or null for all; found {_shown(ranks)}'
        ) from err


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises WrongRequest where a field stands in it twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise WrongRequest("expected each field once; found one of them twice")
    return found


def _ranks(found: Any) -> tuple[int, ...]:
    """A list of ranks, ascending. Raises ValueError if it is none, or empty."""
    if not isinstance(found, list | tuple) or not found or not all(_is_whole(one, 0, MOST_RANKS - 1) for one in found):
        raise ValueError("no ranks")
    return tuple(sorted(set(found)))


def _is_whole(number: Any, least: int, most: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def _shown(value: Any) -> str:
    """A value of JSON, in ASCII, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
