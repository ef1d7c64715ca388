"""Files in any state: read, or a clear error that says where; never a traceback, a hang, or a wrong number unmarked."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import LAYOUTS, MS, US, Collective, Trace, traces_of, write_bytes, write_run
from small_trace import KERNELS, content, good_events, read, trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import AnalysisError, DamagedTrace, TraceError, UnreadableFile
from commtrace.analysis.formats.kineto.stream import EventStream
from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes
from commtrace.analysis.results.opening import OpenRun, load_run
from commtrace.analysis.run.file_tables import trace_file
from commtrace.cli import main


def names(path: Path, *, keep_damaged: bool = False, sizes: ReadSizes = USUAL_SIZES) -> list[str]:
    return trace_file(path, read(path, keep_damaged=keep_damaged, sizes=sizes)).activities["name"].tolist()


ALL = [*(f"gemm {n}" for n in range(KERNELS)), "ncclDevKernel_Generic"]

# --- read all the same -----------------------------------------------------------------------------------------------


def member_cut_at(at: int) -> Callable[[bytes], bytes]:
    return lambda text: gzip.compress(text[:at]) + gzip.compress(text[at:])


LAST_EVENT = b"""  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 90000
  }"""
HARMLESS: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "blanks around": lambda text: b" \n\t\r" + text + b"\n \n",
    "gzip whatever its name": gzip.compress,
    "gzip with a byte order mark": lambda text: gzip.compress(b"\xef\xbb\xbf" + text),
    "many members": lambda text: b"".join(gzip.compress(text[at : at + 97]) for at in range(0, len(text), 97)),
    "empty members": lambda text: gzip.compress(b"") * 3 + gzip.compress(text) + gzip.compress(b""),
    "zeros between members": lambda text: gzip.compress(text[:500]) + b"\0" * 512 + gzip.compress(text[500:]),
    "zeros behind members": lambda text: gzip.compress(text) + b"\0" * 5000,
    "stored, not packed": lambda text: gzip.compress(text, 0),
    "a comma before the bracket": lambda text: text.replace(b"  }\n  ]", b"  },\n" + LAST_EVENT + b",\n  ]"),
    "a comma before every brace": lambda text: text.replace(b"\n    }\n  }", b",\n    }\n  }"),
    "a comma before every brace, also at the very end": lambda text: text.replace(
        b"\n    }\n  }", b",\n    }\n  }").replace(b'"trace.json"', b'"trace.json",'),
    "empty events": lambda text: text.replace(b"},\n  {", b"},\n  {},\n  {}, {},{\n},\n  {"),
    "times as texts": lambda text: text.replace(b'"ts": ', b'"ts": "').replace(b', "dur"', b'", "dur"'),
    "no numbers where none matter": lambda text: text.replace(b'"cbid": 211', b'"cbid": NaN, "x": [-Infinity]'),
    "no numbers around": lambda text: text.replace(b'"schemaVersion": 1', b'"schemaVersion": NaN'),
    "all keys twice": lambda text: text.replace(b'"stream": ', b'"stream": 1, "stream": '),
    "quotes in names": lambda text: text.replace(b"train.py: ", b'a "b" {"").replace('),
    "huge numbers that do not matter": lambda text: text.replace(b'"cbid": 211', b'"cbid": ' + b"9" * 4000),
    "bytes that are not text where none matter": lambda text: text.replace(b"train.py", b"tr\xff\xfe.py"),
    "names in Latin-1": lambda text: text.replace(b"train.py", b"tr\xe4in.py"),
    "names in Latin-1 and in UTF-8": lambda text: text.replace(b"train.py", "Müller, Jäger".encode("latin-1")).replace(
        b"train.py: 3", "Müller".encode()),
}  # fmt: skip


@pytest.mark.parametrize("state", HARMLESS)
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
@pytest.mark.parametrize("chunk_bytes", [700, 1 << 19])
def test_read_all_the_same(tmp_path, state, name, chunk_bytes):
    sizes = ReadSizes(chunk_bytes=chunk_bytes)
    changed = HARMLESS[state](content())
    assert changed != content()
    path = write_bytes(tmp_path / name, changed)
    plain = write_bytes(tmp_path / "plain.json", content())
    assert names(path, sizes=sizes) == ALL
    found, wanted = (records(trace_file(one, read(one, sizes=sizes)).activities) for one in (path, plain))
    assert found == wanted


def test_quotes_in_the_names_of_kernels(tmp_path):
    for layout in ("kineto", "kineto of torch 2.13"):
        text = LAYOUTS[layout](trace().document()).replace(b"gemm ", b'k<"a", {"c"> ')
        for chunk_bytes in (300, 1 << 19):
            path, sizes = write_bytes(tmp_path / "t.json", text), ReadSizes(chunk_bytes=chunk_bytes)
            assert names(path, sizes=sizes) == [n.replace("gemm ", "k<'a', {'c'> ") for n in ALL]


@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13"])
def test_quotes_in_the_last_name(tmp_path, layout):
    for number in range(KERNELS):
        text = LAYOUTS[layout]({**trace().document(), "traceEvents": trace().events[: 9 + number]})
        last = text.rindex(b'"name": "') + len(b'"name": "')
        changed = text[:last] + b'5" disk" {, ' + text[last:]
        whole, found = (read(write_bytes(tmp_path / "t.json", t)) for t in (text, changed))
        assert found.activities.keys() == whole.activities.keys()
        assert [len(c) for c in found.activities.values()] == [len(c) for c in whole.activities.values()]


def test_a_lone_quote_in_a_name_may_be_damage(tmp_path):
    for name in (b"gemm 3", b"train.py: 3"):
        with pytest.raises(DamagedTrace, match=r"is not JSON at byte|is not as Kineto writes it"):
            read(write_bytes(tmp_path / "t.json", content().replace(name, b'5" ' + name)))


def test_events_in_any_order(tmp_path):
    made = trace()
    plain = trace_file(tmp_path, read(made.write(tmp_path, "a.json", gz=False)))
    random.Random(5).shuffle(made.events)
    mixed = trace_file(tmp_path, read(made.write(tmp_path, "b.json", gz=False)))
    assert mixed.launches.equals(plain.launches)
    order = ["start_ns", "name"]
    assert mixed.activities.sort_values(order, ignore_index=True).equals(plain.activities)


def test_durations_that_are_none(tmp_path):
    made = trace()
    kernels = [e for e in made.events if e["cat"] == "kernel"]
    kernels[0]["dur"], kernels[1]["dur"], kernels[2]["dur"] = -5.0, 0.0, None
    del kernels[3]["dur"]
    path = write_bytes(tmp_path / "t.json", json.dumps(made.document()).encode())
    file = trace_file(path, read(path))
    assert file.activities["dur_ns"].tolist()[:5] == [0, 0, 0, 0, 3 * MS]
    assert file.notes == ("t.json: 1 event has a negative duration, which counts as 0",)


# --- errors that say where -------------------------------------------------------------------------------------------


def fails(path: Path) -> str:
    """The message of the error; the same on the command line, as one line and without a traceback."""
    with pytest.raises(AnalysisError) as raised:
        load_run([path])
    errors = io.StringIO()
    with contextlib.redirect_stderr(_Stream(errors)), contextlib.redirect_stdout(_Stream(io.StringIO())):
        assert main([str(path)]) == 1
    text = errors.getvalue()
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert path.name in text
    return str(raised.value)


class _Stream(io.TextIOWrapper):
    """A text stream that can be reconfigured, and shows what came in elsewhere."""

    def __init__(self, target: io.StringIO) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._target = target

    def write(self, text: str) -> int:
        return self._target.write(text)


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda text: b"", "is empty"),
    "one byte": (lambda text: b"{", "holds no JSON"),
    "one byte of gzip": (lambda text: b"\x1f", "holds no JSON"),
    "two bytes of gzip": (lambda text: b"\x1f\x8b", "gzip that ends early"),
    "zstd": (lambda text: b"\x28\xb5\x2f\xfd" + text, "packed with zstd"),
    "UTF-16": (lambda text: text.decode().encode("utf-16"), "holds no JSON"),
    "garbage in front": (lambda text: b"log: " + text, "is not JSON at byte 0"),
    "garbage behind": (lambda text: text + b"garbage", "is not JSON at byte [0-9,]+, behind its {events} events"),
    "a second document": (lambda text: text + text, '"traceEvents" more than once|is not JSON'),
    "cut behind the events": (lambda text: text[:-9], "ends too early at byte {end}"),
    "garbage behind gzip": (lambda text: gzip.compress(text) + b"garbage" * 9, "is damaged gzip"),
    "a flipped checksum": (lambda text: gzip.compress(text)[:-8] + b"\0" * 4 + gzip.compress(text)[-4:], "gzip"),
    "an event that is none": (lambda text: text.replace(b"},\n  {", b"},\n  null,\n  {", 1), r"not JSON at byte \d+"),
    "two commas": (lambda text: text.replace(b"},\n  {", b"},,\n  {", 1), r"is not JSON at byte \d+ \(1 event "),
    "a time that is none": (lambda text: text.replace(b'"ts": 10000.', b'"ts": NaN, "x": 1.', 1), "event .*at byte"),
    "no time": (lambda text: text.replace(b'"ts": 10000.', b'"x": 10000.', 1), "event .*at byte .*missing required"),
    "a time without end": (lambda text: text.replace(b'"ts": 10000.', b'"ts": 1e300, "x": 1.', 1), "event .*at byte"),
    "a time from no calendar": (lambda text: text.replace(b'"ts": 10000.', b'"ts": 9e15, "x": 1.', 1), "event 4, at"),
    "a thread beyond 64 bits": (lambda text: text.replace(b'"tid": 7', b'"tid": 18446744073709551616', 1), "event"),
    "a zero of times beyond 64 bits": (lambda text: text.replace(b"17593000", b"9917593000"), "baseTimeNanoseconds"),
    "shapes that are none": (
        lambda text: text.replace(b"ProfilerStep#1", b"nccl:x").replace(
            b'"args": {\n      \n', b'"args": {"Input Dims": [["a"]]\n'), "are not shapes"),
    "events twice": (lambda text: text.replace(b'"traceName"', b'"traceEvents": [{"a": 1}], "b"'), "more than once"),
    "half a surrogate in a name": (lambda text: text.replace(b"gemm 1", b"\\ud800 1"), "event"),
    "bytes that are not text in a name": (lambda text: text.replace(b"gemm 1", b"\xff 1"), "event"),
    "one comma before a brace": (
        lambda text: text.replace(b"\n    }\n  }", b",\n    }\n  }", 1), r"is not JSON at byte \d+"),
    "a comma before a bracket behind which events may be missing": (
        lambda text: text.replace(b"  }\n  ]", b"  },\n  ]"), r"is not JSON at byte [0-9,]+"),
    "a comma at the very end": (lambda text: text.replace(b'"trace.json"', b'"trace.json",'), "is not JSON at byte"),
    "half a letter beside whole ones": (
        lambda text: text.replace(b"train.py: 2", b"tr\xc3.py").replace(b"train.py: 3", "träin.py".encode()),
        r"is not JSON at byte \d+"),
    "the quote behind one name and that before another": (
        lambda text: text.replace(b"gemm 1", b'gemm 1",  "gemm 1'), "event .*at byte|is not JSON at byte"),
    "zeros in the middle": (lambda text: text[:2000] + b"\0" * 300 + text[2300:], "event|is not JSON at byte"),
}  # fmt: skip


@pytest.mark.parametrize("state", DAMAGED)
def test_an_error_says_where(tmp_path, state):
    change, wanted = DAMAGED[state]
    changed = change(content())
    assert changed != content()
    message = fails(write_bytes(tmp_path / "rank0.json", changed))
    events = len(trace().events)
    ends = [len(content()), len(content()) - 9]
    wanted = [wanted.format(end=f"{end:,}", events=events) for end in ends]
    assert any(re.search(w, message) for w in wanted), message


def test_the_byte_of_a_malformed_event_is_where_it_stands(tmp_path):
    for layout in LAYOUTS:
        text = LAYOUTS[layout](trace().document())
        at = text.index(b'gemm 3"', text.index(b"gemm 2"))
        broken = text[:at] + b"\\x" + text[at + 2 :]
        path = write_bytes(tmp_path / "t.json", broken)
        with pytest.raises(DamagedTrace, match=r"byte ([0-9,]+)") as raised:
            read(path)
        told = int(str(raised.value).split("byte ")[1].split()[0].rstrip(",").replace(",", ""))
        assert text.rindex(b"gemm 2", 0, at) <= told <= at + 2, layout


@pytest.mark.parametrize("garbage", [b"x", b" x", b"\n  xyz"])
def test_the_byte_of_garbage_behind_is_where_it_stands(tmp_path, garbage):
    text = content() + garbage
    at = len(text) - len(garbage.lstrip())
    assert f"is not JSON at byte {at:,}, behind" in fails(write_bytes(tmp_path / "rank0.json", text))


@pytest.mark.parametrize("opening", [b"", b'{"traceEvents": [', b'{"traceEvents": [{"args": ', b'{"a": '])
@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_nested_deeper_than_anything_is(tmp_path, opening, bracket):
    path = write_bytes(tmp_path / "t.json", opening + bracket * 200_000)
    with pytest.raises(TraceError, match=r"t\.json: "):
        read(path)


def test_two_malformed_events_of_different_sorts_in_one_batch(tmp_path):
    made = trace()
    made.events[1]["args"]["correlation"] = "launch"
    made.events[-1]["ts"] = "kernel"
    path = made.write(tmp_path, "t.json", layout="compact", gz=False)
    with pytest.raises(DamagedTrace, match="event 1, at"):
        read(path)
    assert good_events(read(path, keep_damaged=True)) == 1


ORDERS = {
    "Chrome's": ("name", "ts", "dur", "cat", "ph", "pid", "tid", "args"),
    "name first": ("name", "cat", "ph", "ts", "dur", "pid", "tid", "args"),
    "name before ph": ("cat", "name", "ph", "ts", "dur", "tid", "pid", "args"),
}


def ordered(order: str, times: list[object]) -> bytes:
    """Kernels that begin at these times, their keys in another order than Kineto's."""
    kernels = Trace()
    for number in range(len(times)):
        kernels.kernel(f"gemm {number}", number * US, 500)
    document = kernels.document()
    found = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    events = [{key: (e | {"ts": time})[key] for key in ORDERS[order]} for e, time in zip(found, times, strict=True)]
    return json.dumps(document | {"traceEvents": events}).encode()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_bytes", [300, 1 << 19])
