"""The clock probe as a second witness: it narrows, links, follows drift, and is not believed blindly."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import BASE_NS, MS, US, Collective, Trace, calls_table, traces_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Shape, random_run

from commtrace import analyse
from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.core.tables.communication import CLOCK_PROBES
from commtrace.analysis.metrics.clocks.probes import CONTRADICTION, LARGEST_DRIFT
from commtrace.analysis.metrics.clocks.table import aligned
from commtrace.analysis.metrics.matching.ladder import Evidence, matches_of
from commtrace.analysis.results.opening import load_run
from commtrace.analysis.show.facts import facts
from commtrace.analysis.tables.clocks import compared_clocks

S = 1_000_000_000


def probes_table(*rows: tuple[int, str, int, int, int]) -> pd.DataFrame:
    """(rank, at, unix_ns, offset_ns, uncertainty_ns) as a table."""
    return CLOCK_PROBES.frame(dict(zip(CLOCK_PROBES.columns, row, strict=True)) for row in rows)


def both_ends(rank: int, offset_ns: int, uncertainty_ns: int, *, gained_ns: int = 0) -> list[tuple[Any, ...]]:
    """Probes of a rank a second before and after a window of 1 s that begins at 1 s."""
    return [
        (rank, "start", 0 + offset_ns, offset_ns, uncertainty_ns),
        (rank, "end", 3 * S + offset_ns + gained_ns, offset_ns + gained_ns, uncertainty_ns),
    ]


def exchanged(*ahead: int, count: int = 20, kind: str = "all_reduce", ranks: tuple[int, ...] = ()) -> list[Row]:
    """Collectives within [1 s, 2 s]; the ranks arrive in turn, and each rank's clock is so far ahead."""
    ranks = ranks or tuple(range(len(ahead)))
    chance, rows = random.Random(7), []
    for k in range(count):
        start = S + k * S // count + chance.randrange(1_300) * US
        for place, (rank, error) in enumerate(zip(ranks, ahead, strict=True)):
            late = (place + k) % len(ranks) * 200 * US
            end = start + 900 * US + chance.randrange(60) * US
            rows.append({
                "rank": rank, "start_ns": start + late + error, "dur_ns": end - start - late, "collective": kind,
                "pg_ranks": " ".join(map(str, ranks)), "size_bytes": 4096 * (1 + k % 3), "root": ranks[0], "seq": k,
            })  # fmt: skip
    return rows


def clocks_of(hosts: dict[int, str | None], rows: list[Row], *probes: tuple[Any, ...]) -> dict[int, Row]:
    calls = calls_table(rows)
    found = compared_clocks(calls, matches_of(calls, hosts), hosts, probes_table(*probes))
    return {row["rank"]: row for row in records(found)}


TWO: dict[int, str | None] = {0: "a", 1: "b"}


# --- two witnesses ---------------------------------------------------------------------------------------------------


def test_where_both_agree_the_uncertainty_is_what_both_leave():
    alone = clocks_of(TWO, exchanged(0, 8 * MS))[1]
    found = clocks_of(TWO, exchanged(0, 8 * MS), *both_ends(1, 8 * MS + 10 * US, 30 * US))[1]
    assert alone["uncertainty_ns"] > 100 * US
    assert abs(found["offset_ns"] - 8 * MS) <= found["uncertainty_ns"] < 35 * US
    assert found["basis"] == "estimated from collectives and clock probe"
    assert (alone["probe_offset_ns"], alone["probe_uncertainty_ns"]) == (None, None)
    assert found["probe_offset_ns"] == 8 * MS + 10 * US
    assert 30 * US <= found["probe_uncertainty_ns"] <= 32 * US


def test_a_probe_that_knows_less_changes_nothing():
    alone = clocks_of(TWO, exchanged(0, 8 * MS))[1]
    found = clocks_of(TWO, exchanged(0, 8 * MS), *both_ends(1, 9 * MS, 20 * MS))[1]
    for name in ("offset_ns", "drift_ppm", "uncertainty_ns", "linked"):
        assert found[name] == alone[name], name


