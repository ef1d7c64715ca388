"""Options of reading trace files: one entry for each, from the caller and the command line down to every reader."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from ..core.budget import GB, Budget
from ..core.expressions import compiled
from ..core.step_names import check_groups, may_mark_steps
from .sizes import USUAL_SIZES, ReadSizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MOST_NUMBERS = 1 << 20
_STEPS_OF_A_CYCLE = 100_000
"""More than any file has."""
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

Progress = Callable[[int], None]
"""Called now and then with the bytes read so far: of one file as it is on disk, or of all files of a run."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What only all files of a run together give, and what must be known before one is read.

    `communicators` are hashes, which all members know, and the global ranks of the members; `epochs` are names of
    hosts, and unix time in ns at which the clock of the host was 0.
    """

    communicators: tuple[tuple[int, tuple[int, ...]], ...] = ()
    epochs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ReadingOption:
    """An option of reading: on the command line this flag, which takes what `metavar` says, of this type.

    Without metavar it takes nothing, with a list of texts it may be given again and again. `usual` says what happens
    without it, `instead_of` names the option that it cannot be given together with. `kept` makes what ReadOptions keep
    of what was given. Raises ValueError there.
    """

    flag: str
    metavar: str
    help: str
    kept: Callable[[Any], Any]
    type: Any = str
    usual: str = ""
    instead_of: str = ""

    @property
    def meaning(self) -> str:
        """What it does, and what happens without it."""
        return f"{self.help.removesuffix('.')}; without it {self.usual}." if self.usual else self.help


def _option(
    default: _T,
    flag: str,
    metavar: str,
    help: str,  # noqa: A002 - as typer has it
    kept: Callable[[Any], Any],
    **more: Any,
) -> _T:
    """A field of ReadOptions that is an option."""
    made: _T = field(default=default, metadata={"option": ReadingOption(flag, metavar, help, kept, **more)})
    return made


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    """Several texts; a single one is not its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    patterns = _texts(given)
    for pattern in patterns:
        compiled(pattern)
    return patterns


def _marker(given: str | None) -> str | None:
    if given is not None:
        check_groups(given)
    return given


def _numbers(given: str | int | Iterable[int]) -> tuple[int, ...]:
    if isinstance(given, int):
        return (given,)
    return tuple(numbers_in(given) if isinstance(given, str) else given)


def _at_least(least: int) -> Callable[[int | None], int | None]:
    def kept(given: int | None) -> int | None:
        if given is not None and given < least:
            raise ValueError(f"{given} is less than {least}")
        return given

    return kept


def _memory(given: float | None) -> float | None:
    if given is not None and not (isfinite(given) and given > 0):
        raise ValueError(f"{given} is not a finite number above 0")
    return given


def _place(given: str | os.PathLike[str] | bool) -> str | bool:
    return given if isinstance(given, bool) else os.fspath(given)


