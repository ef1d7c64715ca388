"""Pickles that would import, call or fill the memory are refused by the name of the operation, before any is built."""

from __future__ import annotations

import copyreg
import os
import pickle
import pickletools
import random
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
from hanging_jobs import data_parallel, dumps_of

from commtrace.analysis.core.budget import Budget
from commtrace.analysis.errors import DamagedTrace, TraceError, UnsafePickle
from commtrace.analysis.hang.analysis import find_hang
from commtrace.analysis.recording.plain_content import is_pickle
from commtrace.analysis.recording.plain_pickles import check_primitive, primitives

DUMP = dumps_of(data_parallel(2).run())[0]
ADMITTED = {
    *("MARK", "STOP", "PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
}
CODES = {one.name: one.code.encode("latin-1") for one in pickletools.opcodes}


class Runs:
    """What a pickle of it would run."""

    def __init__(self, how: object) -> None:
        self.how = how

    def __reduce_ex__(self, protocol: int) -> object:
        return self.how


def _touches(path: Path) -> list[object]:
    """Ways of making a file at `path` from a pickle."""
    command = f"touch {path}"
    return [(os.system, (command,)), (eval, (f"open({str(path)!r}, 'w')",)), (exec, (f"open({str(path)!r}, 'w')",))]


def _written_by_hand(path: Path) -> dict[str, bytes]:
    run = f"touch {path}".encode()
    short = bytes([len(run)])
    return {
        "GLOBAL": b"cos\nsystem\n(V%b\ntR." % run,
        "INST": b"(V%b\nios\nsystem\n." % run,
        "OBJ": b"(cos\nsystem\nV%b\no." % run,
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c%b%b\x85R." % (short, run),
        "NEWOBJ": b"\x80\x02cposix\nsystem\n(V%b\nt\x81." % run,
        "NEWOBJ_EX": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c%b%b\x85}\x92." % (short, run),
        "REDUCE in a dump": b"\x80\x02}q\x00X\x07\x00\x00\x00entries]q\x01cos\nsystem\n(V%b\ntRas." % run,
        "after 10,000 numbers": b"\x80\x02(" + b"K\x01" * 10_000 + b"lcos\nsystem\n(V%b\ntR." % run,
        "behind a pickle": pickle.dumps(DUMP, 2)[:-1] + b"0cos\nsystem\n(V%b\ntR." % run,
    }


def refused(data: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        primitives(data, "dump", Budget(None))
    return str(caught.value)


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_run_is_refused(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    for how in _touches(target):
        for holder in (Runs(how), [Runs(how)], {"entries": [{"frames": Runs(how)}]}, (1, Runs(how))):
            data = pickle.dumps(holder, protocol=protocol)
            message = refused(data)
            assert "GLOBAL" in message
            assert "nothing of it was run" in message
    assert not target.exists()


@pytest.mark.parametrize("name", _written_by_hand(Path("x")))
def test_every_way_to_call_is_refused(name: str, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    data = _written_by_hand(target)[name]
    assert "is refused" in refused(data)
    assert not target.exists()
    if name == "GLOBAL":
        pickle.loads(data)
        assert target.exists(), "it would not have run anything"


@pytest.mark.parametrize("name", sorted(set(CODES) - ADMITTED))
def test_every_other_operation_is_refused_by_its_name(name: str) -> None:
    for protocol in (b"", b"\x80\x02", b"\x80\x04"):
        for before in (b"", b"}q\x00", b"(" + b"K\x01" * 5_000):
            data = protocol + before + CODES[name] + bytes(40)
            with pytest.raises(UnsafePickle, match=rf"asks for {name},"):
                check_primitive(data, "dump")


@pytest.mark.parametrize(
    "holder", [{1}, frozenset({1}), b"bytes", bytearray(b"x"), 1j, OrderedDict(a=1), range(3), ...]
)
def test_other_types_are_refused(holder: object) -> None:
    for protocol in range(6):
        refused(pickle.dumps({"entries": holder}, protocol=protocol))


def test_a_registered_extension_is_refused() -> None:
    copyreg.add_extension("os", "system", 240)
    try:
        pickle.loads(b"\x82\xf0.")  # from now on it is in a cache, and needs no import
        assert "EXT1" in refused(b"\x80\x02\x82\xf0(X\x04\x00\x00\x00true\x85R.")
    finally:
        copyreg.remove_extension("os", "system", 240)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02N" + b"r\xff\xff\xff\x7f" + bytes(20) + b".",  # Python would make room for 2**32 numbers
        b"Np2147483647\n.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"L" + b"9" * 100_000 + b"L\n.",
        b"\x80\x02\x8b\x00\x00\x00\x7f" + bytes(100) + b".",
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    ],
    ids=["memo", "memo as text", "number", "long number", "LONG4", "LONG1"],
)
def test_what_fills_the_memory_is_refused(data: bytes) -> None:
    assert "is refused" in refused(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02X\xff\xff\xff\xffab.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
        b"\x80\x02", b"}", b"\x80", b"\x80\x02h\x07.", b"\x80\x02.", b"\x80\x02a.", b"\x80\x02}]Ns.", b"\x80\x09}.",
        b"\x80\x02}\xfe.", b"\x80\x02}.}.", b"\x80\x02X\x01\x00\x00\x00\xff.", b"\x80\x02K", b"\x80\x02M\x01",
    ],
)  # fmt: skip
def test_what_is_not_whole_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedTrace):
        primitives(data, "dump", Budget(None))


def test_deep_nesting_does_no_harm() -> None:
    depth = 200_000
    found = primitives(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".", "dump", Budget(None))
    assert isinstance(found, list)


@pytest.mark.parametrize("protocol", range(6))
def test_a_dump_is_read_as_python_reads_it(protocol: int) -> None:
    data = pickle.dumps(DUMP, protocol=protocol)
    assert is_pickle(data)
    assert primitives(data, "dump", Budget(None)) == pickle.loads(data)


def test_cut_and_changed_dumps_never_end_in_anything_but_an_error_of_ours() -> None:
    choice = random.Random(3)
    data = pickle.dumps(DUMP, protocol=2)
    for _ in range(600):
        cut = bytearray(data[: choice.randrange(1, len(data))] if choice.random() < 0.5 else data)
        for _ in range(choice.randrange(4)):
            cut[choice.randrange(len(cut))] = choice.randrange(256)
        with suppress(TraceError):
            primitives(bytes(cut), "dump", Budget(None))


def test_the_command_refuses_it_too(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": [Runs((os.system, ("true",)))], "version": "2.9"}, 2))
    with pytest.raises(UnsafePickle, match="dump_0: is refused"):
        find_hang(tmp_path)