@pytest.mark.parametrize("says", [3 * MS, 11 * MS, -5 * MS])
def test_where_they_contradict_each_other_the_uncertainty_covers_both(says):
    found = clocks_of(TWO, exchanged(0, 8 * MS), *both_ends(1, says, 50 * US))[1]
    assert found["basis"].startswith(f"{CONTRADICTION} by ")
    assert abs(found["offset_ns"] - 8 * MS) <= 200 * US
    assert abs(found["offset_ns"] - says) + 50 * US <= found["uncertainty_ns"] <= abs(8 * MS - says) + 1 * MS


def test_raw_clocks_are_kept_where_both_witnesses_admit_them():
    alone = clocks_of(TWO, exchanged(0, 0))[1]
    assert 20 * US <= alone["uncertainty_ns"] <= 50 * US
    for says, bound, uncertain in ((20 * US, 40 * US, alone["uncertainty_ns"]), (5 * US, 10 * US, 15 * US)):
        found = clocks_of(TWO, exchanged(0, 0), *both_ends(1, says, bound))[1]
        assert (found["offset_ns"], found["drift_ppm"]) == (0, 0)
        assert found["basis"] == "raw clocks agree within the uncertainty"
        assert uncertain <= found["uncertainty_ns"] <= uncertain + 2 * US


def test_only_the_rank_whose_probe_is_wrong_is_doubted():
    rows = exchanged(0, 8 * MS, -2 * MS)
    hosts: dict[int, str | None] = {0: "a", 1: "b", 2: "c"}
    found = clocks_of(hosts, rows, *both_ends(1, 8 * MS, 30 * US), *both_ends(2, 0, 30 * US))
    assert found[1]["basis"] == "estimated from collectives and clock probe"
    assert found[2]["basis"].startswith(CONTRADICTION)


def test_ranks_of_one_host_need_no_probe_and_it_tells_them_nothing():
    hosts: dict[int, str | None] = {0: "a", 1: "a"}
    probed = [(0, "start", 0, 0, 0), *both_ends(1, 0, 0)]
    assert clocks_of(hosts, exchanged(0, 0), *probed) == clocks_of(hosts, exchanged(0, 0))


def test_one_rank_of_a_host_speaks_for_the_others():
    hosts: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b"}
    found = clocks_of(hosts, exchanged(0, 0, 8 * MS, 8 * MS), *both_ends(3, 8 * MS, 20 * US))
    assert found[2]["offset_ns"] == found[3]["offset_ns"]
    assert abs(found[2]["offset_ns"] - 8 * MS) <= found[2]["uncertainty_ns"] <= 25 * US


# --- links -----------------------------------------------------------------------------------------------------------


def test_ranks_that_no_collective_links_are_linked_by_the_probe():
    # A broadcast may be left before all have come, so it tells nothing of the clocks.
    rows = exchanged(0, 8 * MS, kind="broadcast")
    assert clocks_of(TWO, rows)[1]["linked"] == 1
    found = clocks_of(TWO, rows, *both_ends(1, 8 * MS, 40 * US))[1]
    assert (found["linked"], found["offset_ns"]) == (0, 8 * MS)
    assert 40 * US <= found["uncertainty_ns"] <= 42 * US
    assert found["basis"] == "estimated from clock probe"


def test_hosts_that_collectives_link_with_each_other_are_placed_as_one():
    hosts = {rank: f"host{rank}" for rank in range(4)}
    rows = exchanged(0, 5 * MS, ranks=(0, 1)) + exchanged(-7 * MS, -4 * MS, ranks=(2, 3))
    found = clocks_of(hosts, rows, *both_ends(2, -7 * MS, 30 * US))
    assert [row["linked"] for row in found.values()] == [0, 0, 0, 0]
    for rank, ahead in ((1, 5 * MS), (2, -7 * MS), (3, -4 * MS)):
        # Either of two ranks may always end late: only the 700 us that both are there bound their clocks.
        assert abs(found[rank]["offset_ns"] - ahead) <= found[rank]["uncertainty_ns"] <= 800 * US
    assert found[1]["basis"] == "estimated from collectives"
    assert found[2]["basis"] == found[3]["basis"] == "estimated from clock probe"


