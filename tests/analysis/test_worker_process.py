"""Workers that are copies of a process: run in one of its own, since this one has threads."""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from builders import US, Trace
from samples import with_slow

from commtrace.analysis.reading.one_file import file_at
from commtrace.analysis.reading.spawn import start_worker
from commtrace.analysis.reading.worker import Answer, frame, write_frame
from commtrace.analysis.recording.options import ReadOptions

ROOT = Path(__file__).resolve().parents[2]
COPIED = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells how many threads there are")
BEGIN = """
import os, signal, sys, threading
from pathlib import Path
from commtrace.analysis.errors import TraceError
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions, ReadSizes
from commtrace.analysis.reading.pool import Reading

EVERY_FILE = ReadSizes(process_bytes=0)
traces = [TraceInput(Path(name)) for name in sys.argv[1:]]

def read(workers, before=lambda reading: None, sizes=EVERY_FILE):
    with Reading(traces, ReadOptions(workers=workers, sizes=sizes)) as reading:
        before(reading)
        found = list(reading)
    codes = [worker.wait() for worker in reading.processes]
    return found, [type(worker).__name__ for worker in reading.processes], codes
"""


def run(code: str, paths: list[Path]) -> str:
    command = [sys.executable, "-W", "error", "-c", BEGIN + code, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def traces(folder: Path) -> list[Path]:
    made = []
    for rank in range(3):
        trace = Trace(rank, 3)
        for number in range(200 * (rank + 1)):
            trace.kernel(f"gemm {number % 7}", number * US, 500)
        made.append(trace.write(folder))
    return made


@COPIED
@pytest.mark.parametrize("workers", [2, 3])
def test_copies_read_the_same(tmp_path, workers):
    paths = [*traces(tmp_path), tmp_path / "gone.json"]
    code = f"""
found, kinds, codes = read({workers})
print(kinds, [str(a) == str(b) for a, b in zip(found, read(1)[0])], type(found[-1]).__name__)
"""
    assert run(code, paths) == f"{['_Copy'] * workers} {[True] * 4} UnreadableFile\n"


@COPIED
def test_copies_that_are_killed_are_replaced(tmp_path):
    code = """
def kill(reading):
    for worker in reading.processes:
        os.kill(worker.pid, signal.SIGKILL)
found, kinds, codes = read(2, kill)
print(found == read(1)[0], codes)
"""
    assert run(code, traces(tmp_path)) == "True [-9, -9]\n"


@COPIED
@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("error", ["MemoryError", "OSError(12, 'no memory')"])
@pytest.mark.parametrize("count", [2, 5])
def test_answers_that_cannot_be_sent_are_found_by_the_caller(tmp_path, sent, error, count):
    code = f"""
import commtrace.analysis.reading.worker
write, sent = commtrace.analysis.reading.worker.write_frame, []
def fail(stream, *payload):
    if threading.current_thread() is not threading.main_thread():
        sent.append(payload)
        if len(sent) > {sent}:
            raise {error}
    write(stream, *payload)
commtrace.analysis.reading.worker.write_frame = fail
print(read(2)[0] == read(1)[0])
"""
    assert run(code, (traces(tmp_path) * 2)[:count]) == "True\n"


@COPIED
def test_without_a_thread_to_send_in_the_caller_reads(tmp_path):
    code = """
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
print(read(2)[0] == read(1)[0])
"""
    assert run(code, traces(tmp_path)) == "True\n"


@pytest.mark.slow
@COPIED
@pytest.mark.parametrize(("part_bytes", "cut"), with_slow([(1, 40), (1 << 30, None)], [(1, None), (1 << 30, 40)]))
def test_answers_that_came_together_are_all_heard(tmp_path, part_bytes, cut):
    """Workers that told much, and were done, before anybody listened."""
    trace = Trace(0, 3)
    for number in range(6000):
        trace.kernel(f"gemm {number % 7}", number * US, 500)
    path = trace.write(tmp_path, gz=False)
    content = path.read_bytes()
    path.write_bytes(content[: -cut if cut else len(content)])
    code = f"""
import time
import commtrace.analysis.reading.worker
commtrace.analysis.reading.worker._REPORT_EVERY_S = -1
sizes = ReadSizes(process_bytes=0, part_bytes={part_bytes})
print(*(type(found).__name__ for found in read(2, lambda reading: time.sleep(0.7), sizes)[0]))
"""
    assert run(code, [path]) == ("DamagedTrace\n" if cut else "RawTrace\n")


@COPIED
def test_an_interrupt_right_after_the_copy_is_for_the_caller_only(tmp_path):
    code = """
fork = os.fork
def interrupted_fork():
    pid = fork()
    os.kill(os.getpid(), signal.SIGINT)  # in both, as a terminal does it
    return pid
os.fork = interrupted_fork
try:
    read(2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    assert run(code, traces(tmp_path)) == "interrupted\n"


@COPIED
def test_nobody_may_be_told_how_a_copy_ended(tmp_path):
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(read(2)[0] == read(1)[0])
"""
    assert run(code, traces(tmp_path)) == "True\n"


@COPIED
def test_no_descriptor_is_left_where_no_process_can_be_started(tmp_path):
    code = """
def refuse():
    raise BlockingIOError("no more processes")
before = os.listdir("/proc/self/fd")
os.fork = refuse
print(read(2)[0] == read(1)[0], os.listdir("/proc/self/fd") == before)
"""
    assert run(code, traces(tmp_path)) == "True True\n"


@pytest.mark.slow
@COPIED
def test_a_process_with_threads_is_not_copied(tmp_path):
    code = """
end = threading.Event()
threading.Thread(target=end.wait).start()
print(read(2)[1])
end.set()
"""
    assert run(code, traces(tmp_path)) == "['Popen', 'Popen']\n"


@COPIED
def test_a_copy_ends_when_the_process_it_reads_for_is_killed(tmp_path):
    code = """
reading = Reading(traces, ReadOptions(workers=2, sizes=EVERY_FILE))
print(*(worker.pid for worker in reading.processes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", BEGIN + code, *map(str, traces(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = done.stdout.split()
    assert len(pids) == 2
    until = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, "a worker outlives the process it reads for"
        time.sleep(0.05)


def is_running(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_of_two_frames_in_a_pipe_one_stays_there():
    """As a selector sees it."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb", buffering=0) as stream, os.fdopen(sink, "wb") as writer:
        for _ in (1, 2):
            write_frame(writer, b"one", b" frame")
        for _ in (1, 2):
            assert select.select([stream], [], [], 0)[0]
            assert frame(stream) == b"one frame"
        assert not select.select([stream], [], [], 0)[0]


def test_a_new_interpreter_serves_too():
    worker = start_worker([])
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert isinstance(worker.stdout, io.RawIOBase)
    worker.stdin.close()
    assert worker.stdout.read() == b""
    assert worker.wait() == 0
    worker.stdout.close()


def test_a_worker_reads_on_while_nobody_takes_what_it_found(tmp_path):
    large, pipe = Trace(0, 1), tmp_path / "pipe.json"
    for number in range(2000):
        large.kernel(f"gemm {number}", number * US, 500)
    os.mkfifo(pipe)
    worker = start_worker([])
    try:
        for path in (large.write(tmp_path), pipe):
            call = file_at, (os.fsencode(path), ReadOptions(), None), True
            write_frame(worker.stdin, pickle.dumps(call))
        writer = opened_by_a_reader(pipe)
        assert writer is not None
        os.close(writer)
        worker.stdin.close()
        answers = [payload[0] for payload in iter(lambda: frame(worker.stdout), None)]
        assert [answer for answer in answers if answer != Answer.progress] == [Answer.result, Answer.error]
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def opened_by_a_reader(pipe: Path) -> int | None:
    """The pipe, to write to, once somebody reads it."""
    for _ in range(1000):
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.02)
    return None
