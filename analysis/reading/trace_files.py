"""Where trace files are."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ...common.wording import ranges_of, shortened
from ...contract.rank import META_SUFFIX, RankFile
from ...contract.reading import OtherVersion, lenient
from ...contract.recording import RECORDING_SUFFIX, recording_name
from ...contract.run import RUN_FILE
from ..core.escaping import encodable, for_shell, printable
from ..core.places.place import is_remote
from ..core.small_files import NotJson, read_json
from ..errors import AnalysisError, NoTraces, UnreadableFile
from ..formats.format import TraceFormat
from ..formats.others import UNTAR, UNZIP, foreign_file
from ..formats.registry import TRACE_FORMATS, expected_files, format_in_folder, format_named_like, name_parts
from ..recording.compression import first_bytes
from ..recording.options import RunFacts
from ..recording.shared_files import file_of, shared_rank
from .trace_input import TraceInput

_SIDE_FILE = re.compile(r"(\.meta\.json|^run\.json|^sweep\.json|^comms\.json|^training\.json)$")

_DEEPEST, _MOST_LOOKED_INTO, _MOST_NAMED = 3, 20, 3
_ARCHIVES = {
    ".zip": UNZIP,
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".txz", ".tbz2", ".tar.zst"), UNTAR),
}


class TracesFound(NamedTuple):
    """Traces in order, notes on how they were found, and an option with which they are to be read."""

    traces: list[TraceInput]
    notes: list[str]
    run_facts: RunFacts


def trace_files(paths: Sequence[Path]) -> TracesFound:
    """The trace files at `paths`, sorted, and a note on every folder where similar files were left out.

    A file that holds several ranks is given as the paths of these (recording/shared_files.py). Raises NoTraces,
    UnreadableFile, MixedJobs.
    """
    found: list[Path] = []
    skipped: list[str] = []
    for path in paths:
        mode = _mode(path)
        if mode is None:
            raise NoTraces(f"{path}: no such file or directory; expected a run directory or Kineto traces")
        if stat.S_ISDIR(mode):
            files, notes, streams = _files_in(path)
            found += files
            skipped += [f"{path.name}: left out {name}, which is not a file" for name in streams]
            skipped += [f"{path.name}: {note}" for note in notes]
        else:
            _refuse_archive(path)
            found.append(path)
    traces, run_facts = [TraceInput(path) for path in dict.fromkeys(found)], RunFacts()
    for one in TRACE_FORMATS:
        if one.ranks is not None:
            own = [trace for trace in traces if shared_rank(trace.path) is None and _may_be(trace, one)]
            if own:
                ranks = one.ranks([trace.path for trace in own])
                traces = [trace for trace in traces if trace not in set(own)] + list(map(TraceInput, ranks.paths))
                skipped, run_facts = skipped + ranks.notes, ranks.run_facts
    return TracesFound(traces, skipped, run_facts)


def runs_inside(folder: Path) -> list[Path]:
    """The folders inside a folder that hold a run each, if it holds none itself; hidden ones and links are left out."""
    if is_remote(folder) or not folder.is_dir() or _holds_a_run(folder):
        return []
    runs: list[Path] = []
    waiting = [(folder, 0)]
    while waiting:
        around, depth = waiting.pop()
        with suppress(OSError):
            for inner in around.iterdir():
                if inner.name[0] != "." and inner.is_dir() and not inner.is_symlink():
                    if _holds_a_run(inner):
                        runs.append(inner)
                    elif depth < _DEEPEST:
                        waiting.append((inner, depth + 1))
    return sorted(runs)


def is_without_traces(folder: Path) -> bool:
    """Whether no file in a folder is named like a trace. Raises UnreadableFile."""
    try:
        return not _files_in(folder)[0]
    except NoTraces:
        return True


def _holds_a_run(folder: Path) -> bool:
    """Whether a folder holds traces, whether or not they can be used, or is one into which they were to come."""
    if (folder / RUN_FILE).exists():
        return True
    try:
        return bool(_files_in(folder)[0])
    except AnalysisError:
        return False


def _may_be(trace: TraceInput, one: TraceFormat) -> bool:
    """Whether a file is of this format: by its first bytes, or if these are far away, by its name."""
    named = format_named_like(trace.path.name) if is_remote(trace.path) else None
    return trace.format is one if named is None else named is one


def is_side_file(name: str) -> bool:
    """Whether this is the name of a file that describes a run, rather than a trace."""
    return _SIDE_FILE.search(name) is not None


def run_name(paths: Sequence[Path]) -> str:
    """The name of the run found at `paths`."""
    first = paths[0].resolve()
    name = first.name if first.is_dir() or len(paths) == 1 else first.parent.name
    return encodable(name)


def _mode(path: Path) -> int | None:
    """The mode of the file at `path`; None if there is none. Raises UnreadableFile."""
    try:
        return file_of(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err


def _refuse_archive(path: Path) -> None:
    """Raise NoTraces for an archive, which is not read, with the commands that unpack it and then read it."""
    unpacking = _unpacking(path)
    if unpacking is None or is_remote(path) or shared_rank(path) is not None:
        return
    command, end = unpacking
    folder = path.with_name(path.name[: -len(end)] or "unpacked")
    if folder.exists():
        folder = folder.with_name(f"{folder.name}-unpacked")
    new, archive = for_shell(str(folder)), for_shell(str(path))
    raise NoTraces(
        f"{path}: is an archive, which is not read as it is; unpack it: "
        f"mkdir -p {new} && {command.format(archive=archive, folder=new)}; then: commtrace {new}"
    )


def _unpacking(path: Path) -> tuple[str, str] | None:
    """How to unpack an archive into a folder, and the end of its name; None for what is none by its name."""
    name = path.name.lower()
    return next(((how, end) for end, how in _ARCHIVES.items() if name.endswith(end)), None)


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe, socket or device, reading which may never end."""
    mode = _mode(path)
    return mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _files_in(folder: Path) -> tuple[list[Path], list[str], list[str]]:
    """Trace files of the folder, notes on files that only look like traces, and names of pipes."""
    try:
        inside = sorted(p for p in folder.iterdir() if p.name[0] != "." and not _SIDE_FILE.search(p.name))
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be read: {err.strerror}") from err
    formats = {path: one for path in inside if (one := format_in_folder(path))}
    views, apart = _views(formats)
    formats = {path: one for path, one in formats.items() if path not in views}
    plain = _without_recorded([path for path in formats if not _is_stream(path)])
    plain, said_better = _without_less(plain, formats)
    usual = {formats[path] for path in plain if name_parts(path.name)}
    files = [path for path in plain if formats[path] not in usual or name_parts(path.name)]
    if not files:
        _refuse_untraced(folder)
        for one in TRACE_FORMATS:
            unread = [path.name for path in inside if any(fnmatchcase(path.name, name) for name in one.unread_names)]
            if unread:
                raise NoTraces(f"{folder}: holds no {expected_files()}, but {unread[0]}; {one.how_to_make}")
        for archive in (path for path in inside if _unpacking(path) is not None):
            _refuse_archive(archive)
        for path in inside[:_MOST_LOOKED_INTO]:
            if not _is_stream(path) and (foreign := foreign_file(first_bytes(path))) is not None:
                raise NoTraces(f"{folder}: holds no {expected_files()}, but {path.name}, which {foreign}")
        inner = [path.name for path in inside if stat.S_ISDIR(_mode(path) or 0)]
        hint = f"; did you mean one of its folders ({', '.join(inner[:5])})?" if inner else ""
        raise NoTraces(f"{folder}: holds no {expected_files()}{hint}")
    notes, taken = [*apart, *said_better], set(files)
    for one in TRACE_FORMATS:
        others = [path.name for path in plain if formats[path] is one and path not in taken]
        if others:
            more = ", ..." if len(others) > 3 else ""
            notes.append(f"left out {len(others)} {one.others}: {', '.join(others[:3])}{more}")
    return files, notes, [path.name for path in formats if _is_stream(path)]