def test_without_a_trace_of_rank_0_the_others_are_compared_all_the_same():
    hosts: dict[int, str | None] = {1: "b", 2: "c"}
    rows = exchanged(8 * MS, -3 * MS, kind="broadcast", ranks=(1, 2))
    found = clocks_of(hosts, rows, *both_ends(1, 8 * MS, 30 * US), *both_ends(2, -3 * MS, 40 * US))
    assert found[2]["linked"] == 1
    assert abs(found[2]["offset_ns"] + 11 * MS) <= found[2]["uncertainty_ns"]
    assert 70 * US <= found[2]["uncertainty_ns"] <= 75 * US


def test_a_rank_without_a_probe_stays_as_it_was():
    hosts: dict[int, str | None] = {0: "a", 1: "b", 2: "c"}
    found = clocks_of(hosts, exchanged(0, 8 * MS, MS, kind="broadcast"), *both_ends(1, 8 * MS, 40 * US))
    assert [row["linked"] for row in found.values()] == [0, 0, 2]
    assert (
        found[2]["basis"] == "messages in one direction only: its clock is bounded on one side, and cannot be compared"
    )


def test_without_a_single_call_the_moments_themselves_are_the_window():
    found = compared_clocks(
        calls_table([]), matches_of(calls_table([]), TWO), TWO, probes_table(*both_ends(1, 8 * MS, 40 * US))
    )
    assert found["offset_ns"].tolist() == [0, 8 * MS]


# --- matching --------------------------------------------------------------------------------------------------------


def repeated(every_ns: int, ahead_ns: int, count: int = 10) -> pd.DataFrame:
    """Two ranks that call the same again and again, each of them `count` times; no id tells the calls apart."""
    return calls_table(
        {"rank": rank, "start_ns": S + k * every_ns + rank * ahead_ns, "dur_ns": 100 * US}
        for rank in range(2)
        for k in range(count)
    )


def all_certain(every_ns: int, says_ns: int, bound_ns: int = 50 * US) -> bool:
    calls = repeated(every_ns, 8 * MS)
    probes = probes_table(*both_ends(1, says_ns, bound_ns))
    return bool(matches_of(calls, TWO, Evidence(probes))["certain"].all())


def test_a_probe_tells_which_of_calls_that_repeat_belong_together():
    assert not matches_of(repeated(5 * MS, 8 * MS), TWO)["certain"].all()
    assert all_certain(5 * MS, 8 * MS)
    assert all_certain(5 * MS, 8 * MS, 3 * MS)


@pytest.mark.parametrize(("every_ns", "says_ns", "bound_ns"), [(5 * MS, 3 * MS, 50 * US), (5 * MS, 8 * MS, 6 * MS),
                                                              (300 * US, 8 * MS, 500 * US)])  # fmt: skip
def test_a_probe_that_says_otherwise_or_too_little_makes_nothing_certain(every_ns, says_ns, bound_ns):
    assert not all_certain(every_ns, says_ns, bound_ns)


# --- time between the probes and the window --------------------------------------------------------------------------


def test_two_moments_show_the_drift():
    rows = exchanged(0, 8 * MS, kind="broadcast")
    found = clocks_of(TWO, rows, *both_ends(1, 8 * MS, 10 * US, gained_ns=300 * US))[1]
    assert found["drift_ppm"] == pytest.approx(100, abs=0.1)
    at_start = found["offset_ns"] + found["drift_ppm"] / 1e6 * (S + 8 * MS - found["origin_ns"])
    assert at_start == pytest.approx(8 * MS + 100 * US, abs=1 * US)
    assert 10 * US <= found["uncertainty_ns"] <= 12 * US


def test_a_change_that_the_uncertainty_explains_is_no_drift():
    found = clocks_of(TWO, exchanged(0, 0, kind="broadcast"), *both_ends(1, 8 * MS, 50 * US, gained_ns=60 * US))[1]
    assert found["drift_ppm"] == 0
    assert 8 * MS <= found["offset_ns"] <= 8 * MS + 60 * US


def test_a_clock_that_was_set_in_between_may_be_anywhere_in_between():
    rows = exchanged(0, 0, kind="broadcast")
    found = clocks_of(TWO, rows, *both_ends(1, 0, 10 * US, gained_ns=-40 * MS))[1]
    assert found["offset_ns"] == 0
    assert found["uncertainty_ns"] >= 40 * MS


