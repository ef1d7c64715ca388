"""Files read by other processes are what they are when read here, in the same order, whatever becomes of those."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from builders import US, Trace, write_bytes
from capturing import fresh_python
from samples import with_slow

import commtrace.analysis.reading.executor
from commtrace.analysis.errors import DamagedTrace, TraceError, UnreadableFile
from commtrace.analysis.reading.cache import Cache
from commtrace.analysis.reading.executor import cores
from commtrace.analysis.reading.pool import Reading
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import ReadSizes

EVERY_FILE = ReadSizes(process_bytes=0)
EVERY_PART = ReadSizes(process_bytes=0, part_bytes=1)
"""Every file, and every part of one, is worth a process."""


def trace(rank: int, kernels: int = 5) -> Trace:
    made = Trace(rank, 4, groups={"0": [0, 1, 2, 3]}).step(1, 0, 900 * US)
    for number in range(kernels):
        made.kernel(f"gemm {number % 7}", number * US, 500)
    return made.nccl("all_reduce", 100 * US, 10 * US, elems=rank + 1, Seq=3, **{"Comms Id": 18446744073709551557})


def written(folder: Path) -> list[Path]:
    """Files of unequal length, the longest first, one of them packed."""
    return [trace(rank, 4000 - 1000 * rank).write(folder, gz=rank == 2) for rank in range(4)]


def read(
    paths: list[Path], workers: int, sizes: ReadSizes = EVERY_FILE, **options: bool
) -> list[RawTrace | TraceError]:
    with Reading(list(map(TraceInput, paths)), ReadOptions(workers=workers, sizes=sizes, **options)) as reading:
        return list(reading)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 9])
def test_any_number_of_workers_gives_the_same_in_the_same_order(tmp_path, workers):
    paths = written(tmp_path)
    here = read(paths, 1)
    assert [found.header.rank for found in here if isinstance(found, RawTrace)] == [0, 1, 2, 3]
    assert read(paths, workers) == here


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_a_file_read_in_parts_is_the_same(tmp_path, workers):
    path = trace(2, 12_000).write(tmp_path)  # several chunks long
    told: list[int] = []
    with Reading([TraceInput(path)], ReadOptions(workers=workers, sizes=EVERY_PART)) as reading:
        assert len(reading.processes) == workers
        assert list(reading.results(told.append)) == read([path], 1)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size == reading.total_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "parts"), with_slow([(2, [1, 1, 2]), (7, [8, 8, 2])], [(3, [1, 1, 1])]))
def test_the_last_file_is_read_in_parts_where_others_would_wait_for_it(tmp_path, workers, parts):
    paths = written(tmp_path)[:3]
    with Reading(list(map(TraceInput, paths)), ReadOptions(workers=workers, sizes=EVERY_PART)) as reading:
        assert [file.parts for file in reading._files] == parts
        assert list(reading) == read(paths, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_slow(["rank0.json.gz"], ["rank0.json"]))
def test_a_packed_file_is_not_unpacked_by_everybody(tmp_path, name):
    path = trace(0, 12_000).write(tmp_path, name)
    with Reading([TraceInput(path)], ReadOptions(workers=64, sizes=EVERY_PART)) as reading:
        assert len(reading.processes) == 8
        assert list(reading) == read([path], 1)


@pytest.mark.slow
def test_what_cannot_be_read_in_parts_is_read_whole(tmp_path):
    small = trace(0).write(tmp_path)
    damaged = write_bytes(tmp_path / "damaged.json", trace(1, 12_000).write(tmp_path, gz=False).read_bytes()[:-40])
    for path in (small, damaged):
        (found,) = read([path], 3, EVERY_PART)
        assert str(found) == str(read([path], 1)[0])
        (kept,) = read([path], 3, EVERY_PART, keep_going=True)
        assert [kept] == read([path], 1, keep_going=True)


@pytest.mark.slow
def test_a_file_read_in_parts_is_cached_as_a_whole(tmp_path):
    path, cache = trace(2, 12_000).write(tmp_path), Cache(tmp_path / "cache")
    cache.folder.mkdir()
    options = ReadOptions(workers=2, cache=str(cache.folder), sizes=replace(EVERY_PART, cache_bytes=0))
    with Reading([TraceInput(path)], options) as reading:
        first = list(reading)
    with Reading([TraceInput(path)], options) as reading:
        assert not reading.processes
        assert list(reading) == first == read([path], 1)
    cache.place(path).write_bytes(b"nonsense")
    with Reading([TraceInput(path)], options) as reading:
        (again,) = reading
    assert again.notes == [f"{path.name}: its cache is damaged; the trace was read again"]


def test_patterns_of_the_user_reach_the_workers(tmp_path):
    paths = [Trace().kernel("MY_fancy_kernel", 0, 5).write(tmp_path, f"t{n}.json") for n in range(2)]
    with Reading(
        list(map(TraceInput, paths)), ReadOptions(comm_names=("my_fancy",), workers=2, sizes=EVERY_FILE)
    ) as reading:
        assert [found.kinds for found in reading if isinstance(found, RawTrace)] == [["comm"], ["comm"]]


def test_errors_come_back_as_what_they_are(tmp_path):
    damaged = write_bytes(tmp_path / "damaged.json", b'{"traceEvents": [{"ph": "X"}, {"na')
    foreign = write_bytes(tmp_path / "foreign.json", b"[1, 2")
    good, gone = trace(0).write(tmp_path), tmp_path / "gone \udcff.json"
    for workers in (1, 2):
        found = read([damaged, good, foreign, gone], workers)
        assert [type(f) for f in found] == [DamagedTrace, RawTrace, DamagedTrace, UnreadableFile]
        assert [str(f).split(": ")[0] for f in found if isinstance(f, TraceError)] == list(
            map(str, (damaged, foreign, gone))
        )


def test_of_damaged_files_the_good_part_is_kept_on_request(tmp_path):
    path = trace(0, 50).write(tmp_path, gz=False)
    path.write_bytes(path.read_bytes()[:9_000])
    for workers in (1, 2):
        (found,) = read([path], workers, keep_going=True)
        assert isinstance(found, RawTrace)
        assert found.damage is not None
        assert 0 < len(found.activities["ts"]) // 8 < 50


def test_what_is_kept_of_a_damaged_file_with_any_name(tmp_path, capfd):
    folder = tmp_path / "odd \udcff"
    folder.mkdir()
    path = trace(0, 50).write(folder, gz=False)
    path.write_bytes(path.read_bytes()[:9_000])
    here, there = (read([path], workers, keep_going=True) for workers in (1, 2))
    assert here == there
    assert isinstance(here[0], RawTrace)
    assert "odd \\udcff" in (here[0].damage or "")
    assert capfd.readouterr().err == ""  # of the worker


def test_a_file_that_only_this_process_has_is_read_here(tmp_path):
    path = trace(0).write(tmp_path, gz=False)
    wanted = read([path], 1)
    with path.open() as file:
        path.unlink()
        assert read([Path(f"/proc/self/fd/{file.fileno()}")], 2) == wanted


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_by_this_process(tmp_path):
    paths = written(tmp_path)
    with Reading(list(map(TraceInput, paths)), ReadOptions(workers=2, sizes=EVERY_FILE)) as reading:
        for worker in reading.processes:
            os.kill(worker.pid, signal.SIGKILL)
        assert list(reading) == read(paths, 1)


@pytest.mark.slow
def test_progress_stays_within_the_file_where_parts_do_not_join(tmp_path):
    content = trace(1, 12_000).write(tmp_path, gz=False).read_bytes()
    path = write_bytes(tmp_path / "rank1.json", content[:-40])
    told: list[int] = []
    with Reading([TraceInput(path)], ReadOptions(workers=2, sizes=EVERY_PART)) as reading:
        list(reading.results(told.append))
    assert told == sorted(told)
    assert max(told) <= reading.total_bytes


def test_where_no_process_can_be_started_this_one_reads(tmp_path, monkeypatch):
    def refuse(others: object) -> None:
        raise BlockingIOError("no more processes")

    paths = written(tmp_path)
    monkeypatch.setattr(commtrace.analysis.reading.executor, "start_worker", refuse)
    assert read(paths, 2) == read(paths, 1)


def test_no_worker_outlives_the_block(tmp_path):
    with Reading(list(map(TraceInput, written(tmp_path))), ReadOptions(workers=2, sizes=EVERY_FILE)) as reading:
        workers = reading.processes
        assert len(workers) == 2
    assert all(worker.returncode is not None for worker in workers)


@pytest.mark.slow
def test_progress_ends_at_the_size_of_all_files(tmp_path):
    paths = written(tmp_path)
    for workers in (1, 2):
        told: list[int] = []
        with Reading(list(map(TraceInput, paths)), ReadOptions(workers=workers, sizes=EVERY_FILE)) as reading:
            list(reading.results(told.append))
        assert told == sorted(told)
        assert told[-1] == sum(path.stat().st_size for path in paths)


@pytest.mark.slow
def test_without_workers_all_is_read_here(tmp_path):
    paths = written(tmp_path)
    assert read(paths, 0) == read(paths, 1)


def test_little_is_read_here(tmp_path):
    with Reading(list(map(TraceInput, written(tmp_path))), ReadOptions(workers=2)) as reading:
        assert not reading.processes
        assert len(list(reading)) == 4


def test_there_is_a_core():
    assert cores() >= 1


@pytest.mark.slow
def test_a_trace_is_recognised_once(tmp_path):
    """However often it is asked for its format, and whether it is gzip: both are another opening beside the reading."""
    path = trace(0, 10).write(tmp_path)
    code = """
import sys
from commtrace import analyse
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
analyse(sys.argv[1])
print(opened.count(sys.argv[2]))
"""
    done = fresh_python("-c", code, tmp_path, path)
    assert (done.stdout, done.stderr) == ("3\n", "")
