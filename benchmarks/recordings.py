"""Sizes of recordings, and how fast they are read: `python benchmarks/recordings.py TRACE...`; one line for each trace.

Reading is timed in turns with the JSON, unpacked, on one core; the fastest of five.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.formats.recordings.content import TraceSource, packed
from commtrace.analysis.formats.recordings.reader import read_recording
from commtrace.analysis.recording.compression import is_gzip
from commtrace.analysis.recording.options import ReadOptions

TURNS = 5


def timed(read: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    read()
    return time.perf_counter() - begun


def line(trace: Path, folder: Path) -> str:
    """What there is to say of a trace."""
    plain, small, sizes = folder / "trace.json", folder / "trace.ctrace", {}
    content = trace.read_bytes()
    plain.write_bytes(gzip.decompress(content) if is_gzip(trace) else content)
    for details in (True, False):
        options = ReadOptions(details=details)
        small.write_bytes(packed(read_kineto(plain, options), TraceSource(trace.name, "Kineto", 0), []))
        sizes[details] = small.stat().st_size
    turns = [(timed(lambda: read_kineto(plain, options)), timed(lambda: read_recording(small, options)))
             for _ in range(TURNS)]  # fmt: skip
    json_s, small_s = (min(turn[which] for turn in turns) for which in (0, 1))
    whole, packed_size = plain.stat().st_size, len(content)
    return (
        f"{trace.parent.name}: {whole / 1e6:.1f} MB of JSON, recording {sizes[False] / 1e3:.1f} kB: 1/"
        f"{whole / sizes[False]:.0f} of it, 1/{packed_size / sizes[False]:.1f} of the file, "
        f"with details 1/{whole / sizes[True]:.0f}; "
        f"read {json_s * 1e3:.1f} and {small_s * 1e3:.2f} ms: {json_s / small_s:.1f} times as fast"
    )


def main() -> None:
    """Print a line for each trace."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            print(line(Path(name), Path(folder)))


if __name__ == "__main__":
    main()