class GivenOptions(TypedDict, total=False):
    """Options of reading as callers may give them; what they mean is said once, in `ReadOptions`."""

    ranks: str | int | Iterable[int]
    hosts: str | Iterable[str]
    groups: str | Iterable[str]
    steps: str | int | Iterable[int]
    last: int | None
    whole: bool
    step_marker: str | None
    comm_names: str | Iterable[str]
    keep_going: bool
    workers: int | None
    cache: str | os.PathLike[str] | bool
    verify: bool
    memory_gb: float | None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read the files of a run.

    `details` are operators and allocations; with `details_if_recorded`, recordings without are as good. `cycles` are
    the files that follow others of their rank, by name, with the number of the profiling cycle. `run_facts` come from
    all files of the run together. `sizes` decide how files are read. The others are options, which say what they mean.
    """

    ranks: tuple[int, ...] = _option(
        (), "--ranks", "RANKS", "Read only these ranks, such as 0-7,64-71, as if there were no others.", _numbers
    )
    hosts: tuple[str, ...] = _option((), "--hosts", "HOST", "Read only the ranks of this host.", _texts, type=list[str])
    groups: tuple[str, ...] = _option(
        (), "--groups", "GROUP", "Read only the ranks of this process group.", _texts, type=list[str]
    )
    steps: tuple[int, ...] = _option(
        (), "--only-steps", "STEPS", "Read only these steps, such as 11 or 3-5, as if there were no others.", _numbers
    )
    last: int | None = _option(
        None,
        "--last",
        "N",
        "Read only the last N steps that all ranks have.",
        _at_least(1),
        type=int,
        usual="all",
        instead_of="steps",
    )
    whole: bool = _option(
        False,
        "--whole",
        "",
        "Sum up all that was recorded, instead of the steps that count on the first screen. "
        "Changes are played in all steps, also of a large run.",
        bool,
    )
    step_marker: str | None = _option(
        None,
        "--steps",
        "REGEX",
        "Annotations of these names mark steps. Groups named kind, requests, tokens and number say what a step is: "
        "'eval_(?P<number>[0-9]+)'.",
        _marker,
        usual="those of torch.profiler, or of known engines",
    )
    comm_names: tuple[str, ...] = _option(
        (),
        "--comm-kernel",
        "REGEX",
        "Also count kernels with a matching name as communication.",
        _patterns,
        type=list[str],
    )
    keep_going: bool = _option(
        False,
        "--keep-going",
        "",
        "Use damaged files up to the damage and skip unreadable ones; a command then exits with 1, `run.failed` names "
        "them.",
        bool,
    )
    workers: int | None = _option(
        None,
        "--workers",
        "N",
        "Number of processes that read traces.",
        _at_least(1),
        type=int,
        usual="one per core",
    )
    cache: str | bool = _option(
        False,
        "--cache",
        "DIR",
        "Cache large traces in this folder; commands, and True, take a hidden one beside them.",
        _place,
        type=Path,
    )
    verify: bool = _option(
        False,
        "--verify",
        "",
        "Decode every event a second time with another parser and compare; about ten times slower.",
        bool,
    )
    memory_gb: float | None = _option(
        None,
        "--memory",
        "GB",
        "Memory that the traces may take, in GB (1e9 bytes).",
        _memory,
        type=float,
        usual="four fifths of what is free",
    )
    dask: str | None = _option(
        None,
        "--dask",
        "WHERE",
        "Read rank by rank with the Dask workers of a scheduler: its tls:// or tcp://HOST:PORT, or its scheduler "
        "file. 'local': with processes of this machine, without Dask.",
        str,
    )
    executor: str | None = _option(
        None,
        "--executor",
        "MODULE:NAME",
        "Read rank by rank with the executor of concurrent.futures that calling this makes, such as "
        "mpi4py.futures:MPIPoolExecutor.",
        str,
        instead_of="dask",
    )
    details: bool = False
    details_if_recorded: bool = False
    cycles: tuple[tuple[str, int], ...] = ()
    run_facts: RunFacts = RunFacts()
    sizes: ReadSizes = USUAL_SIZES

    @classmethod
    def given(cls, *, details: bool = False, **reading: Unpack[GivenOptions]) -> ReadOptions:
        """The options that a caller gives. Raises ValueError for one that makes no sense, TypeError for others."""
        made: dict[str, Any] = {}
        for name, value in reading.items():
            if name not in GivenOptions.__annotations__:
                raise TypeError(f"{name!r} is no option of reading")
            try:
                made[name] = READING_OPTIONS[name].kept(value)
            except ValueError as err:
                raise ValueError(f"{name}: {err}") from err
        for name, other in clashes(made):
            raise ValueError(f"{name} cannot be given together with {other}")
        return cls(details=details, **made)

    def first_step(self, name: str) -> int:
        """The number of the first step in the file of this name, if its steps have none: unlike all of other cycles.

        A file cannot know how many steps those before it have, and all ranks must number the same step alike.
        """
        return dict(self.cycles).get(name, 0) * _STEPS_OF_A_CYCLE

    def may_mark(self, name: str) -> bool:
        """Whether an annotation of this name may mark a step."""
        return may_mark_steps(name, self.step_marker)

    @property
    def limit_bytes(self) -> int | None:
        """Limit of the data's memory in bytes; None without limit."""
        return None if self.memory_gb is None else int(self.memory_gb * GB)

    def budget(self, file_bytes: int = 0) -> Budget:
        """The budget for reading a file of `file_bytes` bytes."""
        return Budget(self.limit_bytes, file_bytes)


READING_OPTIONS: dict[str, ReadingOption] = {
    each.name: each.metadata["option"] for each in fields(ReadOptions) if "option" in each.metadata
}
"""All of them by the name of their field, in the order in which help lists them."""


def clashes(given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Options that were given, each with one that it cannot be given together with."""
    for name, option in READING_OPTIONS.items():
        if option.instead_of and given.get(name) and given.get(option.instead_of):
            yield name, option.instead_of


def takes_reading(function: _F) -> _F:
    """Let `help` and notebooks show all options of reading where the code has `**reading`."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    defaults = {each.name: each.default for each in fields(ReadOptions)}
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=given.__forward_arg__
        )
        for name, given in GivenOptions.__annotations__.items()
    ]
    function.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    lines = (f"\n    - `{name}`: {READING_OPTIONS[name].meaning}" for name in GivenOptions.__annotations__)
    function.__doc__ = (function.__doc__ or "").replace("\n    - `**reading`: see `GivenOptions`", "".join(lines))
    return function


def numbers_in(text: str) -> list[int]:
    """Parse `0-2,5` as [0, 1, 2, 5]. Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if not first <= last < first + _MOST_NUMBERS:
            raise ValueError(f"{text!r} is not a number or a range, such as 3 or 0-7")
        numbers.extend(range(first, last + 1))
    return numbers
