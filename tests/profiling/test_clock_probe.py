import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from capturing import SCRIPTS, metas, torchrun
from hypothesis import given
from hypothesis import strategies as st

from commtrace import capture
from commtrace.profiling.machine import environment
from commtrace.profiling.ranks import process_group as parallel
from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.sessions import clock_probe
from commtrace.profiling.sessions.clock_probe import ClockProbe, asked, serve

MS = 1_000_000
MEASURED = "exchange through the store"


def never() -> bool:
    return False


# --- one exchange, in simulated time ---------------------------------------------------------------------------------


@dataclass
class Simulated:
    """A store with rank 0 behind it: each exchange takes its times there, at rank 0, and back, in ns."""

    ways: list[tuple[int, int, int]]
    now: int = 10**18
    written: dict[str, bytes] = field(default_factory=dict)

    def check(self, keys: list[str]) -> bool:
        return all(key in self.written for key in keys)

    def set(self, key: str, value: str) -> None:
        self.written[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.written[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        (key,) = keys
        there, busy, back = self.ways[int(key.rpartition("/")[2])]
        came = self.now + there
        self.set(key, f"{came} {came + busy}")
        self.now = came + busy + back


@given(
    ahead=st.integers(-(10**12), 10**12),
    ways=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9)),
        min_size=clock_probe._EXCHANGES,
        max_size=clock_probe._EXCHANGES,
    ),
)
def test_the_true_offset_is_within_the_uncertainty_however_unequal_the_ways(ahead, ways) -> None:
    store = Simulated(ways)
    found = asked("start", store, 3, lambda: store.now + ahead)
    assert abs(found.offset_ns - ahead) <= found.uncertainty_ns
    shortest = min(there + back for there, _, back in ways)
    assert found.uncertainty_ns in (shortest // 2, shortest // 2 + shortest % 2)
    assert (found.at, found.against_rank, found.round_trips) == ("start", 0, len(ways))
    assert 10**18 <= found.unix_ns - ahead <= store.now


def test_equal_ways_give_the_offset_itself() -> None:
    store = Simulated([(50_000, 7, 50_000)] * clock_probe._EXCHANGES)
    found = asked("end", store, 1, lambda: store.now + 8 * MS)
    assert (found.offset_ns, found.uncertainty_ns, found.basis) == (8 * MS, 50_000, MEASURED)


def test_a_clock_that_is_set_back_meanwhile_is_noticed() -> None:
    store = Simulated([(1000, 0, 1000)] * clock_probe._EXCHANGES)
    ticks = iter(range(0, -(10**9), -(10**6)))
    with pytest.raises(clock_probe._UnmeasuredError, match="a clock was set"):
        asked("start", store, 1, lambda: next(ticks))


# --- the protocol, ranks as threads ----------------------------------------------------------------------------------


@dataclass
class World:
    """Ranks as threads over one store: the host of each, and how far its clock is ahead."""

    hosts: list[str]
    ahead_ns: list[int]
    store: Any = field(default_factory=dist.HashStore)
    rank: threading.local = field(default_factory=threading.local)

    def who(self) -> Identity:
        return Identity(self.rank.number, 0, len(self.hosts), self.hosts[self.rank.number])

    def run(self, *bodies: Callable[[ClockProbe, Identity], None]) -> list[dict[str, Any]]:
        """What meta.json says of every rank; rank r does `bodies[r]`, or else what all ranks should."""
        facts: list[dict[str, Any]] = [{} for _ in self.hosts]

        def rank(number: int) -> None:
            self.rank.number = number
            probe = ClockProbe(lambda: time.time_ns() + self.ahead_ns[number])
            body = bodies[number] if number < len(bodies) else properly
            body(probe, self.who())
            facts[number] = probe.facts()

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(self.hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        return facts


def properly(probe: ClockProbe, who: Identity) -> None:
    probe.at_start(who)
    probe.at_end()


def absent(probe: ClockProbe, who: Identity) -> None:
    pass


@pytest.fixture
def world(monkeypatch) -> Callable[..., World]:
    """Worlds of which `parallel` and `environment` tell; nobody has much patience."""

    def made(hosts: str, ahead_ns: dict[str, int] | None = None, patience_s: float = 5.0) -> World:
        ahead = ahead_ns or {}
        found = World(list(hosts), [ahead.get(host, 0) for host in hosts])
        monkeypatch.setattr(parallel, "default_store", lambda: found.store)
        monkeypatch.setattr(parallel, "identity", found.who)
        monkeypatch.setattr(environment, "boot_id", lambda: f"boot-{found.who().host}")
        monkeypatch.setattr(clock_probe, "_PATIENCE_S", patience_s)
        monkeypatch.setattr(clock_probe, "_ANSWER_S", min(1.0, patience_s))
        return found

    return made


def test_every_host_is_measured_once_at_both_ends(world) -> None:
    ahead = {"b": 8 * MS, "c": -3_600_000 * MS}
    facts = world("aabbbc", ahead).run()
    offsets = {
        rank: [(o.at, o.offset_ns, o.uncertainty_ns) for o in own["clock_probe"] or []]
        for rank, own in enumerate(facts)
    }
    for rank in (0, 1):
        assert offsets[rank] == [("start", 0, 0), ("end", 0, 0)]
    assert [facts[rank]["clock_probe"][0].basis for rank in (0, 1)] == ["this is rank 0", "same host"]
    asking = [rank for rank in (2, 3, 4) if offsets[rank]]
    assert len(asking) == 1
    for rank in (*asking, 5):
        assert [at for at, _, _ in offsets[rank]] == ["start", "end"]
        for _, offset, uncertainty in offsets[rank]:
            assert abs(offset - ahead["aabbbc"[rank]]) <= uncertainty < 100 * MS
        assert facts[rank]["clock_probe"][0].basis == MEASURED
    for rank in {2, 3, 4} - set(asking):
        assert facts[rank]["clock_probe_reason"] == "start: another rank of this host measures"


def test_a_second_capture_over_the_same_store_measures_anew(world, tmp_path) -> None:
    def twice(probe: ClockProbe, who: Identity) -> None:
        for name in ("first", "second"):
            parallel.agree_on_run_dir(who, tmp_path / name, lambda path: path)
            properly(probe, who)

    facts = world("ab", {"b": 5 * MS}).run(twice, twice)
    assert [o.at for o in facts[1]["clock_probe"]] == ["start", "end"] * 2
    assert all(abs(o.offset_ns - 5 * MS) <= o.uncertainty_ns for o in facts[1]["clock_probe"])


def test_a_rank_that_never_comes_costs_the_others_nothing_but_patience(world) -> None:
    started = threading.Barrier(2)  # as in a capture: nobody asks at its end while rank 0 waits at its start

    def patiently(probe: ClockProbe, who: Identity) -> None:
        probe.at_start(who)
        started.wait()
        probe.at_end()

    facts = world("abc", {"b": MS}, patience_s=0.3).run(patiently, patiently, absent)
    assert "not all ranks came" in facts[0]["clock_probe_reason"]
    assert [o.at for o in facts[0]["clock_probe"]] == ["start", "end"]
    assert [o.at for o in facts[1]["clock_probe"]] == ["start", "end"]


def test_without_rank_0_nobody_waits_for_ever(world) -> None:
    facts = world("ab", patience_s=0.1).run(absent, properly)
    assert facts[1] == {
        "clock_probe": None,
        "clock_probe_reason": "start: no answer through the store within 0.1 s",
    }


@pytest.mark.slow
def test_who_comes_too_late_is_told_so(world) -> None:
    def late(probe: ClockProbe, who: Identity) -> None:
        time.sleep(0.6)
        properly(probe, who)

    facts = world("ab", patience_s=0.2).run(properly, late)
    assert facts[1]["clock_probe"] is None
    assert facts[1]["clock_probe_reason"] == "start: rank 0 no longer waited for this rank"
    assert [o.at for o in facts[0]["clock_probe"]] == ["start", "end"]


def test_who_waits_when_rank_0_gives_up_is_told_so() -> None:
    store = dist.HashStore()
    clock_probe._call(store, "4")
    assert serve(store, None, time.time_ns, lambda: True) == (0, "stopped by a signal")
    with pytest.raises(clock_probe._UnmeasuredError, match="no longer waited"):
        asked("end", store, 4, time.time_ns)


def test_a_rank_that_vanishes_between_two_exchanges_is_left_behind(monkeypatch) -> None:
    monkeypatch.setattr(clock_probe, "_ANSWER_S", 0.1)
    store = dist.HashStore()
    clock_probe._call(store, "1")
    store.set("ask/1/0", "")  # and nothing after it
    clock_probe._call(store, "2")
    found = []
    other = threading.Thread(target=lambda: found.append(asked("start", store, 2, time.time_ns)))
    other.start()
    assert serve(store, 2, time.time_ns, never) == (1, None)
    other.join()
    assert abs(found[0].offset_ns) <= found[0].uncertainty_ns


def test_after_the_group_is_gone_only_those_who_need_no_exchange_are_measured(world) -> None:
    made = world("aab")

    def leave(probe: ClockProbe, who: Identity) -> None:
        probe.at_start(who)
        time.sleep(0.2)
        made.store = None
        probe.at_end()

    facts = made.run(leave, leave, leave)
    gone = "end: the process group was destroyed before the block ended"
    assert [own["clock_probe_reason"] for own in facts] == [gone, None, gone]
    assert [len(own["clock_probe"]) for own in facts] == [1, 2, 1]


@pytest.mark.slow
def test_another_group_in_its_place_is_not_asked(world) -> None:
    made = world("ab", patience_s=0.3)

    def replaced(probe: ClockProbe, who: Identity) -> None:
        probe.at_start(who)
        time.sleep(0.2)
        made.store = dist.HashStore()
        probe.at_end()

    for own in made.run(replaced, replaced):
        assert [o.at for o in own["clock_probe"]] == ["start"]
        assert own["clock_probe_reason"].startswith("end: no answer through the store")


def test_a_store_that_breaks_fails_nothing(world) -> None:
    class Broken(dist.HashStore):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("Connection reset by peer\n at socket.cpp")

    made = world("a")
    made.hosts.append("b")
    made.store = Broken()
    probe = ClockProbe()
    made.rank.number = 0
    with pytest.raises(RuntimeError):
        parallel.entries(made.store, made.who())
    probe.at_start(made.who())
    assert probe.facts() == {
        "clock_probe": None, "clock_probe_reason": "start: RuntimeError: Connection reset by peer",
    }  # fmt: skip
    probe.at_end()
    probe.skip_end("whatever")


def test_a_skipped_end_says_why(world) -> None:
    def fail(probe: ClockProbe, who: Identity) -> None:
        probe.at_start(who)
        probe.skip_end("the block was ended by ValueError")

    for own in world("ab").run(fail, fail):
        assert [o.at for o in own["clock_probe"]] == ["start"]
        assert own["clock_probe_reason"] == "end: skipped, the block was ended by ValueError"


# --- real captures ---------------------------------------------------------------------------------------------------


def pretended(run_dir: Path, ranks: int, *args: object) -> dict[int, dict[str, Any]]:
    """The side files of a capture whose ranks pretend to be on other hosts."""
    done = torchrun(ranks, SCRIPTS / "other_hosts.py", run_dir, *args)
    assert done.returncode == 0, done.stderr
    assert "timed out" not in done.stderr
    return metas(run_dir)


@pytest.mark.slow
def test_two_ranks_of_one_host(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "own_loop.py", tmp_path / "run", "finish")
    assert done.returncode == 0, done.stderr
    for rank, meta in metas(tmp_path / "run").items():
        assert [(o["at"], o["offset_ns"], o["uncertainty_ns"]) for o in meta["clock_probe"]] == [
            ("start", 0, 0),
            ("end", 0, 0),
        ]
        assert meta["clock_probe"][0]["basis"] == ("same host" if rank else "this is rank 0")
        assert meta["clock_probe_reason"] is None
        assert meta["machine"]["boot_id"] == environment.boot_id()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "per_host"), [(2, 1), (4, 2)])