def _views(formats: dict[Path, TraceFormat]) -> tuple[set[Path], list[str]]:
    """Files that tools write beside their traces, by name, and a note on those that may be something else."""
    of_tools = set(formats.values())
    patterns = {pattern for one in of_tools for pattern in one.also_written}
    views = {path for path in formats if any(fnmatchcase(path.name, pattern) for pattern in patterns)}
    begun = {
        path.name[: -len(ending)]
        for path, one in formats.items()
        for ending in (pattern.removeprefix("*") for pattern in one.file_names)
        if path not in views and path.name.endswith(ending)
    }
    own = {pattern.replace("*", begin) for pattern in patterns for begin in begun}
    apart = sorted(path.name for path in views if path.name not in own)
    if not apart:
        return views, []
    others = " and ".join(sorted(one.others for one in of_tools if one.also_written))
    return views, [f"left out beside {others}: {shortened(apart, _MOST_NAMED)}; name them to read them"]


def _refuse_untraced(folder: Path) -> None:
    """Raise NoTraces where side files say why a capture ended without a trace."""
    ranks: dict[str, list[int]] = {}
    for path in sorted(folder.glob(f"*{META_SUFFIX}")):
        try:
            content = read_json(path)
        except (OtherVersion, OSError, NotJson):
            continue
        side, _ = lenient(content if isinstance(content, dict) else {}, RankFile)
        if side.rank is not None and side.reason is not None:
            ranks.setdefault(side.reason, []).append(side.rank)
    if ranks:
        told = "; ".join(f"rank {ranges_of(sorted(of))}: {why}" for why, of in list(ranks.items())[:3])
        raise NoTraces(f"{folder}: the capture ended without a trace: {printable(encodable(told))}")


def _without_less(paths: list[Path], formats: dict[Path, TraceFormat]) -> tuple[list[Path], list[str]]:
    """The files but for those of a format that says less, if there are others; and a note on these."""
    less = [path for path in paths if formats[path].is_less]
    if not less or len(less) == len(paths):
        return paths, []
    what = formats[less[0]].others
    return [path for path in paths if not formats[path].is_less], [
        f"left out {len(less)} {what} beside traces, which say more; name them to read them"
    ]


def _without_recorded(paths: list[Path]) -> list[Path]:
    """The files but for recordings whose traces stand beside them: these are read with the traces, if at all."""
    recorded = {recording_name(path.name) for path in paths if path.suffix != RECORDING_SUFFIX}
    return [path for path in paths if path.name not in recorded]
