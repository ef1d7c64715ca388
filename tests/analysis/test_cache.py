"""The second reading of a file gives what the first one gave, or reads again and says why."""

import gzip
import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from builders import US, Trace
from recordings import as_file, content_in, odd_contents

import commtrace.analysis.formats.kineto.reader
import commtrace.analysis.formats.registry
import commtrace.analysis.reading.cache
from commtrace.analysis.errors import DamagedTrace
from commtrace.analysis.formats.kineto.entry import KINETO
from commtrace.analysis.formats.kineto.reader import read_kineto
from commtrace.analysis.reading.cache import Cache
from commtrace.analysis.reading.pool import Reading
from commtrace.analysis.reading.trace_input import TraceInput
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.recording import RawTrace
from commtrace.analysis.recording.sizes import ReadSizes
from commtrace.analysis.results.opening import analyse_with, load_run

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ReadOptions()


@pytest.fixture
def trace(tmp_path) -> Path:
    made = Trace(1, 2, groups={"0": [0, 1]}).step(3, 0, 900 * US).kernel("gemm", 0, 5 * US)
    made.nccl("all_reduce", 100 * US, 10 * US, elems=7, Seq=3, **{"Comms Id": 18446744073709551557})
    made.annotation("nccl:all_reduce", 45 * US, 50 * US, dims=[[7, 11]], types=["float"])
    return made.write(tmp_path / "run")


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    """Every file that is really read."""
    done: list[Path] = []

    def counted(path: Path, *args, **options) -> RawTrace:
        done.append(path)
        return read_kineto(path, *args, **options)

    monkeypatch.setattr(commtrace.analysis.formats.kineto.reader, "read_kineto", counted)
    return done


@pytest.mark.parametrize("beside", [True, False], ids=["beside the file", "in a folder"])
def test_the_second_reading_reads_nothing(tmp_path, trace, reads, beside):
    cache = Cache(None if beside else tmp_path / "cache")
    first = cache.read(TraceInput(trace), OPTIONS)
    assert cache.read(TraceInput(trace), OPTIONS) == first == read_kineto(trace, OPTIONS)
    assert len(reads) == 1
    assert cache.place(trace).is_file()
    assert not first.notes


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_who_may_read_the_trace_may_read_its_cache(trace, mode):
    trace.chmod(mode)
    Cache().read(TraceInput(trace), OPTIONS)
    assert Cache().place(trace).stat().st_mode & 0o777 == mode


def test_the_hidden_folder_is_no_part_of_the_run(trace):
    Cache().read(TraceInput(trace), OPTIONS)
    assert load_run([trace.parent]).traces["trace"].tolist() == [trace.name]


@pytest.mark.parametrize("change", ["longer", "other bytes", "later"])
def test_a_file_that_has_changed_is_read_again(trace, reads, change):
    cache = Cache()
    cache.read(TraceInput(trace), OPTIONS)
    status, content = trace.stat(), trace.read_bytes()
    if change == "longer":
        trace.write_bytes(content + b"\0" * 8)  # padding, which gzip allows
        os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "other bytes":
        trace.write_bytes(content[:4] + b"\1" + content[5:])  # the time in gzip's header
        os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    again = cache.read(TraceInput(trace), OPTIONS)
    assert len(reads) == 2
    assert "another state of the file" in again.notes[0]
    assert not cache.read(TraceInput(trace), OPTIONS).notes
    assert len(reads) == 2


def test_a_cache_of_an_older_reader_is_written_again(trace, reads, monkeypatch):
    Cache().read(TraceInput(trace), OPTIONS)
    later = replace(KINETO, version=KINETO.version + 1)
    monkeypatch.setattr(commtrace.analysis.formats.registry, "TRACE_FORMATS", (later,))
    assert "another version" in Cache().read(TraceInput(trace), OPTIONS).notes[0]
    assert not Cache().read(TraceInput(trace), OPTIONS).notes
    assert len(reads) == 2


