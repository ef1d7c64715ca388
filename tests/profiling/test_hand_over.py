"""Files of all ranks on rank 0, through stores of torch, each rank a thread with a folder of its own."""

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

from profiling.ranks.process_group import Identity
from profiling.sessions.afterwards.hand_over import HandOver, HandOverError, Parcel

MB = 1_000_000
KEY = "capture"


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
        missing = taker.take(folder, 20 * MB, within(20))
    assert missing == {}
    assert [one.result() for one in given] == [True, True, True]
    for rank in (1, 2, 3):
        for name, content in parcel(rank, 2_500_000).files:
            assert (folder / name).read_bytes() == content
    left = dist.PrefixStore(KEY, store())
    assert not any(left.check([key]) for key in ("1/0", "2/2", "arrived/1", "arrived/3"))


def test_a_rank_that_died_costs_only_its_own(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 4)
    raw = dist.PrefixStore(KEY, hashed)
    raw.set("2/0", b"killed while")
    raw.add("arrivals", 1)  # as what it was about to do
    for rank in (1, 3):
        HandOver(hashed, who(rank, 4), KEY).give(folder_of(tmp_path, rank), lambda r=rank: parcel(r), MB, within(5))
    assert taker.take(folder, MB, within(0.3)) == {2: "nothing was heard of it"}
    assert sorted(path.name for path in folder.glob("*.ctrace")) == [
        "host1_1.0000.pt.trace.ctrace", "host3_3.0000.pt.trace.ctrace"
    ]  # fmt: skip


def test_who_comes_too_late_is_told_and_leaves_nothing(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    assert taker.take(folder, MB, within(0.05)) == {1: "nothing was heard of it"}
    late = HandOver(hashed, who(1, 2), KEY)
    with pytest.raises(HandOverError, match="no longer waited"):
        late.give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    assert not dist.PrefixStore(KEY, hashed).check(["1/0"])


def test_where_ranks_see_the_folder_of_rank_0_nothing_is_sent(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)

    def unwanted() -> Parcel:
        raise AssertionError("made for nobody")

    assert HandOver(hashed, who(1, 2), KEY).give(folder, unwanted, MB, within(5)) is False
    assert taker.take(folder, MB, within(5)) == {}
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_another_run_of_the_same_name_is_not_the_folder_of_rank_0(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    own = folder_of(tmp_path, 1)
    (own / "run.json").write_text('{"run": "mine", "created_utc": "earlier"}')
    assert HandOver(hashed, who(1, 2), KEY).give(own, lambda: parcel(1), MB, within(5)) is True
    assert taker.take(folder, MB, within(5)) == {}


def test_nothing_that_is_there_is_replaced(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    (folder / "host1_1.meta.json").write_text("its own")
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: parcel(1), MB, within(5))
    assert taker.take(folder, MB, within(5)) == {}
    assert (folder / "host1_1.meta.json").read_text() == "its own"


def test_a_rank_with_too_much_says_so_to_both_sides(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    giver = HandOver(hashed, who(1, 2), KEY)
    with pytest.raises(HandOverError, match=r"100,002 bytes are more than .* --analyse-max-gb, 5,000"):
        giver.give(folder_of(tmp_path, 1), lambda: parcel(1), 5_000, within(5))
    assert "100,002 bytes" in taker.take(folder, MB, within(5))[1]


def test_what_is_missing_in_a_parcel_is_said_and_the_rest_is_there(hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    part = Parcel([("host1_1.meta.json", b"{}")], "it has no trace")
    HandOver(hashed, who(1, 2), KEY).give(folder_of(tmp_path, 1), lambda: part, MB, within(5))
    assert taker.take(folder, MB, within(5)) == {1: "it has no trace"}
    assert (folder / "host1_1.meta.json").is_file()


@pytest.mark.parametrize(
    ("label", "content"),
    [
        pytest.param({"files": [["../host1_1.meta.json", 2]]}, b"{}", id="another folder"),
        pytest.param({"files": [["host0_0.meta.json", 2]]}, b"{}", id="of another rank"),
        pytest.param({"files": [["run.json", 2]]}, b"{}", id="of the run"),
        pytest.param({"files": [["host1_1.meta.json", 3]]}, b"{}", id="shorter than said"),
        pytest.param({"files": [["host1_1.meta.json", 2]], "chunks": 10**9}, b"{}", id="more chunks than bytes"),
        pytest.param({"files": [["host1_1.meta.json", 10**12]]}, b"{}", id="larger than allowed"),
        pytest.param({"files": [["host1_1.meta.json", -2]]}, b"{}", id="less than nothing"),
        pytest.param({"files": "what"}, b"{}", id="no list of files"),
        pytest.param({"rank": 7}, b"{}", id="no such rank"),
        pytest.param({"files": [["host1_1.meta.json", 2]], "chunks": 2}, b"{}", id="a chunk that is not there"),
        pytest.param([], b"", id="another shape"),
    ],
)
def test_what_no_rank_of_ours_wrote_is_not_written(label, content, hashed, tmp_path) -> None:
    taker, folder = rank_0(hashed, tmp_path, 2)
    raw = dist.PrefixStore(KEY, hashed)
    whole = {"rank": 1, "files": [], "chunks": 1, "reason": None, "shared": False} | label if label else label
    raw.set("1/0", content)
    raw.set(f"arrived/{raw.add('arrivals', 1)}", json.dumps(whole))
    assert list(taker.take(folder, MB, within(0.05))) == [1]
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["of0"]


def test_a_store_that_does_not_answer_keeps_nobody(tmp_path, monkeypatch) -> None:
    silent = dist.HashStore()
    gone = threading.Event()
    monkeypatch.setattr(dist.PrefixStore, "check", lambda self, keys: gone.wait(30))
    monkeypatch.setattr(dist.PrefixStore, "add", lambda self, key, amount: gone.wait(30))
    begin = time.monotonic()
    with pytest.raises(HandOverError, match="did not answer"):
        HandOver(silent, who(1, 2), KEY).give(tmp_path, lambda: parcel(1), MB, within(0.1))
    missing = HandOver(silent, who(0, 2), KEY).take(tmp_path, MB, within(0.1))
    assert missing == {1: "the store of the process group did not answer in time"}
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