def test_a_damaged_byte_in_another_order_of_keys(tmp_path, order, chunk_bytes):
    """No quote belongs to a name only because another name's end follows it somewhere."""
    sizes = ReadSizes(chunk_bytes=chunk_bytes)
    path = write_bytes(tmp_path / "t.json", ordered(order, [*range(40)]).replace(b'"ts": 25,', b'"ts": 2,5,'))
    with pytest.raises(DamagedTrace, match=r"is not JSON at byte [0-9,]+ \(25 events"):
        read(path, sizes=sizes)
    assert names(path, keep_damaged=True, sizes=sizes) == [f"gemm {n}" for n in range(25)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("time", ["soon", None, 1e300])
def test_a_time_that_is_none_in_another_order_of_keys(tmp_path, order, time):
    path = write_bytes(tmp_path / "t.json", ordered(order, [1, 2, time, 4]))
    with pytest.raises(DamagedTrace, match=r"event 2, at byte .* is not as Kineto writes it: .*\$\.ts"):
        read(path)
    assert names(path, keep_damaged=True) == ["gemm 0", "gemm 1"]


@pytest.mark.parametrize("piece", [b'{"cat": "kernel", "name": "a"}, ', b'"cat": "", "name": "'])
def test_many_names_without_end_take_no_hours(tmp_path, piece):
    begin = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "args": ['
    with pytest.raises(DamagedTrace, match="0 events"):
        read(write_bytes(tmp_path / "t.json", begin + piece * ((1 << 20) // len(piece)) + b"tru]}]}"))


@pytest.mark.parametrize("behind", [b'"hip_runtime_version": "abc"', b'"traceEvents": [{"a": 1}]', b'"host_name": 5'])
def test_damage_behind_the_events_leaves_them_in_large_files_too(tmp_path, behind):
    text = content()
    path = write_bytes(tmp_path / "t.json", text[: text.rindex(b"}")] + b", " + behind + b"}")
    kept, large = read(path, keep_damaged=True), ReadSizes(slow_to_count_bytes=0)
    assert read(path, keep_damaged=True, sizes=large) == kept
    assert names(path, keep_damaged=True, sizes=large) == ALL


def test_a_list_of_events_whose_arguments_look_like_a_trace(tmp_path):
    events = [*trace().events, {"ph": "M", "name": "x", "args": {"traceEvents": [{"ph": "X", "cat": "kernel"}]}}]
    path = write_bytes(tmp_path / "t.json", json.dumps(events).encode())
    assert names(path) == ALL


# --- what is not a plain file ----------------------------------------------------------------------------------------


def test_a_folder_named_like_a_trace(tmp_path):
    (tmp_path / "x.json").mkdir()
    assert "holds no Kineto trace" in fails(tmp_path / "x.json")
    with pytest.raises(UnreadableFile, match=r"x\.json: cannot be read"):
        load_run([tmp_path])


def test_pipes_and_sockets_in_a_folder_are_left_out(tmp_path, capsys):
    write_run(tmp_path, 2, [Collective((0, 1 * MS))])
    os.mkfifo(tmp_path / "node_2.0001.pt.trace.json")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(tmp_path / "rank3.json"))
    run = load_run([tmp_path])
    assert run.ranks == [0, 1]
    assert main(["breakdown", str(tmp_path)]) == 0
    assert "left out node_2.0001.pt.trace.json, which is not a file" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_side_file_is_an_error(tmp_path):
    write_run(tmp_path, 2, [Collective((0, 1 * MS))])
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(UnreadableFile, match=r"run\.json: side file cannot be read"):
        load_run([tmp_path])


@contextlib.contextmanager
def piped(path: Path, parts: Iterator[bytes]) -> Iterator[Path]:
    """A pipe that these parts come through, as far as somebody reads them."""
    os.mkfifo(path)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), path.open("wb", buffering=0) as pipe:
            for part in parts:
                pipe.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    yield path
    writer.join(timeout=60)
    assert not writer.is_alive()


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("workers", [1, 2])
def test_pipes_are_read_once_beside_files(tmp_path, workers):
    options = ReadOptions(workers=workers, sizes=ReadSizes(process_bytes=0))
    made = traces_of(3, [Collective((0, 1 * MS, 2 * MS))])
    files = [t.write(tmp_path / "files") for t in made]
    with (
        piped(tmp_path / "pipe", iter([files[1].read_bytes()])) as pipe,
        OpenRun([files[0], pipe, files[2]], options) as opened,
    ):
        run = opened.run()
    assert run.ranks == [0, 1, 2]
    assert run.activities.equals(load_run([tmp_path / "files"]).activities)


def test_a_cpu_trace_through_a_pipe_needs_no_second_reading(tmp_path):
    made = Trace(backend="gloo").op("aten::mm", 0, 5).op("mine::op", 9, 5)  # its header lists GPUs
    path = made.write(tmp_path, "a.json", gz=False)
    with piped(tmp_path / "pipe", iter([path.read_bytes()])) as pipe:
        assert read(pipe) == read(path)
    assert len(trace_file(path, read(path)).cpu_ops) == 2


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """As a user who may do nothing; root may everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission(tmp_path):
    path = trace().write(tmp_path)
    path.chmod(0)
    tmp_path.chmod(0o700)
    with nobody(), pytest.raises(UnreadableFile, match="Permission denied"):
        read(path)
    path.parent.chmod(0)
    try:
        with nobody(), pytest.raises(UnreadableFile, match="Permission denied"):
            load_run([path])
    finally:
        path.parent.chmod(0o700)


def test_a_name_that_no_file_can_have(tmp_path):
    with pytest.raises(UnreadableFile, match="File name too long"):
        load_run([tmp_path / ("x" * 300)])


# --- files that change while they are read ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("gz", [False, True])
def test_a_file_that_shrinks(tmp_path, gz):
    made = Trace()
    for number in range(20_000):
        made.kernel(f"k{number * 7919 % 10007}", number * US, 500)
    path = made.write(tmp_path, gz=gz)
    stream = EventStream(path, sizes=ReadSizes(chunk_bytes=4096))
    with pytest.raises(UnreadableFile, match=r"was written to while it was read"):  # noqa: PT012
        for batch in stream:
            os.truncate(path, 20_000 if batch.first_event else path.stat().st_size)
    assert 0 < stream.events_read < 40_000


def test_a_file_that_grows(tmp_path):
    text = content()
    path = write_bytes(tmp_path / "rank0.json", text[:3000])
    with pytest.raises(UnreadableFile, match=r"was written to while it was read"):  # noqa: PT012
        for _ in EventStream(path, sizes=ReadSizes(chunk_bytes=512)):
            path.write_bytes(text)


# --- nothing fills the memory ----------------------------------------------------------------------------------------


SMALL_LIMITS = ReadSizes(entry_limit_bytes=1 << 20, harmless_bytes=4 << 20)
ENDLESS = {
    "one text": (b'{"traceEvents": [{"name": "', b"x" * 65536, "an event takes more than"),
    "one text of escapes": (b'{"traceEvents": [{"name": "', b"\\\\" * 32768, "an event takes more than"),
    "one text of quotes": (b'{"traceEvents": [{"name": "', b'\\"' * 32768, "an event takes more than"),
    "one text before the events": (b'{"name": "', b"x" * 65536, "what stands before the events takes more than"),
    "one text behind the events": (b'{"traceEvents": [], "x": "', b"x" * 65536, "what follows the events takes more"),
    "blanks": (b'{"traceEvents": [', b" " * 65536, "an event takes more than"),
    "blanks only": (b"", b" " * 65536, "what stands before the events takes more"),
    "zeros": (b"", b"\0" * 65536, "what stands before the events takes more"),
    "brackets": (b'{"traceEvents": [{"a": ', b"[" * 65536, "is not JSON at byte"),
    "numbers": (b'{"traceEvents": [', b"1," * 32768, "is not JSON at byte"),
    "one number": (b'{"traceEvents": [{"a": ', b"1" * 65536, "an event takes more than"),
    "elements of one event": (b'{"traceEvents": [{"a": [', b"1," * 32768, "an event takes more than"),
    "commas": (b'{"traceEvents": [', b"," * 65536, "is not JSON at byte"),
    "members": (b'{"traceEvents": [{', b'"a":1,' * 10000, "an event takes more than"),
}


@pytest.mark.parametrize("state", ENDLESS)
def test_endless_streams_end(tmp_path, state):
    begin, more, reason = ENDLESS[state]
    with piped(tmp_path / "pipe", iter([begin, *[more] * 1000])) as pipe, pytest.raises(TraceError, match=reason):
        read(pipe, sizes=SMALL_LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("event", [b"{},", b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1},'])
def test_gzip_bombs_of_good_events_end(tmp_path, event):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(b'{"traceEvents": [')]
    parts += [packer.compress(event * 10_000) for _ in range(20_000_000 // len(event) // 10_000)]
    path = write_bytes(tmp_path / "t.json.gz", b"".join(parts) + packer.flush())
    with pytest.raises(DamagedTrace, match="grows more than 200 times"):
        read(path, sizes=SMALL_LIMITS)


@pytest.mark.parametrize("layout", ["kineto", "kineto of torch 2.13", "compact"])
@pytest.mark.parametrize("seed", range(6))
def test_two_ranks_that_wrote_into_one_file_are_said(tmp_path, seed, layout):
    drawn, texts = random.Random(seed), []
    for rank in range(2):
        trace = Trace(rank, 2, pid=4000 + rank)
        for number in range(300):
            trace.kernel(f"gemm_{drawn.randrange(10**6)}", number * MS, 5)
            trace.op("aten::mm" * drawn.randint(1, 3), number * MS, 5)
        texts.append(LAYOUTS[layout](trace.document()))
    block = drawn.choice([4096, 1000, 30_000])
    size = min(map(len, texts))
    mixed = b"".join(texts[at // block % 2][at : at + block] for at in range(0, size, block))
    path = write_bytes(tmp_path / "trace.json", mixed)
    with pytest.raises(DamagedTrace, match=r"at byte [0-9,]+.*; processes 4000 and 4001 wrote into this one file"):
        read(path)