def test_hosts_whose_clocks_differ(tmp_path, ranks, per_host) -> None:
    found = pretended(tmp_path / "run", ranks, per_host, 8 * MS)
    measured = {rank // per_host for rank, meta in found.items() if meta["clock_probe"]}
    assert measured == set(range(ranks // per_host))
    for rank, meta in found.items():
        for offset in meta["clock_probe"] or []:
            error = offset["offset_ns"] - 8 * MS * (rank // per_host)
            assert abs(error) <= offset["uncertainty_ns"] < 20 * MS
            assert offset["unix_ns"] > 1_700_000_000 * 10**9
    start, end = found[ranks - 1]["clock_probe"] or found[ranks - 2]["clock_probe"]
    traced = [step["dur_ns"] for step in found[0]["steps"]]
    assert end["unix_ns"] - start["unix_ns"] > sum(traced)


@pytest.mark.slow
def test_a_group_destroyed_inside_the_block(tmp_path) -> None:
    for meta in pretended(tmp_path / "run", 2, 1, 0, "destroyed").values():
        assert meta["complete"] is True
        assert [o["at"] for o in meta["clock_probe"]] == ["start"]
        assert meta["clock_probe_reason"] == "end: the process group was destroyed before the block ended"


@pytest.mark.slow
def test_a_rank_that_comes_a_second_later_is_waited_for(tmp_path) -> None:
    found = pretended(tmp_path / "run", 2, 1, 8 * MS, "late")
    assert [o["at"] for o in found[1]["clock_probe"]] == ["start", "end"]
    waited = json.loads((tmp_path / "run" / "spent-0.txt").read_text())
    assert waited["at_start"] > 0.5


@pytest.mark.slow
def test_an_exception_skips_the_end(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "own_loop.py", tmp_path / "run", "raise")
    assert done.returncode != 0
    meta = metas(tmp_path / "run")[1]
    assert [o["at"] for o in meta["clock_probe"]] == ["start"]
    assert meta["clock_probe_reason"] == "end: skipped, the block was ended by ValueError"


def test_one_rank_has_nothing_to_compare(tmp_path) -> None:
    with capture(tmp_path / "run", device="cpu", wait=0, warmup=0, active=1) as session:
        session.step()
    meta = metas(tmp_path / "run")[0]
    assert meta["clock_probe"] is None
    assert meta["clock_probe_reason"] == "torch.distributed is not initialised"
