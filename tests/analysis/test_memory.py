"""Memory does not grow with the file: 1 GB through a pipe, and texts without end, within a stated bound."""

from __future__ import annotations

import gzip
import os
import platform
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from builders import LAYOUTS, US, Trace

ROOT = Path(__file__).resolve().parents[2]
STREAM_BYTES = 1 << 30
# The interpreter and the libraries of the reader, a chunk and its texts, and what is kept of each activity: five
# integers, two doubles, and the launch.
PLAIN_MIB = 100
KEPT_BYTES = 130
# An event that never ends is read up to the limit, and held a few times while it is looked at.
ENDLESS_MIB = 500

PROGRAM = """
import resource, sys
from pathlib import Path
from commtrace.analysis.errors import TraceError
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.formats.kineto.reader import read_kineto
def peak_mib():  # ru_maxrss begins with what the parent held
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20,) * 2)
try:
    found = read_kineto(Path(sys.argv[1]), ReadOptions())
    print(len(found.activities["ts"]) // 8, peak_mib())
except TraceError as err:
    print(str(err), peak_mib(), sep="|")
"""


def piped_into_a_reader(folder: Path, parts: Iterable[bytes], address_mib: int) -> str:
    """What a reader in a process of its own, which may have that much memory, says of these parts."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        try:
            with pipe.open("wb", buffering=0) as file:
                for part in parts:
                    file.write(part)
        except BrokenPipeError:
            return

    writer = threading.Thread(target=write)
    writer.start()
    command = [sys.executable, "-c", PROGRAM, str(pipe), str(address_mib)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    writer.join(timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def chunk_of_events() -> tuple[bytes, int]:
    """Events in Kineto's layout as one text, and how many activities are among them."""
    chance, made = random.Random(4), Trace()
    for number in range(6000):
        stack = "/".join(f"module_{chance.randrange(1000)}" for _ in range(9))
        made.event("python_function", f"{stack}.py({number}): forward", number * US, chance.randrange(9000))
        made.op(f"aten::op_{chance.randrange(99)}", number * US, chance.randrange(9000))
        if number % 12 == 0:
            made.kernel(f"gemm_{chance.randrange(50)}", number * US, chance.randrange(9000))
    text = LAYOUTS["kineto"](made.document())
    begin, end = text.index(b'  {\n    "ph"'), text.rindex(b"\n  ]")
    return text[begin:end] + b",\n", 500


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_gigabyte(tmp_path, packed):
    chunk, activities = chunk_of_events()
    times = STREAM_BYTES // len(chunk) + 1
    begin, end = (
        b'{"deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": [\n',
        b'  {\n    "ph": "i"\n  }\n  ]\n}',
    )
    if packed:  # one member after another, so that packing costs nothing
        member = gzip.compress(chunk, 1)
        parts = [gzip.compress(begin), *[member] * times, gzip.compress(end)]
    else:
        parts = [begin, *[chunk] * times, end]
    found = [int(number) for number in piped_into_a_reader(tmp_path, parts, 1024).split()]
    assert found[0] == activities * times
    assert times * len(chunk) >= STREAM_BYTES
    assert found[1] < PLAIN_MIB + (activities * times * KEPT_BYTES >> 20)


@pytest.mark.slow
@pytest.mark.parametrize(("filling", "packed"), [(b"x", False), (b"x", True), (b"\\\\", False)], ids=repr)
def test_an_event_without_end(tmp_path, filling, packed):
    opening = b'{"traceEvents": [{"ph": "X", "a": ' + (b"[" if len(filling) > 2 else b'"')
    block = filling * ((1 << 20) // len(filling))
    if packed:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        begin = packer.compress(opening) + packer.flush(zlib.Z_FULL_FLUSH)
        full = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
        parts = [begin, *[full] * 4096]
    else:
        parts = [opening, *[block] * 4096]
    message, used_mib = piped_into_a_reader(tmp_path, parts, 1536).rsplit("|", 1)
    assert "an event takes more than 16 MiB" in message
    assert int(used_mib) < ENDLESS_MIB


FAULTS = """
import resource, sys
from commtrace.analysis.core.process import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def use():
    blocks = [b"x" * (600 << 10) for _ in range(6)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a way of glibc, which is not here")
def test_memory_of_a_chunk_is_had_once() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    assert faults("kept") < 0.1 * faults("given back")