@pytest.mark.parametrize("at", ["start", "end"])
def test_one_moment_is_worth_less_the_farther_it_is(at):
    unix = {"start": -9 * S, "end": 12 * S}[at]
    found = clocks_of(TWO, exchanged(0, 8 * MS, kind="broadcast"), (1, at, unix, 8 * MS, 20 * US))[1]
    assert found["offset_ns"] == 8 * MS
    assert found["uncertainty_ns"] == pytest.approx(20 * US + 11 * S * LARGEST_DRIFT, rel=0.02)


def test_clocks_that_differ_by_an_hour_lose_no_precision():
    hour = 3600 * S
    rows = exchanged(0, hour, kind="broadcast")
    found = clocks_of(TWO, rows, *both_ends(1, hour, 10 * US, gained_ns=300 * US))[1]
    table = pd.DataFrame([found | {"rank": 1}])
    time = pd.Series([S + hour + 150 * US])
    # A second after the probe at the start, with a drift of 100 ppm.
    assert aligned(time, pd.Series([1]), table).iloc[0] == pytest.approx(S + 50 * US, abs=2 * US)


# --- random runs of known truth --------------------------------------------------------------------------------------


def true_probes(run: Any, ranks: int, seed: int, bound_ns: int, start_ns: int, end_ns: int) -> list[tuple[Any, ...]]:
    """What honest probes of these clocks would say."""
    rng = np.random.default_rng(seed)
    rows = []
    for rank in range(1, ranks):
        for at, true_ns in (("start", start_ns), ("end", end_ns)):
            shown = round(true_ns * (1 + run.drift[rank])) + run.offset_ns[rank]
            of_first = round(true_ns * (1 + run.drift[0])) + run.offset_ns[0]
            bound = int(rng.integers(1, bound_ns))
            rows.append((rank, at, shown, shown - of_first + int(rng.integers(-bound, bound + 1)), bound))
    return rows


@pytest.mark.slow
@settings(max_examples=10, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.sampled_from([2, 4, 8]),
    bound_us=st.sampled_from([20, 200, 5000]),
    drift=st.sampled_from([0.0, 20.0]),
    blind=st.booleans(),
)
def test_true_clocks_are_within_the_uncertainty(seed, ranks, bound_us, drift, blind):
    shape = Shape(ranks=ranks, steps=25, ids="seq", drift_ppm=drift, shifted_calls=4, missing=0.01)
    run = random_run(seed, shape)
    calls = run.calls.assign(collective="broadcast") if blind else run.calls
    hosts: dict[int, str | None] = dict.fromkeys(range(ranks))
    matched = matches_of(run.calls, hosts)
    probes = true_probes(run, ranks, seed, bound_us * US, 500 * MS, 3 * S)
    found = compared_clocks(calls, matched, hosts, probes_table(*probes))
    assert not found["basis"].str.startswith(CONTRADICTION).any()
    assert set(found["linked"]) == {0}
    for at in (calls["start_ns"].min(), calls["start_ns"].max()):
        for row in records(found)[1:]:
            rank = row["rank"]
            true_ns = (at - run.offset_ns[rank]) / (1 + run.drift[rank])
            true = at - (true_ns * (1 + run.drift[0]) + run.offset_ns[0])
            given_ns = row["offset_ns"] + row["drift_ppm"] / 1e6 * (at - row["origin_ns"])
            # The clocks of the others may differ from this one by 40 ms, in which they drift by a microsecond.
            assert abs(given_ns - true) <= row["uncertainty_ns"] + 2 * US


# --- from files ------------------------------------------------------------------------------------------------------


def side(folder: Path, rank: int, **more: Any) -> None:
    content = {"rank": rank, "world_size": 2, "host": f"host{rank}"} | more
    (folder / f"node_{rank}.meta.json").write_text(json.dumps(content))


def entry(**more: Any) -> dict[str, Any]:
    plain = {"at": "start", "unix_ns": BASE_NS, "against_rank": 0, "offset_ns": 8 * MS, "uncertainty_ns": 40 * US,
             "round_trips": 6, "basis": "exchange through the store"}  # fmt: skip
    return plain | more


def two_hosts(folder: Path, ahead_ns: int = 8 * MS, kind: str = "broadcast") -> None:
    truth = [Collective((k * MS, k * MS + (k % 3) * 100 * US), 500 * US, kind, args={"Rank": 0}) for k in range(12)]
    for trace in traces_of(2, truth, offsets=[0, ahead_ns]):
        trace.write(folder)


