"""Inputs grown by a fuzzer that knows which lines they reach: `python tests/attacks/guided.py kineto --seconds 600`.

Each reader has a small corpus in tests/data/fuzz, from which the fuzzer begins. Anything may come out of a reader but a
traceback, columns that contradict each other, a hang, much memory, or, of a Kineto trace, what Python's own parser
would not read. An input that shows such a thing is kept, and its path is printed. It needs atheris
(.ci/fuzz.lock); `make fuzz` runs all readers one after the other. The tests read every corpus without atheris.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests/support")) if path not in sys.path]

CORPORA = ROOT / "tests" / "data" / "fuzz"
LIMIT_S, LIMIT_MIB, MOST_BYTES = 30, 1500, 1 << 16
_MEMORY_GB = 0.3
_ONE_NS = 1 << 62  # of one bin that holds everything
_WORD = re.compile(rb'"[^"\\\n]{2,40}"|[A-Za-z_]{6,40}')
_MOST_WORDS = 400

Target = Callable[[bytes], bool]
"""Reads a file of this content; whether that worked. Raises what a reader should not."""


def targets(folder: Path) -> dict[str, Target]:
    """A target for each reader, which writes its files to the folder. Imports the readers."""
    from commtrace.analysis.ceilings.files import read_ceiling
    from commtrace.analysis.errors import AnalysisError
    from commtrace.analysis.formats.flight_recorder.dump import read_dump
    from commtrace.analysis.formats.flight_recorder.timed import read_timed
    from commtrace.analysis.formats.inspector.reader import read_inspector
    from commtrace.analysis.formats.kineto.reader import read_kineto
    from commtrace.analysis.formats.nsight.ranks import ranks_in
    from commtrace.analysis.formats.nsight.reader import read_nsight
    from commtrace.analysis.formats.pftrace.reader import read_pftrace
    from commtrace.analysis.formats.recordings.content import MAGIC
    from commtrace.analysis.formats.recordings.reader import read_recording
    from commtrace.analysis.formats.rocprof.ranks import processes_as_ranks
    from commtrace.analysis.formats.rocprof.reader import read_rocprof
    from commtrace.analysis.formats.xplane.ranks import devices_as_ranks
    from commtrace.analysis.formats.xplane.reader import read_xplane
    from commtrace.analysis.recording.checks import is_consistent
    from commtrace.analysis.recording.options import ReadOptions
    from commtrace.analysis.recording.recording import RawTrace
    from commtrace.analysis.run.side_files import rank_file
    from commtrace.analysis.streaming.logs import LogsOverTime
    from commtrace.analysis.sweeps.timings_csv import csv_rows
    from commtrace.analysis.training.files import load_trainings

    whole, kept = (ReadOptions(details=True, memory_gb=_MEMORY_GB, keep_going=keep) for keep in (False, True))

    def written(name: str, content: bytes) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    def read_whole(path: Path, read: Callable[[Path, ReadOptions], RawTrace]) -> RawTrace | None:
        """What a sound file holds, after reading it as a damaged one too."""
        found = None
        for options in (kept, whole):
            try:
                found = read(path, options)
                assert is_consistent(found)
            except AnalysisError:
                found = None
        return found

    def is_read(read: Callable[[Path], object], path: Path) -> bool:
        try:
            read(path)
        except AnalysisError:
            return False
        return True

    def kineto(content: bytes) -> bool:
        found = read_whole(written("rank0.json", content), read_kineto)
        if found is not None and not found.extent.not_understood_bytes and not content.startswith(b"\x1f\x8b"):
            with contextlib.suppress(RecursionError):
                json.loads(content.removeprefix(b"\xef\xbb\xbf"))
        return found is not None

    def recordings(content: bytes) -> bool:
        if not content.startswith(b"\x1f\x8b"):  # the content of one, without its checksum
            content = gzip.compress(MAGIC + sha256(content).digest() + content, 1)
        return read_whole(written("rank0.commtrace", content), read_recording) is not None

    def dumps(content: bytes) -> bool:
        path = written("nccl_trace_rank_0", content)
        return any([is_read(read_dump, path), is_read(read_timed, path)])

    def inspector(content: bytes) -> bool:
        path = written("node00-pid1.log", content)
        streamed = is_read(lambda log: LogsOverTime([log], _ONE_NS, keep_going=True).read(), path)
        return (read_whole(path, read_inspector) is not None) and streamed

    def nsight(content: bytes) -> bool:
        path = written("report.sqlite", content)
        try:
            ranks = ranks_in([path]).paths
        except AnalysisError:
            return False
        return all(read_whole(rank, read_nsight) is not None for rank in ranks)

    def rocpd(content: bytes) -> bool:
        path = written("9_results.db", content)
        return all(read_whole(rank, read_rocprof) is not None for rank in processes_as_ranks([path]).paths)

    def rocprof_json(content: bytes) -> bool:
        path = written("9_results.json", content)
        return all(read_whole(rank, read_rocprof) is not None for rank in processes_as_ranks([path]).paths)

    def xplane(content: bytes) -> bool:
        path = written("node00.xplane.pb", content)
        return all(read_whole(rank, read_xplane) is not None for rank in devices_as_ranks([path]).paths)

    def pftrace(content: bytes) -> bool:
        return read_whole(written("rank0.pftrace", content), read_pftrace) is not None

    def side_files(content: bytes) -> bool:
        path = written("rank_0.meta.json", content)
        (folder / "training").mkdir(exist_ok=True)
        written("training/training.json", content)
        of_folder = is_read(lambda _: load_trainings([folder / "training"]), path)
        return any([of_folder, *(is_read(read, path) for read in (rank_file, read_ceiling, csv_rows))])

    return {
        "kineto": kineto,
        "recordings": recordings,
        "dumps": dumps,
        "inspector": inspector,
        "nsight": nsight,
        "rocpd": rocpd,
        "rocprof-json": rocprof_json,
        "xplane": xplane,
        "pftrace": pftrace,
        "side-files": side_files,
    }


READERS = (
    "kineto",
    "recordings",
    "dumps",
    "inspector",
    "nsight",
    "rocpd",
    "rocprof-json",
    "xplane",
    "pftrace",
    "side-files",
)


def corpus(reader: str) -> list[Path]:
    """The inputs from which the fuzzer begins."""
    return sorted((CORPORA / reader).iterdir())


def replay(reader: str, folder: Path) -> dict[str, bool]:
    """Every input of a corpus, by name, and whether it can be read. Raises what a reader should not."""
    target = targets(folder)[reader]
    return {path.name: target(path.read_bytes()) for path in corpus(reader)}


def words(texts: Iterable[bytes]) -> bytes:
    """A dictionary for the fuzzer: keys and names that the texts hold."""
    found = dict.fromkeys(word for text in texts for word in _WORD.findall(text))
    quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in list(found)[:_MOST_WORDS])
    return "".join(f'"{word}"\n' for word in quoted).encode()


def fuzz(reader: str, seconds: int, grown: Path, seed: int) -> None:
    """Fuzz a reader, with the inputs that reach new lines in `grown`. Ends the process: 0 where nothing went wrong."""
    import atheris

    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{reader}-"))
    grown.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["analysis"]):
        target = targets(folder)[reader]
        for path in corpus(reader):  # readers import what they need on the way
            target(path.read_bytes())
    dictionary = folder / "words.txt"
    dictionary.write_bytes(words(path.read_bytes() for path in corpus(reader)))
    limits = [f"-max_total_time={seconds}", f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_MIB}"]
    inputs = [f"-max_len={MOST_BYTES}", f"-dict={dictionary}", f"-seed={seed}", f"-artifact_prefix={folder}/"]

    def run(content: bytes) -> None:
        target(content)

    atheris.Setup([sys.argv[0], *limits, *inputs, "-print_final_stats=1", str(grown), str(CORPORA / reader)], run)
    atheris.Fuzz()


def main() -> None:
    """Fuzz one reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grown", type=Path, help="keep what the corpus grows to here", metavar="DIR")
    args = parser.parse_args()
    grown = args.grown or Path(tempfile.mkdtemp(prefix=f"fuzz-corpus-{args.reader}-"))
    fuzz(args.reader, args.seconds, grown, args.seed)


if __name__ == "__main__":
    main()
