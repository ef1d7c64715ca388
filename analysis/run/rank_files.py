"""Assign files to the ranks and cycles of a run. Needs neither tables nor pandas."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import structs

from ...common.wording import counted, ranges_of
from ...contract.limits import RANK_LIMIT
from ...contract.rank import META_SUFFIX
from ..core.escaping import encodable
from ..core.places.place import fetch_begins
from ..errors import DuplicateRank, MixedJobs, RunFiles
from ..formats.registry import NameParts, name_parts
from ..recording.communicators import Shown, job_ranks
from ..recording.header import Header
from ..recording.shared_files import file_of, rank_in_name
from .one_run import CapturedSpan, OneProcess, check_one_run, if_of_one_run, runs_apart
from .several_runs import Claim, several_runs
from .side_files import Side, notes_on_side, rank_file

_BY_STAGE = re.compile(
    r"(?P<profile>[0-9]{1,18})(?:\.[0-9]+)?-(?P<worker>TP-[0-9].*)-(?P<stage>EXTEND|DECODE)\.trace\.json(?:\.gz)?"
)
_LONG_AGO_MS = 10**12  # in 2001


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """The description of a file by itself.

    `damage` says what ended the reading early, None for a sound file; `has_known_clock` is False for a damaged one
    whose zero of times stood behind the damage. `recorded_rank` is the rank according to its collectives. `span_ns` is
    from its first to its last event, None without any, and `marked_steps` say when the steps that
    torch marked began and ended on the CPU, by number.
    Files of equal `content` hold the same events at the same times; None where they are too few to tell.
    """

    path: Path
    header: Header
    pid: int | None
    damage: str | None = None
    notes: tuple[str, ...] = ()
    has_known_clock: bool = True
    recorded_rank: int | None = None
    span_ns: tuple[int, int] | None = None
    first_device: int | None = None
    marked_steps: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    content: bytes | None = None


F = TypeVar("F", bound=ReadFile)


@dataclass(frozen=True)
class Member(Generic[F]):
    """One trace file with its place in the run."""

    file: F
    rank: int
    rank_from: str
    side: Side
    worker: str
    digits: int
    cycle: int = 0


def members_of(files: Sequence[F], *, keep_going: bool = False) -> tuple[list[Member[F]], list[str]]:
    """Files with their ranks and cycles, sorted, and why some damaged ones are left out.

    With `keep_going`, side files that cannot be read are left out with a note. Raises DuplicateRank, MixedJobs,
    UnreadableFile.
    """
    files = _with_ranks(files)
    sides: dict[Path, Side] = {}
    lost: list[str] = []
    by_rank: dict[int, list[Member[F]]] = {}
    fetch_begins(_side_path(file.path) for file in files)
    for file in files:
        try:
            member = _member(file, alone=len(files) == 1, sides=sides, lost=lost if keep_going else None)
            by_rank.setdefault(member.rank, []).append(member)
        except MixedJobs as err:
            if file.damage is None:
                raise
            lost.append(str(err))
    for rank, own in by_rank.items():
        if len(own) > 1:
            by_rank[rank] = [m for m in own if m.file.has_known_clock]
            lost += [f"{m.file.path}: lost the zero of its times to the damage, so its place among the cycles of rank "
                     f"{rank} is not known; it is left out" for m in own if not m.file.has_known_clock]  # fmt: skip
    every = [member for own in by_rank.values() for member in own]
    _check_one_job(every)
    _check_copies(every)
    members = [member for rank in sorted(by_rank) for member in _cycles(rank, by_rank[rank], every)]
    check_one_run(_processes(members))
    return members, lost


def _member(file: F, *, alone: bool, sides: dict[Path, Side], lost: list[str] | None) -> Member[F]:
    name = _parts(file.path.name)
    worker = _worker(file.path)
    side_path = _side_path(file.path)
    if side_path not in sides:
        sides[side_path] = rank_file(side_path, lost)
    side = sides[side_path]
    in_name = rank_in_name(file.path.name)
    if file.header.rank is not None:
        rank, source = file.header.rank, "communicator" if file.header.communicators else "trace"
    elif side.record.rank is not None:
        rank, source = side.record.rank, "side file"
    elif file.recorded_rank is not None:
        rank, source = file.recorded_rank, "collectives"
    elif in_name is not None:
        rank, source = in_name, "file name"
    elif alone:
        rank, source = 0, "only file"
    else:
        raise MixedJobs(
            f"{file.path}: does not say which rank it is (no rank in distributedInfo, no side file, none in its "
            "collectives, no rank<N> in its name); analyse it alone, or rename it"
        )
    return Member(file, rank, source, side, worker, name.cycle if name else file.header.first_us)


def _with_ranks(files: Sequence[F]) -> list[F]:
    """Fill in the ranks and groups of files that know only communicators, from all of these."""
    of_places = [file for file in files if file.header.communicators]
    if not of_places:
        return list(files)
    shown = [Shown(f.header.communicators, f.header.first_us, f.header.last_us) for f in of_places]
    job = job_ranks(shown)
    ranked = {
        file.path: replace(
            file,
            header=structs.replace(
                file.header, rank=rank, world_size=job.world_size, process_groups=job.groups_of(own)
            ),
            notes=(*file.notes, *([job.note] if job.note and file is of_places[0] else [])),
        )
        for file, rank, own in zip(of_places, job.ranks, shown, strict=True)
    }
    return [ranked.get(file.path, file) for file in files]


def _worker(path: Path) -> str:
    name = _parts(path.name)
    return name.worker if name else path.name


def _parts(name: str) -> NameParts | None:
    """The parts of a file's name; of SGLang's by stage, which are of one process: first prefill, then decode."""
    of_stage = _BY_STAGE.fullmatch(name)
    if of_stage is None:
        return name_parts(name)
    return NameParts(of_stage["worker"], 2 * int(of_stage["profile"]) + (of_stage["stage"] == "DECODE"))


def _side_path(path: Path) -> Path:
    return file_of(path).with_name(_worker(path) + META_SUFFIX)


def _check_one_job(members: list[Member[F]]) -> None:
    sizes: dict[int, str] = {}
    for member in members:
        if max(member.rank, member.file.header.world_size or 0) > RANK_LIMIT:
            raise MixedJobs(
                f"{member.file.path}: is rank {member.rank} of a world of {member.file.header.world_size}; expected "
                f"{RANK_LIMIT:,} ranks at most: repair its distributedInfo, or capture it again"
            )
        if member.file.header.world_size is not None:
            sizes.setdefault(member.file.header.world_size, member.file.path.name)
    if len(sizes) > 1:
        (a, file_a), (b, file_b), *_ = sizes.items()
        raise MixedJobs(
            f"{members[0].file.path.parent}: files of different jobs: {file_a} has world size {a}, {file_b} has {b}; "
            "analyse them separately",
            _runs_of(members),
        )
    too_high = [m for m in members for size in sizes if m.rank >= size]
    if too_high:
        raise MixedJobs(f"{too_high[0].file.path}: is rank {too_high[0].rank} of a world of {next(iter(sizes))}")


def _copies(members: Sequence[Member[F]]) -> list[list[Member[F]]]:
    """Files that hold the same events at the same times."""
    by_content: dict[tuple[int | None, bytes], list[Member[F]]] = {}
    for member in members:
        if member.file.content is not None:
            by_content.setdefault((member.file.pid, member.file.content), []).append(member)
    return [same for same in by_content.values() if len(same) > 1]


def _check_copies(members: Sequence[Member[F]]) -> None:
    """Raise MixedJobs if a rank's file is there under two names: it would be a cycle that never was."""
    for same in _copies(members):
        for first, second in pairwise(sorted(same, key=lambda member: member.rank)):
            if first.rank == second.rank:
                raise MixedJobs(
                    f"{first.file.path.parent}: {first.file.path.name} and {second.file.path.name}, of rank "
                    f"{first.rank}, hold the same events at the same times, to the nanosecond: one is a copy of the "
                    "other; remove it"
                )