@pytest.mark.slow
def test_the_side_files_are_read_and_link_what_nothing_else_does(tmp_path):
    two_hosts(tmp_path)
    side(tmp_path, 0, clock_probe=[entry(offset_ns=0, uncertainty_ns=0)])
    side(tmp_path, 1, clock_probe=[entry(), entry(at="end", unix_ns=BASE_NS + S)])
    found = analyse(tmp_path)
    assert found.run.clock_probes["rank"].tolist() == [0, 1, 1]
    assert found.clocks["offset_ns"].tolist() == [0, 8 * MS]
    assert found.collectives["arrival_skew_ns"].tolist() == [k % 3 * 100 * US for k in range(12)]
    summary = {row["item"]: row["value"] for row in records(facts(found))}
    assert "estimated from clock probe" in summary["clocks"]
    assert "largest offset 8.000 ms, uncertain by at most 40.0 us; clock probe: +-40.0 us" in summary["clocks"]


@pytest.mark.slow
def test_a_contradiction_is_a_warning(tmp_path):
    two_hosts(tmp_path, kind="all_reduce")
    side(tmp_path, 0)
    side(tmp_path, 1, clock_probe=[entry(offset_ns=3 * MS)])
    warnings = [row["value"] for row in records(facts(analyse(tmp_path))) if row["item"] == "warning"]
    (said,) = [text for text in warnings if CONTRADICTION in text]
    assert said.startswith(f"rank 1: {CONTRADICTION} by 4.")
    assert said.endswith("one of them is wrong, and the uncertainty covers both")


@pytest.mark.parametrize(
    "content",
    [
        "soon", 7, {"at": "start"}, [None], [[1, 2]], [entry(offset_ns="8")], [entry(offset_ns=1.5)],
        [entry(offset_ns=True)], [entry(uncertainty_ns=-1)], [entry(unix_ns=None)], [entry(against_rank=3)],
        [entry(at="noon")], [entry(at=["start"])], [entry(offset_ns=10**30)], [{}],
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_left_out_and_said(tmp_path, content):
    two_hosts(tmp_path)
    side(tmp_path, 0)
    side(tmp_path, 1, clock_probe=content)
    run = load_run([tmp_path])
    assert len(run.clock_probes) == 0
    assert "rank 1: the clock probe in its side file makes no sense, and is left out" in run.notes
    assert analyse(tmp_path).clocks["linked"].tolist() == [0, 1]


@pytest.mark.parametrize("more", [{}, {"clock_probe": None}, {"clock_probe": []}], ids=str)
def test_no_probe_is_nothing_to_talk_about(tmp_path, more):
    two_hosts(tmp_path)
    side(tmp_path, 0, **more)
    side(tmp_path, 1, **more)
    run = load_run([tmp_path])
    assert (len(run.clock_probes), run.notes) == (0, ())


def test_what_makes_sense_beside_what_does_not_is_kept(tmp_path):
    two_hosts(tmp_path)
    side(tmp_path, 1, clock_probe=[entry(), "x"])
    run = load_run([tmp_path])
    assert run.clock_probes["offset_ns"].tolist() == [8 * MS]
    assert len(run.notes) == 1


# --- which machine it was --------------------------------------------------------------------------------------------


def hosts_of(folder: Path, *machines: tuple[str, str | None]) -> list[str | None]:
    for rank, (host, boot) in enumerate(machines):
        Trace(rank, len(machines)).nccl("all_reduce", 0, 5 * US).write(folder)
        side(folder, rank, host=host, machine={"boot_id": boot})
    return list(load_run([folder]).hosts.values())


def test_containers_of_one_machine_are_one_host(tmp_path):
    assert hosts_of(tmp_path, ("pod-0", "0f"), ("pod-1", "0f"), ("pod-2", "e1")) == ["pod-0", "pod-0", "pod-2"]


def test_two_machines_of_one_name_are_two_hosts(tmp_path):
    assert hosts_of(tmp_path, ("node", "0123456789"), ("node", "abcdefghij")) == ["node", "node (abcdefgh)"]


def test_without_boot_ids_the_name_tells(tmp_path):
    assert hosts_of(tmp_path, ("a", None), ("a", None), ("b", None)) == ["a", "a", "b"]
