"""Captures of a machine, one line of JSON each: how much runs of one program differ there.

A decision on two runs needs to know by how much two runs differ that nobody changed. Captures that were made before say
so, and of each only a few numbers are needed: which program, where and when, how long its steps took.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.disk import close, held, replace_file, sync, write_all
from ...contract.reading import lenient
from ...contract.run import RunFile
from ..core.escaping import encodable
from ..core.places.files import plain_file
from ..core.schema import records
from ..core.student import PAIRS_NEEDED
from ..errors import UnreadableFile
from ..results.analysis import Analysis
from .apart import apart, warming_steps
from .dates import began
from .pairing import paired
from .significance import SpreadOfRuns, error_of_steps, pooled_spread
from .step_values import Capture, Values, midmean
from .steps import lengths_of_steps

_LAYOUT = 2
_LONGEST_BYTES = 1 << 16
HISTORY_BYTES = 1 << 20
"""A larger file loses its older half, some hundreds of captures."""
_MOST_STEPS = 64
"""Of a capture and source: the last ones, which is enough to know how much they differ."""
_BEYOND = 1 << 62
"""No number of a step, nor any time in ns, is as large."""
_LAST_RUNS = 50
"""Of one program: a machine is as it was lately."""
_WAIT_S, _POLL_S = 10.0, 0.02
_OF_CAPTURING = frozenset({
    "out", "run_name", "schedule", "steps", "limits", "with_stack", "profile_memory", "detail", "keeping", "keep",
    "data_root", "seed", "flight_recorder", "nccl_debug", "history",
})  # fmt: skip
"""Options that change how a run is captured, but not what it does."""
_UNEVEN = "all_to_all"
"""Collectives whose sizes depend on the data."""


class PastCapture(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file. `lengths` are those of its last steps in ns, by source, as in `comparison`, and number."""

    commtrace_history: int
    run_id: str
    run: str
    began_utc: str | None
    program: str
    devices: Sequence[str]
    hosts: Sequence[str]
    ranks: int
    lengths: Mapping[str, Mapping[int, int]]


class KnownSpread(NamedTuple):
    """How much runs of the programs of A and B differ: from how many runs, on other hosts or not, without which."""

    spread: SpreadOfRuns
    runs: int
    elsewhere: bool
    apart: tuple[str, ...]


class History(NamedTuple):
    """The captures of a file, the oldest first, and how many of its lines are none."""

    name: str
    captures: tuple[PastCapture, ...]
    unread: int = 0

    def spread(self, sides: Iterable[Sequence[Analysis]], source: str) -> KnownSpread | None:
        """How much runs of these programs differ on these machines, besides these runs; None if nothing says so.

        If all ran on the same hosts, captures of these hosts count, provided that there are any of them.
        """
        given = [past_capture(one) for side in sides for one in side]
        wanted, present = {_configuration(one) for one in given}, {one.run_id for one in given}
        alike = [
            one
            for one in self.captures
            if _configuration(one) in wanted and one.run_id not in present and source in one.lengths
        ]
        hosts = {tuple(one.hosts) for one in given}
        here = [one for one in alike if len(hosts) == 1 and tuple(one.hosts) in hosts]
        known = _spread(here, source)
        elsewhere = known is None
        if known is None:
            known = _spread(alike, source)
        return None if known is None else KnownSpread(*known[:2], elsewhere and len(here) < len(alike), known[2])


