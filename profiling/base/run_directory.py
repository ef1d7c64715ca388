"""Layout of a run directory and atomic writes into it. Knows no torch.

traces/<run>/
  run.json                                  rank 0: what ran
  <host>_<rank>.<cycle>.pt.trace.json.gz    one per rank and profiling cycle, exactly as torch wrote it
  <host>_<rank>.<cycle>.pt.trace.ctrace     its recording, beside it or in its place
  <host>_<rank>.meta.json                   per rank: device, links, process groups, step times, ...
  <host>_<rank>.nccl.log                    per rank: what NCCL logged, with NCCL_DEBUG or --nccl-debug
  summary.txt, report.html, scalars.json    rank 0 of a capture that is analysed where it ends
  training.json                             rank 0 of `train --epochs`: loss and accuracy after every epoch
  events.out.tfevents.*                     the same for TensorBoard
  flight_recorder_rank_<rank>               with --flight-recorder: what a rank issued, dumped by it or by torch
  memory_snapshot_rank_<rank>.pickle        with --memory on GPUs: torch's allocator and its history

Flat, because TensorBoard takes a directory for a run. A file appears under its name only once it is complete: it is
first written to a hidden `*.partial` file in the same directory.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

from ...common import disk
from ...contract.rank import META_SUFFIX
from ...contract.record import Record, json_bytes
from ..errors import RunDirError, UnwritableError
from .raw_traces import raw_file

SUMMARY_FILE = "summary.txt"
REPORT_FILE = "report.html"
SCALARS_FILE = "scalars.json"
# TensorBoard reads a trace's worker and span from `<worker>.<digits>.pt.trace.json.gz`, so they must be digits.
TRACE_SUFFIX = ".pt.trace.json.gz"
NCCL_LOG_SUFFIX = ".nccl.log"
CYCLE_DIGITS = 4
_MOST_NUMBERED = 10_000
_PROBE_BYTES = 4096
_COMPRESSION_LEVEL = 2  # of isal: a sixth larger than zlib's 6, a tenth of the time, while training waits


def worker_name(host: str, rank: int) -> str:
    """`<host>_<rank>`, with everything but ASCII letters, digits, `-` and `_` of the host replaced by `-`."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-") or "host"
    return f"{safe}_{rank}"


def trace_name(worker: str, cycle: int) -> str:
    """File name of the trace of one rank and profiling cycle (from 0)."""
    return f"{worker}.{cycle:0{CYCLE_DIGITS}d}{TRACE_SUFFIX}"


def meta_name(worker: str) -> str:
    """File name of the side file of one rank."""
    return worker + META_SUFFIX


def ranks_here(run_dir: Path) -> set[int]:
    """The ranks with a side file in this run directory, as this node sees it."""
    names = (path.name.removesuffix(META_SUFFIX) for path in run_dir.glob(f"*{META_SUFFIX}"))
    ranks = (name.rpartition("_")[2] for name in names)
    return {int(rank) for rank in ranks if rank.isdecimal()}


def memory_snapshot_name(rank: int) -> str:
    """The snapshot of torch's allocator on a rank."""
    return f"memory_snapshot_rank_{rank}.pickle"


def nccl_log_name(worker: str) -> str:
    """File name of what NCCL logs on one rank."""
    return worker + NCCL_LOG_SUFFIX


def check_free(run_dir: Path) -> None:
    """Raise RunDirError unless `run_dir` is new or an empty directory."""
    with explained(run_dir):
        if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
            found = "files in it" if run_dir.is_dir() else "a file"
            raise RunDirError(f"{run_dir}: expected a new or empty run directory, found {found}; choose another name")


def check_writable(folder: Path) -> None:
    """Raise UnwritableError unless files can be written into `folder`, or to where that would be made.

    It is tried, and nothing of that is left: modes do not tell of disks that are full or read-only, and not of root.
    """
    with explained(folder):
        place = next((place for place in (folder, *folder.parents) if place.exists()), folder)
        with disk.folder_beside(place / "probe") as probe, disk.replacing(probe / "probe") as file:
            file.write(b"\0" * _PROBE_BYTES)


def create_empty(run_dir: Path) -> Path:
    """Make `run_dir`, with its parents, and return it. Raises RunDirError when something is in it already."""
    check_free(run_dir)
    return make(run_dir)


def create_numbered(run_dir: Path) -> Path:
    """Make `run_dir`, or `run_dir-2` and so on where that has files in it; return which. Raises RunDirError."""
    with explained(run_dir):
        if not run_dir.is_dir() or not any(run_dir.iterdir()):
            return create_empty(run_dir)
        named = run_dir.resolve() if run_dir.name in ("", "..") else run_dir
        for number in range(2, _MOST_NUMBERED + 1):
            numbered = named.with_name(f"{named.name}-{number}")
            with suppress(FileExistsError):  # which may be one that another process has just made
                numbered.mkdir()
                return numbered
    raise RunDirError(f"{run_dir}: is taken, and so are all names up to {numbered.name}; choose another name")


def make(run_dir: Path) -> Path:
    """Make `run_dir`, with its parents, if it is not there, and return it. Raises RunDirError."""
    with explained(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def check_made(run_dir: Path) -> None:
    """Raise RunDirError unless `run_dir` is a folder, which rank 0 has made, and no link to one."""
    if run_dir.is_symlink() or not run_dir.is_dir():
        raise RunDirError(
            f"{run_dir}: expected the folder that rank 0 has made for this capture, found none, or a link"
        )


def claim(run_dir: Path, worker: str, others: Sequence[str] = ()) -> None:
    """Raise RunDirError when `run_dir` already has files of `worker`, or `others`: nothing is ever overwritten."""
    taken = sorted(path.name for path in run_dir.glob(f"{worker}.*"))
    taken += [name for name in others if os.path.lexists(run_dir / name)]
    if taken:
        raise RunDirError(f"{run_dir}: already has files of {worker} ({taken[0]}); choose another run directory")


def write_json(path: Path, record: Record) -> None:
    """Write `record` to `path` as JSON, completely or not at all. Raises RunDirError."""
    write_bytes(path, json_bytes(record))


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, completely or not at all. Raises RunDirError."""
    write_pieces(path, [data])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces`, one after the other, to `path`, completely or not at all. Raises RunDirError."""
    with explained(path), disk.replacing(path, mode=disk.permissions(path)) as file:
        for piece in pieces:
            file.write(piece)


def write_trace(path: Path, export: Callable[[str], None]) -> None:
    """Have `export` write a trace as JSON, and gzip it into `path`, completely or not at all. Raises RunDirError."""
    with explained(path), disk.replacing(path) as file, raw_file(path.parent) as raw:
        export(str(raw))
        if not raw.is_file() or raw.stat().st_size == 0:  # kineto logs a failed write and goes on
            raise UnwritableError(f"{path}: the profiler wrote no trace; is the disk full?")
        # Without a file name the gzip header holds none, instead of the temporary one.
        with raw.open("rb") as source, _packer(cast("BinaryIO", file)) as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _packer(file: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", igzip.IGzipFile("", "wb", _COMPRESSION_LEVEL, file))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """An OSError of the block as an UnwritableError that names `path`."""
    try:
        yield
    except OSError as err:
        raise UnwritableError(f"{path}: cannot be written: {err.strerror or err}") from err