def notes_on_copies(members: Sequence[Member[F]]) -> Iterator[str]:
    """Yield which ranks' files hold the same events at the same times, if any do."""
    first, *others = [ranges_of(sorted({member.rank for member in same})) for same in _copies(members)] or [""]
    if first:
        so_do = f"; so do those of {'; '.join(others)}" if others else ""
        yield (
            f"ranks {first}: their files hold the same events at the same times, to the nanosecond{so_do}: all but one "
            "are copies, which never wait for each other"
        )


def _runs_of(members: Sequence[Member[F]]) -> tuple[RunFiles, ...]:
    """The runs that these files are of, if that is known: by their names, else by their times and what they say."""
    claims = [
        Claim(m.file.path, (m.file.path.parent, m.worker, m.file.pid), m.rank, m.file.header.world_size)
        for m in members
        if not m.file.header.communicators
    ]
    return several_runs(claims) or runs_apart(_processes(members))[0]


def notes_on_clocks(members: Sequence[Member[F]]) -> Iterator[str]:
    """Yield what would have to be true of clocks if these files are of one run."""
    yield from if_of_one_run(_processes(members))


def _processes(members: Sequence[Member[F]]) -> list[OneProcess]:
    """What the files of each process say of their run; nothing of damaged ones, of which a part is not known."""
    own: dict[Hashable, list[Member[F]]] = {}
    for member in members:
        if not member.file.header.communicators:
            own.setdefault((member.rank, member.worker), []).append(member)
    hosts = [host_of(files[0])[0] for files in own.values()]
    boots = [files[0].side.record.machine.boot_id for files in own.values()]
    boots_of = {host: {boot for at, boot in zip(hosts, boots, strict=True) if at == host and boot} for host in hosts}
    # Where no file says which boot it was, the name is all there is; where files say two, two machines share the name.
    clocks = [
        boot or (None if len(boots_of[host]) > 1 else next(iter(boots_of[host]), host))
        for host, boot in zip(hosts, boots, strict=True)
    ]
    return [_process(files, host, clock) for files, host, clock in zip(own.values(), hosts, clocks, strict=True)]