def _spread(captures: Sequence[PastCapture], source: str) -> tuple[SpreadOfRuns, int, tuple[str, ...]] | None:
    """The spread between the runs of each configuration, from how many runs, and the names of those that stand apart.

    Cycles of one run are one: they share their process, and differ less than runs do.
    """
    runs: dict[tuple[str, ...], dict[str, list[PastCapture]]] = {}
    for one in captures:
        runs.setdefault(_configuration(one), {}).setdefault(one.run_id, []).append(one)
    names, groups = list[list[str]](), list[list[Values]]()
    for of in runs.values():
        lately = list(of.values())[-_LAST_RUNS:]
        for numbers, steps in _alike([_log_steps(run, source) for run in lately]):
            names.append([lately[number][0].run for number in numbers])
            groups.append(steps)
    values = [np.array([midmean(steps) for steps in group]) for group in groups]
    out = apart(values)
    kept = [[number for number in range(len(of)) if (group, number) not in out] for group, of in enumerate(groups)]
    freedom = sum(max(len(numbers) - 1, 0) for numbers in kept)
    if not freedom:
        return None
    steps = [groups[group][number] for group, numbers in enumerate(kept) for number in numbers]
    error = math.sqrt(fmean(error_of_steps(each).size ** 2 for each in steps))
    deviation = pooled_spread(*(of[numbers] for of, numbers in zip(values, kept, strict=True)))
    stand_apart = tuple(names[group][number] for group, number in out)
    return SpreadOfRuns(deviation, freedom, error), len(steps), stand_apart


def _log_steps(run: Sequence[PastCapture], source: str) -> Capture:
    """Logarithms of the steps of a run, all its cycles together, without those before it had warmed up."""
    lengths = {number: ns for cycle in run for number, ns in cycle.lengths[source].items()}
    numbers = np.array(sorted(lengths), dtype=np.int64)
    steps = np.array([lengths[number] for number in numbers.tolist()], dtype=np.float64)
    warm = slice(warming_steps(steps), None)
    return Capture(numbers[warm], np.log(steps[warm]))


def _alike(runs: Sequence[Capture]) -> list[tuple[list[int], list[Values]]]:
    """Groups of runs that are compared with each other: their places, and the steps of each.

    Where steps of one number do the same work, runs differ by which steps were captured, too. Then runs of the same
    steps are a group, without what belongs to the number, which A and B lack if they pair. If these are the minority of
    the runs, all are one group: it is wider, but known better.
    """
    groups: list[tuple[NDArray[np.int64], list[int]]] = []
    for place, run in enumerate(runs):
        for index, (shared, places) in enumerate(groups):
            common = np.intersect1d(shared, run.steps)
            if len(common) >= PAIRS_NEEDED:
                groups[index] = common, [*places, place]
                break
        else:
            groups.append((run.steps, [place]))
    pairs = [(places, paired([runs[place] for place in places], [])) for _, places in groups]
    without = [(places, pair[0]) for places, pair in pairs if pair is not None]
    if 2 * sum(len(places) for places, _ in without) > len(runs):
        return without
    return [(list(range(len(runs))), [run.values for run in runs])]


def _configuration(one: PastCapture) -> tuple[str, ...]:
    return one.program, *one.devices


# --- what is kept of a capture ---------------------------------------------------------------------------------------


def past_capture(one: Analysis, folder: Path | None = None) -> PastCapture:
    """What a history keeps of a capture. `folder` is that of its run, where it is read file by file."""
    lengths = {}
    for source, of_steps in lengths_of_steps(one).items():
        latest = of_steps.tail(_MOST_STEPS)
        last = dict(zip(latest.index.tolist(), latest.round().astype("int64").tolist(), strict=True))
        if last and min(last.values()) > 0:
            lengths[source] = last
    traces = one.run.traces
    return PastCapture(
        commtrace_history=_LAYOUT,
        run_id=_run_id(one, folder),
        run=encodable(one.run.name if folder is None else folder.resolve().name),
        began_utc=began(one),
        program=_program(one),
        devices=sorted({encodable(str(name)) for name in traces["device_name"].dropna()}) or ["cpu"],
        hosts=sorted({encodable(str(host)) for host in traces["host"].dropna()}),
        ranks=len(one.run.ranks),
        lengths=lengths,
    )


def _run_id(one: Analysis, folder: Path | None) -> str:
    """Which run this is: by its run.json, else by its folder, else by when it began."""
    if one.run.config:
        return _digest(one.run.config)
    if folder is not None:
        return _digest(str(folder.resolve()))
    starts = [int(table["start_ns"].min()) for table in (one.run.annotations, one.run.activities) if len(table)]
    return _digest(starts[:1])