def test_other_patterns_are_another_reading(trace, reads):
    Cache().read(TraceInput(trace), OPTIONS)
    assert Cache().read(TraceInput(trace), ReadOptions(comm_names=("gemm",))).kinds == ["comm", "comm"]
    assert len(reads) == 2


def test_a_reading_with_details_is_another_one(trace, reads):
    cache = Cache()
    with_details = ReadOptions(details=True)
    plain, detailed = cache.read(TraceInput(trace), OPTIONS), cache.read(TraceInput(trace), with_details)
    assert cache.read(TraceInput(trace), OPTIONS) == plain
    assert cache.read(TraceInput(trace), with_details) == detailed == read_kineto(trace, with_details)
    assert len(reads) == 2
    # Neither can be taken for the other.
    cache.place(trace).write_bytes(cache.place(trace, details=True).read_bytes())
    assert "another version" in cache.read(TraceInput(trace), OPTIONS).notes[0]


@pytest.mark.slow
def test_a_damaged_cache_is_said_and_written_again(trace, reads):
    cache = Cache()
    first = cache.read(TraceInput(trace), OPTIONS)
    place = cache.place(trace)
    good = place.read_bytes()
    for number, at in enumerate(range(0, len(good), 17)):
        damaged = good[:at] if number % 2 else good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :]
        place.write_bytes(damaged)
        again = cache.read(TraceInput(trace), OPTIONS)
        if len(damaged) == len(good) and not again.notes:  # a bit of which gzip makes nothing
            assert gzip.decompress(damaged) == gzip.decompress(good), at
            place.write_bytes(good)
        else:
            assert again.notes, at
        again.notes.clear()
        assert again == first
        assert place.read_bytes() == good