def _process(files: Sequence[Member[F]], host: str | None, clock: str | None) -> OneProcess:
    spans = [m.file.span_ns for m in files if m.file.span_ns is not None]
    is_sound = all(m.file.damage is None and m.file.has_known_clock and m.file.header.has_starts for m in files)
    header, record = files[0].file.header, files[0].side.record
    facts = {"NCCL": header.nccl_version, "torch": record.versions.torch}
    return OneProcess(
        rank=files[0].rank,
        paths=tuple(m.file.path for m in files),
        host=host,
        clock=clock,
        device=files[0].file.first_device,
        pid=files[0].file.pid,
        span=CapturedSpan(min(b for b, _ in spans), max(e for _, e in spans)) if spans and is_sound else None,
        steps={step: CapturedSpan(*when) for m in files for step, when in m.file.marked_steps.items() if is_sound},
        facts={name: f"{name} {version}" for name, version in facts.items() if version},
        groups=frozenset(
            group.ranks for m in files for group in m.file.header.process_groups
            if 1 < len(group.ranks) < (m.file.header.world_size or 0)
        ),
    )  # fmt: skip


def _cycles(rank: int, members: list[Member[F]], every: Sequence[Member[F]]) -> list[Member[F]]:
    """Files of one rank in order, if they are cycles of one process; `every` are those of all ranks."""
    members = sorted(members, key=lambda m: m.digits)
    first = members[0]
    for other in members[1:]:
        if not _follows(first, other):
            raise DuplicateRank(
                f"{first.file.path.parent}: {first.file.path.name} and {other.file.path.name} both claim rank {rank}: "
                "they are of two runs, or of two engines or jobs that each count ranks from 0; give each a folder of "
                "its own, or name the files of one of them",
                _runs_of(every),
            )
        # A cycle in which the CPU did nothing, or whose beginning is lost, does not say which process it was.
        pids = {m.file.pid for m in (first, other)} - {None}
        if len(pids) > 1 and not first.file.header.communicators:
            raise MixedJobs(
                f"{first.file.path.parent}: {first.file.path.name} (process {first.file.pid}) and "
                f"{other.file.path.name} (process {other.file.pid}) are rank {rank} of different jobs; "
                "analyse them separately",
                _runs_of(every),
            )
    return [replace(member, cycle=i) for i, member in enumerate(members)]