def _program(one: Analysis) -> str:
    """What the run does, by its options, the number of ranks, and the collectives that every step has.

    Neither kernels nor versions: libraries choose kernels anew in each run, and what they change is to be judged.
    """
    said = lenient(one.run.config, RunFile)[0]
    options = {key: value for key, value in said.config.items() if key not in _OF_CAPTURING}
    calls = one.table("calls")
    calls = calls[calls["step"].notna()]
    steps = calls["step"].nunique()
    always = set()
    for row in records(calls[["collective", "size_bytes", "group_size", "step"]].drop_duplicates()):
        uneven = str(row["collective"]).startswith(_UNEVEN)
        always.add((row["collective"], None if uneven else row["size_bytes"], row["group_size"], row["step"]))
    in_steps = Counter(each[:3] for each in always)
    usual = [each for each, count in in_steps.items() if count == steps]
    return _digest([options, one.run.world_size or len(one.run.ranks), sorted(map(str, usual))])


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted", enc_hook=str)).hexdigest()[:16]


# --- the file --------------------------------------------------------------------------------------------------------


def read_history(path: Path) -> History:
    """The captures of a file; none if there is no file. Raises UnreadableFile.

    Lines that are no captures are counted: the last one may be half written, and later versions may write others.
    """
    try:
        with plain_file(path)[0] as file:
            content = file.read(4 * HISTORY_BYTES + 1)
    except FileNotFoundError:
        return History(str(path), ())
    except OSError as err:
        raise UnreadableFile(f"{path}: the history cannot be read: {err.strerror}") from err
    lines = content.split(b"\n")
    captures = [one for line in lines if line.strip() and (one := _capture(line)) is not None]
    return History(str(path), tuple(captures), sum(bool(line.strip()) for line in lines) - len(captures))


def _capture(line: bytes) -> PastCapture | None:
    """The capture of a line; None if it is none, or one of another layout."""
    if len(line) > _LONGEST_BYTES:
        return None
    try:
        one = msgspec.json.decode(line, type=PastCapture)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_sane = all(
        each and 0 < min(each.values()) <= max(each.values()) < _BEYOND and -_BEYOND < min(each) <= max(each) < _BEYOND
        for each in one.lengths.values()
    )
    return one if one.commtrace_history == _LAYOUT and is_sane else None


def keep_in_history(path: Path, one: Analysis, folder: Path | None = None) -> str | None:
    """Add a capture to a file, or return the reason why it says nothing. Raises UnreadableFile."""
    if one.run.failed or one.run.partial_ranks or one.run.missing_ranks:
        return "not all ranks are there and whole"
    made = past_capture(one, folder)
    if not made.lengths:
        return "no step is marked"
    add_to_history(path, made)
    return None


def add_to_history(path: Path, one: PastCapture) -> None:
    """Add a capture to a file, which is made if there is none. Raises UnreadableFile.

    A line is there whole or not at all for whoever reads, and several may add at once. A file that has become too large
    keeps its newer half.
    """
    line = msgspec.json.encode(one) + b"\n"
    try:
        descriptor = _held(path)
        try:
            size = os.fstat(descriptor).st_size
            # Whoever was killed before left a line without an end, which would swallow this one.
            cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            write_all(descriptor, b"\n" + line if cut else line)
            sync(descriptor)
            if size + len(line) > HISTORY_BYTES:
                content = os.pread(descriptor, size + len(line) + 1, 0)
                replace_file(path, [content[content.index(b"\n", len(content) - HISTORY_BYTES // 2) + 1 :]])
        finally:
            close(descriptor)
    except OSError as err:
        raise UnreadableFile(f"{path}: the capture cannot be added to the history: {err.strerror}") from err


def _held(path: Path) -> int:
    """Open and lock the file, waiting for others that add to it. Raises OSError."""
    until_s = time.monotonic() + _WAIT_S
    while True:
        with suppress(BlockingIOError):
            descriptor, _ = held(path)
            with suppress(FileNotFoundError):
                here, there = os.fstat(descriptor), path.lstat()
                if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                    return descriptor
            os.close(descriptor)  # it was replaced by a shorter one meanwhile
        if time.monotonic() > until_s:
            raise OSError(errno.EWOULDBLOCK, f"another process has held it for {_WAIT_S:.0f} s")
        time.sleep(_POLL_S)
