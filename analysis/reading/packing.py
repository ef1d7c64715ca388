"""Trace files -> recordings, and the side files with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.disk import remove_partial_files
from ...contract.recording import recording_name
from ..core.escaping import encodable
from ..core.places.files import copy_file, replace_file
from ..core.places.place import is_remote, is_there
from ..errors import TraceError, UnreadableFile
from ..recording.compression import packed_bytes
from ..recording.options import Progress, ReadOptions
from ..recording.recording import RawTrace
from ..recording.shared_files import file_of
from .cache import file_state
from .executor import cores
from .pool import Reading
from .trace_files import is_side_file
from .trace_input import TraceInput

if TYPE_CHECKING:
    from ..formats.recordings.content import TraceSource


@dataclass(frozen=True)
class PackedTrace:
    """A trace file, and the recording that was made of it; sizes as they are on disk, and of the trace unpacked.

    `repaired` says what was repaired in the file.
    """

    trace: Path
    recording: Path
    trace_bytes: int
    read_bytes: int
    recording_bytes: int
    damage: str | None = None
    repaired: tuple[str, ...] = ()


def pack(
    reading: Reading, options: ReadOptions, folder: Path | None = None, progress: Progress | None = None
) -> Iterator[PackedTrace | TraceError]:
    """Write a recording of each file that is being read: beside it, or into a folder, as its name without `.json`.

    A file that cannot be used is given as its error. Raises UnreadableFile where nothing can be written.
    """
    targets = targets_of(reading.paths, folder)
    for place in {target.parent for target in targets}:
        if not is_remote(place):
            remove_partial_files(place)
    states = [b"" if options.comm_names else file_state(one) for one in reading.traces]
    with ThreadPoolExecutor(options.workers or cores()) as threads:
        begun: list[Future[PackedTrace] | TraceError] = []
        for target, trace, state, found in zip(targets, reading.traces, states, reading.results(progress), strict=True):
            if isinstance(found, TraceError):
                begun.append(found)
            else:
                source = source_of(trace, state or b"", options)
                begun.append(threads.submit(write_recording, trace.path, found, target, source))
            if len(begun) > 2 * cores():  # what was read of others must not pile up
                yield _ended(begun.pop(0))
        yield from map(_ended, begun)


def _ended(one: Future[PackedTrace] | TraceError) -> PackedTrace | TraceError:
    return one if isinstance(one, TraceError) else one.result()


def source_of(trace: TraceInput, state: bytes, options: ReadOptions) -> TraceSource:
    """What a recording says of the file that it was made from."""
    from ..formats.recordings.content import TraceSource

    one = trace.format
    return TraceSource(encodable(trace.path.name), one.name, one.version, state, options.comm_names)


def write_recording(path: Path, found: RawTrace, target: Path, source: TraceSource) -> PackedTrace:
    """Write what was read from the file at `path`. Raises UnreadableFile."""
    from ..formats.recordings.content import packed
    from ..recording.arrays import repairs

    content = packed(found, source, found.notes)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, [content])
    except OSError as err:
        raise UnreadableFile(f"{target}: cannot be written: {err.strerror}") from err
    return PackedTrace(
        path,
        target,
        packed_bytes(path),
        found.extent.read_bytes,
        len(content),
        found.damage,
        tuple(repairs(path, found)),
    )


def targets_of(paths: Sequence[Path], folder: Path | None) -> list[Path]:
    """Where the recordings of these files go. Raises UnreadableFile if two would get one name, or one its own."""
    targets = [(file_of(path).parent if folder is None else folder) / recording_name(_name(path)) for path in paths]
    seen: dict[Path, Path] = {}
    for path, target in zip(paths, targets, strict=True):
        if target in seen:
            raise UnreadableFile(
                f"{path}: its recording would have the name of that of {seen[target]}; pack them apart"
            )
        if is_there(target) and target.resolve() == path.resolve():
            raise UnreadableFile(f"{path}: is a recording already; name a folder for others with -o")
        seen[target] = path
    return targets


def _name(path: Path) -> str:
    """The name that a recording has but for its ending; that of a rank in a file has the file's name before it."""
    file = file_of(path)
    return path.name if file is path else f"{file.stem}.{path.name}"


def copy_side_files(paths: Sequence[Path], folder: Path) -> int:
    """Copy the side files of the runs that these files are of; how many there are. Raises UnreadableFile."""
    sources = sorted({file_of(path).parent for path in paths})
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source.resolve() == folder.resolve():
                continue
            for file in sorted(file for file in source.iterdir() if is_side_file(file.name) and file.is_file()):
                copy_file(file, folder / file.name)
                count += 1
    except OSError as err:
        raise UnreadableFile(f"{folder}: cannot be written to: {err.strerror}") from err
    return count