def cycles_in(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Files that by their names follow others of the same process, with their places among these, from 1."""
    by_worker: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        parts = _parts(name)
        if parts is not None:
            by_worker.setdefault(parts.worker, []).append((parts.cycle, name))
    return tuple(
        (name, place) for own in by_worker.values() for place, (_, name) in enumerate(sorted(set(own))) if place
    )


def _follows(first: Member[F], other: Member[F]) -> bool:
    """Whether a file is a later one of the same rank: from the same process, or from its restart."""
    before, after = first.file.header.communicators, other.file.header.communicators
    if before and after:
        return not {one.id for one in before} & {one.id for one in after}
    return other.worker == first.worker and other.digits != first.digits


def host_of(member: Member[F]) -> tuple[str | None, str | None]:
    """The host of a file, and the source of its name."""
    sources = {
        "side file": member.side.record.host,
        "trace": member.file.header.host,
        "file name": host_in_name(member),
    }
    return next(((host, source) for source, host in sources.items() if host), (None, None))


def host_in_name(member: Member[F]) -> str | None:
    """The host in a file name by torch, `<host>_<pid>.<time>`, if the pid is that of the traced process.

    A trace of kernels alone does not say which process it was; then the time has to be a plausible one, in ms at least.
    """
    host, _, number = member.worker.rpartition("_")
    if not host or not number.isdecimal() or name_parts(member.file.path.name) is None:
        return None
    if member.file.pid is None:
        return host if member.digits > _LONG_AGO_MS else None
    return host if number == str(member.file.pid) else None


_FEW = 2


def joined_notes(notes: Iterable[tuple[Member[F], str]]) -> tuple[str, ...]:
    """Each note once; what is said of more than two ranks, or of their files, with all of them in one line.

    Such notes begin with the rank or the file, and a colon.
    """
    said: dict[tuple[str, str], list[Member[F]]] = {}
    for member, note in notes:
        about, colon, text = note.partition(": ")
        what = {f"rank {member.rank}": "ranks", encodable(member.file.path.name): "files"}.get(about, "")
        said.setdefault((what, text) if colon and what else ("", note), []).append(member)
    lines: list[str] = []
    for (what, text), members in said.items():
        if what == "files":
            names = list(dict.fromkeys(encodable(member.file.path.name) for member in members))
            many = f"{names[0]} and {counted(len(names) - 1, 'more file')}"
        elif what == "ranks":
            ranks = sorted({member.rank for member in members})
            names, many = [f"rank {rank}" for rank in ranks], f"ranks {ranges_of(ranks)}"
        else:
            lines.append(text)
            continue
        lines += [f"{name}: {text}" for name in (names if len(names) <= _FEW else [many])]
    return tuple(lines)


def notes_on(member: Member[F], gloo_beside_gpu: int) -> Iterator[str]:
    """Yield notes on a file; `gloo_beside_gpu` counts its gloo operations beside those of a GPU."""
    yield from member.file.notes
    if member.rank_from == "only file":
        yield f"{member.file.path.name} does not say which rank it is; being alone it is taken as rank 0"
    if gloo_beside_gpu:
        yield f"rank {member.rank}: {gloo_beside_gpu} gloo operations on the CPU beside the GPU are not counted"
    if not member.file.has_known_clock:
        yield f"rank {member.rank}: the zero of its times is lost to the damage, so its clock is taken as unknown"
    if member.cycle == 0:
        yield from notes_on_side(member.rank, member.side)