def test_another_middle_is_noticed(tmp_path, trace, reads, monkeypatch):
    # Though size and times are the same, as far as the blocks that are looked at go.
    cache = Cache(tmp_path / "cache")
    long = trace.with_name("long.json")
    long.write_bytes(b'{"traceEvents": [' + b" " * 900_000 + b"]}")
    status = long.stat()
    slot = cache.slot(TraceInput(long), OPTIONS)
    content = bytearray(long.read_bytes())
    content[len(content) // 64 * 20 + 100] = 0x0A
    long.write_bytes(content)
    os.utime(long, ns=(status.st_atime_ns, status.st_mtime_ns))
    times = {"st_ctime_ns": status.st_ctime_ns, "st_ino": status.st_ino}
    monkeypatch.setattr(
        commtrace.analysis.reading.cache, "_facts_of", lambda found: (found.st_size, found.st_mtime_ns, *times.values())
    )
    assert cache.slot(TraceInput(long), OPTIONS).key != slot.key


def test_what_belongs_to_others_is_kept_at_home(tmp_path, trace, reads, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)  # the trace is not ours then
    first = Cache().read(TraceInput(trace), OPTIONS)
    assert not Cache().place(trace).parent.exists()
    kept = Cache().places(trace)[1]
    assert kept.is_file()
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert kept.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert Cache().read(TraceInput(trace), OPTIONS) == first
    assert len(reads) == 1


def test_what_others_may_have_written_is_not_believed(trace, reads, monkeypatch):
    monkeypatch.setattr(commtrace.analysis.reading.cache, "_ROOT", -1)
    first = Cache().read(TraceInput(trace), OPTIONS)
    Cache().place(trace).chmod(0o666)
    assert "its cache can be written to by others" in Cache().read(TraceInput(trace), OPTIONS).notes[0]
    Cache().place(trace).parent.chmod(0o777)
    assert "its cache can be written to by others" in Cache().read(TraceInput(trace), OPTIONS).notes[0]
    assert Cache().read(TraceInput(trace), OPTIONS) == first
    owner = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert "its cache belongs to somebody else" in Cache().read(TraceInput(trace), OPTIONS).notes[0]


def test_a_sound_sum_of_contents_that_do_not_fit(trace, reads):
    cache = Cache()
    cache.read(TraceInput(trace), OPTIONS)
    place = cache.place(trace)
    content = content_in(place)
    for changes in odd_contents(content):
        place.write_bytes(as_file(msgspec.structs.replace(content, **changes)))
        place.chmod(0o600)
        assert "its cache is damaged" in cache.read(TraceInput(trace), OPTIONS).notes[0], changes


def test_a_folder_in_place_of_the_cache(trace, reads):
    Cache().place(trace).mkdir(parents=True)
    assert "cannot be read" in Cache().read(TraceInput(trace), OPTIONS).notes[0]
    assert list(Cache().place(trace).parent.iterdir()) == [Cache().place(trace)]  # and nothing half-written is left


def test_a_pipe_in_place_of_the_cache(trace, reads):
    place = Cache().place(trace)
    place.parent.mkdir()
    os.mkfifo(place)
    assert "cannot be read (is a pipe)" in Cache().read(TraceInput(trace), OPTIONS).notes[0]
    assert not Cache().read(TraceInput(trace), OPTIONS).notes
    assert len(reads) == 1


def test_a_folder_for_it_is_made(tmp_path, trace, reads):
    cache = Cache(tmp_path / "not" / "there yet")
    assert cache.read(TraceInput(trace), OPTIONS) == cache.read(TraceInput(trace), OPTIONS)
    assert len(reads) == 1


def test_a_place_where_nothing_can_be_written_costs_time_only(tmp_path, trace, reads):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    cache = Cache(blocked)
    assert cache.read(TraceInput(trace), OPTIONS) == cache.read(TraceInput(trace), OPTIONS)
    assert len(reads) == 2


def test_many_writers_at_once(trace):
    cache, plain = Cache(), read_kineto(trace, OPTIONS)
    found: list[RawTrace] = []
    threads = [threading.Thread(target=lambda: found.append(cache.read(TraceInput(trace), OPTIONS))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(f == plain for f in found)
    assert [p.name for p in cache.place(trace).parent.iterdir()] == [cache.place(trace).name]


def test_damaged_traces_are_not_kept(trace, reads):
    trace.write_bytes(trace.read_bytes()[:-40])
    for _ in range(2):
        with pytest.raises(DamagedTrace):
            Cache().read(TraceInput(trace), OPTIONS)
        assert Cache().read(TraceInput(trace), ReadOptions(keep_going=True)).damage
    assert len(reads) == 4


@pytest.mark.slow
def test_workers_use_it_for_large_files(tmp_path, trace):
    for limit, kept in ((1 << 30, False), (0, True)):
        for workers in (1, 2):
            cache = Cache(tmp_path / f"cache {limit} {workers}")
            sizes = ReadSizes(process_bytes=0, cache_bytes=limit)
            options = ReadOptions(workers=workers, cache=str(cache.folder), sizes=sizes)
            with Reading([TraceInput(trace)], options) as reading:
                assert list(reading) == [read_kineto(trace, OPTIONS)]
            assert cache.place(trace).is_file() == kept


@pytest.mark.slow
def test_what_is_worth_keeping_does_not_depend_on_where_tables_are_made(tmp_path):
    """A packed file counts by what it holds."""
    run = ROOT / "tests" / "data" / "nccl-straggler"
    on_disk = [path.stat().st_size for path in run.glob("*.pt.trace.json.gz")]
    for times, kept in ((2, len(on_disk)), (99, 0)):
        for ranks_bytes in (0, 1 << 30):
            folder = tmp_path / f"{times} {ranks_bytes}"
            sizes = ReadSizes(cache_bytes=times * max(on_disk), ranks_bytes=ranks_bytes)
            analyse_with(run, ReadOptions(workers=1, cache=str(folder), sizes=sizes))
            assert len(list(folder.glob("*.cache"))) == kept, (times, ranks_bytes)
