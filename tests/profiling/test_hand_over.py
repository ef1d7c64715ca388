"""Files of all ranks on rank 0, through stores of torch, each rank a thread with a folder of its own."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.sessions.afterwards.hand_over import Allowance, HandOver, HandOverError, Parcel, Taken
from commtrace.profiling.sessions.afterwards.messages import Messages

MB = 1_000_000
KEY = "capture"
MOST = Allowance(bytes=4 * MB, files=2)


def clients(kind: str, folder: Path) -> "Iterator[Callable[[], dist.Store]]":
    """What gives each rank its own view of one store."""
    if kind == "hash":
        store = dist.HashStore()
        yield lambda: store
    elif kind == "file":
        yield lambda: dist.FileStore(str(folder / "store"), -1)
    else:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=10))
        del server


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request, tmp_path):
    with closing(clients(request.param, tmp_path)) as made:
        yield next(made)


@pytest.fixture
def hashed() -> "dist.Store":
    return dist.HashStore()


def who(rank: int, ranks: int) -> Identity:
    return Identity(rank, rank, ranks, f"host{rank}")


def within(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() > until_s


def folder_of(tmp_path: Path, rank: int) -> Path:
    folder = tmp_path / f"of{rank}"
    folder.mkdir()
    return folder


def rank_0(store: "dist.Store", tmp_path: Path, ranks: int) -> tuple[HandOver, Path]:
    folder = folder_of(tmp_path, 0)
    (folder / "run.json").write_text('{"run": "mine"}')
    taker = HandOver(store, who(0, ranks), KEY)
    taker.announce(folder)
    return taker, folder


def mark(folder: Path) -> str:
    """What rank 0 announces of its folder."""
    return hashlib.sha256((folder / "run.json").read_bytes()).hexdigest()


def parcel(rank: int, size: int = 100_000) -> Parcel:
    name = f"host{rank}_{rank}"
    return Parcel([(f"{name}.0000.pt.trace.ctrace", bytes([rank]) * size), (f"{name}.meta.json", b"{}")])


def test_what_every_rank_has_comes_together_and_leaves_the_store(store, tmp_path) -> None:
    taker, folder = rank_0(store(), tmp_path, 4)

    def give(rank: int) -> bool:
        own = folder_of(tmp_path, rank)
        return HandOver(store(), who(rank, 4), KEY).give(own, lambda: parcel(rank, 2_500_000), 9 * MB, within(10))

    with ThreadPoolExecutor(4) as threads:
        given = [threads.submit(give, rank) for rank in (1, 2, 3)]
        missing = taker.take(folder, MOST, within(20))
    assert missing == Taken({})
    assert [one.result() for one in given] == [True, True, True]
    for rank in (1, 2, 3):
        for name, content in parcel(rank, 2_500_000).files:
            assert (folder / name).read_bytes() == content
    left = dist.PrefixStore(KEY, store())
    assert not any(left.check([key]) for key in ("1/0/0", "2/0/2", "arrived/1", "arrived/3"))


def test_a_rank_that_died_costs_only_its_own(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 4)
    dist.PrefixStore(KEY, hashed).set("2/0/0", b"killed while")
    for rank in (1, 3):
        HandOver(hashed, who(rank, 4), KEY).give(folder_of(tmp_path, rank), lambda r=rank: parcel(r), MB, within(5))
    assert taker.take(folder, MOST, within(0.3)) == Taken({2: "no word came"})
    assert sorted(path.name for path in folder.glob("*.ctrace")) == [
        "host1_1.0000.pt.trace.ctrace", "host3_3.0000.pt.trace.ctrace"
    ]  # fmt: skip


def test_who_comes_too_late_is_told_and_leaves_nothing(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    assert taker.take(folder, MOST, within(0.05)) == Taken({1: "no word came"})
    late = HandOver(hashed, who(1, 2), KEY)
    with pytest.raises(HandOverError, match="no longer waited"):
        late.give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    assert not dist.PrefixStore(KEY, hashed).check(["1/0/0"])


def test_where_ranks_see_the_folder_of_rank_0_nothing_is_sent(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)

    (folder / META).touch()

    def unwanted() -> Parcel:
        raise AssertionError("made for nobody")

    assert HandOver(hashed, who(1, 2), KEY).give(folder, unwanted, MB, within(5)) is False
    assert taker.take(folder, MOST, within(5)) == Taken({})
    assert sorted(path.name for path in folder.iterdir()) == ["host1_1.meta.json", "run.json"]


def test_another_run_of_the_same_name_is_not_the_folder_of_rank_0(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    own = folder_of(tmp_path, 1)
    (own / "run.json").write_text('{"run": "mine", "created_utc": "earlier"}')
    assert HandOver(hashed, who(1, 2), KEY).give(own, lambda: parcel(1), MB, within(5)) is True
    assert taker.take(folder, MOST, within(5)) == Taken({})


def test_nothing_that_is_there_is_replaced(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    (folder / "host1_1.meta.json").write_text("its own")
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    assert taker.take(folder, MOST, within(5)) == Taken({})
    assert (folder / "host1_1.meta.json").read_text() == "its own"


def test_a_rank_with_too_much_says_so_to_both_sides(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    giver = HandOver(hashed, who(1, 2), KEY)
    with pytest.raises(HandOverError, match=r"100,002 bytes are more than .* --analyse-max-gb, 5,000"):
        giver.give(folder_of(tmp_path, 1), lambda: parcel(1), 5_000, within(5))
    assert "100,002 bytes" in taker.take(folder, MOST, within(5)).missing[1]


def test_what_is_missing_in_a_parcel_is_said_and_the_rest_is_there(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    part = Parcel([("host1_1.meta.json", b"{}")], "it has no trace")
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: part, MB, within(5))
    assert taker.take(folder, MOST, within(5)) == Taken({1: "it has no trace"})
    assert (folder / "host1_1.meta.json").is_file()


def named(name: object, size: object = 2, content: bytes = b"{}") -> dict[str, object]:
    return {"name": name, "size": size, "sha256": hashlib.sha256(content).hexdigest()}


META = "host1_1.meta.json"


@pytest.mark.parametrize(
    "label",
    [
        pytest.param({"files": [named(f"../{META}")]}, id="another folder"),
        pytest.param({"files": [named("host0_0.meta.json")]}, id="of another rank"),
        pytest.param({"files": [named("run.json")]}, id="of the run"),
        pytest.param({"files": [named("host_1.\u0661.pt.trace.ctrace")]}, id="a digit that is none of ours"),
        pytest.param({"files": [named(META, 3)]}, id="shorter than said"),
        pytest.param({"files": [named(META, 1)]}, id="longer than said"),
        pytest.param({"files": [named(META, 2, b"[]")]}, id="of another digest"),
        pytest.param({"files": [named(META, 10**12)]}, id="larger than allowed"),
        pytest.param({"files": [named(META, -2)]}, id="less than nothing"),
        pytest.param({"files": [named(META, 2.0)]}, id="no whole number"),
        pytest.param({"files": [named(META, float("inf"))]}, id="endless"),
        pytest.param({"files": [named(META, True)]}, id="no number"),
        pytest.param({"files": [named(META), named(META)]}, id="one file twice"),
        pytest.param({"files": [named(f"h_1.{n}.pt.trace.ctrace", 0, b"") for n in range(10_000)]}, id="many files"),
        pytest.param({"files": "what"}, id="no list of files"),
        pytest.param({"files": [["name", 2]]}, id="no files"),
        pytest.param({"folder": "another"}, id="of another run"),
        pytest.param({"chunks": 1}, id="an unknown field"),
        pytest.param({"shared": 1}, id="no truth"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"9" * 5000, id="a long number"),
        pytest.param(b"x" * 8_000_000, id="megabytes"),
        pytest.param(b"[]", id="another shape"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_no_rank_of_ours_wrote_is_ignored_and_the_rank_awaited(label, is_sealed, hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    whole = {"folder": mark(folder), "files": [named(META)], "reason": None, "shared": False}
    body = label if isinstance(label, bytes) else json.dumps(whole | label).encode()
    dist.PrefixStore(KEY, hashed).set("1/0/0", b"{}")
    Messages(hashed, KEY, b"" if is_sealed else b"guessed").post("arrived/1", body)
    assert taker.take(folder, MOST, within(0.05)) == Taken({1: "no word came"}, (1,))
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["of0"]


def test_a_file_whose_chunk_is_gone_is_not_written_and_the_rank_awaited(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1, 2_500_000), 3 * MB, within(5))
    dist.PrefixStore(KEY, hashed).delete_key("1/0/2")
    assert taker.take(folder, MOST, within(0.1)) == Taken({1: "no word came"}, (1,))
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_what_a_rank_writes_after_a_stranger_counts(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    Messages(hashed, KEY, b"").post("arrived/1", b"a stranger's")

    def give() -> None:
        time.sleep(0.1)
        HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(give)
        assert taker.take(folder, MOST, within(5)) == Taken({}, (1,))
    assert (folder / META).is_file()


@pytest.mark.parametrize(("of_rank_0", "of_rank_1"), [(b"secret", b""), (b"", b"secret"), (b"secret", b"another")])
def test_ranks_without_the_same_secret_do_not_meet(of_rank_0, of_rank_1, hashed, tmp_path) -> None:
    folder = folder_of(tmp_path, 0)
    taker = HandOver(hashed, who(0, 2), KEY, of_rank_0)
    taker.announce(folder)
    with pytest.raises(HandOverError, match="COMMTRACE_SECRET has to be the same for all ranks"):
        HandOver(hashed, who(1, 2), KEY, of_rank_1).give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    assert taker.take(folder, MOST, within(0.05)).missing == {1: "no word came"}


def test_an_old_message_of_the_same_secret_does_not_count_again(hashed, tmp_path) -> None:
    """A secret that users export once holds for many runs; each has another folder."""
    first, second = dist.HashStore(), hashed
    rank_0(first, tmp_path, 2)
    HandOver(first, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    seen = {name: dist.PrefixStore(KEY, first).get(name) for name in ("arrived/1", "1/0/0", "1/1/0")}
    later = tmp_path / "later"
    later.mkdir()
    (later / "run.json").write_text("later")
    taker = HandOver(second, who(0, 2), KEY)
    taker.announce(later)
    for name, content in seen.items():
        dist.PrefixStore(KEY, second).set(name, content)
    assert taker.take(later, MOST, within(0.05)) == Taken({1: "no word came"}, (1,))


def test_a_rank_that_says_it_writes_into_the_folder_and_does_not_is_missing(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    label = {"folder": mark(folder), "files": [], "reason": None, "shared": True}
    Messages(hashed, KEY, b"").post("arrived/1", json.dumps(label).encode())
    assert "nothing of it" in taker.take(folder, MOST, within(5)).missing[1]


def test_a_reason_is_one_line_that_does_nothing_to_a_terminal(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    label = {"folder": mark(folder), "files": [], "reason": "\x1b[2J\nerror: " + "x" * 5000, "shared": False}
    Messages(hashed, KEY, b"").post("arrived/1", json.dumps(label).encode())
    reason = taker.take(folder, MOST, within(5)).missing[1]
    assert reason.isprintable()
    assert len(reason) <= 500


def test_writing_ends_with_the_time(hashed, tmp_path) -> None:
    """A thread that still talks to a store when Python ends would abort the process."""
    taker, folder = rank_0(hashed, tmp_path, 2)
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1, 3_500_000), 4 * MB, within(5))
    looks = iter([False] * 6)
    taker.take(folder, MOST, lambda: next(looks, True))
    assert not any(thread.name == "commtrace-hand-over" for thread in threading.enumerate())
    assert not list(folder.glob("*.ctrace"))


@pytest.mark.slow
def test_a_store_that_does_not_answer_keeps_nobody(tmp_path, monkeypatch) -> None:
    silent = dist.HashStore()
    gone = threading.Event()
    monkeypatch.setattr(dist.PrefixStore, "compare_set", lambda self, *given: gone.wait(30))
    begin = time.monotonic()
    with pytest.raises(HandOverError, match="did not answer"):
        HandOver(silent, who(1, 2), KEY).give(tmp_path, lambda: parcel(1), MB, within(0.1))
    taken = HandOver(silent, who(0, 2), KEY).take(tmp_path, MOST, within(0.1))
    assert taken == Taken({1: "the store of the process group did not answer in time"})
    assert time.monotonic() - begin < 10
    gone.set()


def test_a_store_whose_server_has_ended_is_said(tmp_path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    giver = HandOver(
        dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=2)), who(1, 2), KEY
    )
    del server
    with pytest.raises(HandOverError):
        giver.give(tmp_path, lambda: parcel(1), MB, within(5))
