"""Wait and transfer: of known truth, and honest NA where they cannot be known."""

import random

import pandas as pd
import pytest
from builders import MS, US, Collective, Trace, analysed, calls_table, traces_of
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.core.schema import Row, records
from commtrace.analysis.metrics.matching.ladder import matches_of
from commtrace.analysis.tables.clocks import CLOCKS, compared_clocks
from commtrace.analysis.tables.collectives import collectives
from commtrace.analysis.tables.participation import split_calls


def call(rank: int, start: int, dur: int, **more) -> dict:
    return {"rank": rank, "start_ns": start, "dur_ns": dur, **more}


def known_clocks(ranks: int, *, linked: bool = True) -> pd.DataFrame:
    """Clocks that are right; or of which nobody knows how they compare."""
    plain = {"offset_ns": 0, "drift_ppm": 0.0, "origin_ns": 0, "basis": "said so"}
    plain |= {"uncertainty_ns": 2_000, "bent_uncertainty_ns": 2_000}
    return CLOCKS.frame(plain | {"rank": rank, "linked": 0 if linked else rank} for rank in range(ranks))


def tables(rows: list[dict], *, linked: bool = True, world_size: int | None = 2) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Participation and collectives of the calls, all on one host."""
    calls = calls_table(rows)
    ranks = int(calls["rank"].max()) + 1
    matched, right = matches_of(calls, dict.fromkeys(range(ranks), "a")), known_clocks(ranks, linked=linked)
    split = split_calls(calls, matched, right, world_size)
    return split, collectives(calls, matched, split, right, world_size)


def split(rows: list[dict], *, linked: bool = True, world_size: int | None = 2) -> list[tuple[int | None, int | None]]:
    """(wait, transfer) of the calls, by call."""
    found, _ = tables(rows, linked=linked, world_size=world_size)
    return [(row["wait_ns"], row["transfer_ns"]) for row in records(found.sort_values("call_id"))]


def collective_of(rows: list[dict], *, linked: bool = True, world_size: int | None = 2) -> Row:
    (row,) = records(tables(rows, linked=linked, world_size=world_size)[1])
    return row


CPU = {"device": "cpu"}

# --- collectives in which everybody waits for everybody --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_the_wait_is_the_time_until_the_last_rank_arrives(kind):
    rows = [call(0, 100, 50, collective=kind), call(1, 130, 21, collective=kind)]
    assert split(rows) == [(30, 20), (0, 21)]


def test_the_wait_is_never_longer_than_the_call():
    # Rank 0 ends before rank 1 starts: the clocks are off by less than anybody could tell.
    assert split([call(0, 100, 20), call(1, 130, 10)]) == [(20, 0), (0, 10)]


def test_a_collective_as_a_whole():
    row = collective_of([call(0, 100, 50, seq=1), call(1, 130, 21, seq=1)])
    assert {key: row[key] for key in (
        "first_start_ns", "last_start_ns", "last_end_ns", "first_rank", "last_rank", "arrival_skew_ns", "end_skew_ns",
        "min_dur_ns", "last_arrival_to_last_end_ns", "complete", "ranks", "note", "last_by_ns", "transfer_low_ns",
        "transfer_high_ns", "certain",
    )} == {
        "first_start_ns": 100, "last_start_ns": 130, "last_end_ns": 151, "first_rank": 0, "last_rank": 1,
        "arrival_skew_ns": 30, "end_skew_ns": 1, "min_dur_ns": 21, "last_arrival_to_last_end_ns": 21, "complete": True,
        "ranks": "0 1", "note": None, "last_by_ns": 30, "transfer_low_ns": 21, "transfer_high_ns": 21, "certain": True,
    }  # fmt: skip
    assert row["min_dur_ns"] <= row["transfer_ns"] <= row["last_arrival_to_last_end_ns"]


def test_how_late_each_rank_was():
    found, _ = tables([call(0, 100, 50), call(1, 130, 21)])
    assert found["late_ns"].tolist() == [0, 30]
    assert found["arrived_ns"].tolist() == [100, 130]


@pytest.mark.slow
def test_a_bound_on_the_wait_that_needs_no_clock():
    rows = [call(0, 100, 50), call(1, 130, 21)]
    assert tables(rows)[0]["wait_clock_free_ns"].tolist() == [29, 0]
    assert tables(rows, linked=False)[0]["wait_clock_free_ns"].tolist() == [29, 0]
    assert tables([call(0, 100, 50)])[0]["wait_clock_free_ns"].isna().all()


def test_how_much_later_than_the_one_before_the_last_rank_was():
    rows = [call(r, start, 1100 - start, pg_ranks="0 1 2") for r, start in enumerate((100, 1000, 700))]
    row = collective_of(rows, world_size=3)
    assert (row["last_rank"], row["last_by_ns"], row["arrival_skew_ns"]) == (1, 300, 900)


# --- rooted collectives and point to point ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_receivers_wait_for_the_root_and_the_root_for_nobody(kind):
    rows = [call(r, start, dur, collective=kind, root=1, pg_ranks="0 1 2")
            for r, (start, dur) in enumerate([(0, 100), (60, 30), (80, 25)])]  # fmt: skip
    assert split(rows) == [(60, 40), (0, 30), (0, 25)]


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_the_root_waits_for_everybody_and_nobody_for_the_root(kind):
    rows = [call(r, start, dur, collective=kind, root=1, pg_ranks="0 1 2")
            for r, (start, dur) in enumerate([(0, 10), (20, 100), (80, 30)])]  # fmt: skip
    assert split(rows) == [(0, 10), (60, 40), (0, 30)]


@pytest.mark.parametrize(("kind", "where"), [("gather", {}), ("scatter", {}), ("broadcast", CPU), ("reduce", CPU)])
def test_without_a_known_root_nothing_is_split(kind, where):
    rows = [call(0, 0, 50, collective=kind, **where), call(1, 30, 20, collective=kind, **where)]
    assert split(rows) == [(None, None)] * 2


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_where_gpus_pass_data_on_whoever_waited_tells_whatever_the_root(kind):
    assert split([call(0, 0, 50, collective=kind), call(1, 30, 20, collective=kind)]) == [(30, 20), (0, 20)]
    # Who is done before the other one comes did not wait for it.
    assert split([call(0, 0, 20, collective=kind), call(1, 30, 20, collective=kind)]) == [(0, 20), (0, 20)]


@pytest.mark.parametrize("seed", range(20))
def test_a_broadcast_of_gloo_waits_along_its_tree(seed):
    rng = random.Random(seed)
    size = rng.randint(2, 11)
    group = rng.sample(range(size), size) if rng.random() < 0.3 else list(range(size))
    root = rng.randrange(size)
    by_place = [group[(root + place) % size] for place in range(size)]
    came = {rank: rng.randrange(1000) for rank in group}
    parent = {place: int("0" + f"{place:b}"[1:], 2) for place in range(1, size)}
    could, done, had = {}, {}, {}
    for place, rank in enumerate(by_place):  # what each would take if data took no time, and what it took
        could[place] = max(came[rank], could[parent[place]] if place else 0)
        had[place] = max(came[rank], had[parent[place]] if place else 0) + (rng.randint(1, 90) if place else 0)
    for place, rank in enumerate(by_place):
        below = [came[by_place[child]] for child, of in parent.items() if of == place]
        done[place] = max([could[place], *below]) - came[rank]
        had[place] = max([had[place], *below]) + 1
    rows = [call(rank, came[rank], had[place] - came[rank], collective="broadcast", root=group[root],
                 pg_ranks=" ".join(map(str, group)), device="cpu") for place, rank in enumerate(by_place)]  # fmt: skip
    assert [wait for wait, _ in split(rows, world_size=size)] == [done[place] for place in range(size)]


def test_a_root_on_a_cpu_waits_though_its_own_part_is_short():
    rows = [call(0, 0, 52, collective="scatter", root=0, **CPU), call(1, 50, 12, collective="scatter", root=0, **CPU)]
    assert split(rows) == [(50, 2), (0, 12)]


def test_a_receive_waits_for_its_sender():
    rows = [call(0, 40, 20, collective="send", root=1), call(1, 0, 60, collective="recv", root=0)]
    assert split(rows) == [(0, 20), (40, 20)]


def test_a_send_that_is_kept_until_somebody_asks_for_it_waits_for_its_receiver():
    rows = [call(0, 0, 60, collective="send", root=1), call(1, 40, 20, collective="recv", root=0)]
    assert split(rows) == [(40, 20), (0, 20)]


def test_a_send_that_is_over_before_its_receiver_comes_waits_for_nobody():
    rows = [call(0, 0, 30, collective="send", root=1), call(1, 40, 20, collective="recv", root=0)]
    assert split(rows) == [(0, 30), (0, 20)]


def test_on_a_cpu_a_send_waits_for_its_receiver_unless_it_was_over_before():
    rows = [call(0, 0, 60, collective="send", root=1, **CPU), call(1, 40, 20, collective="recv", root=0, **CPU)]
    assert split(rows) == [(40, 20), (0, 20)]
    rows = [call(0, 0, 30, collective="send", root=1, **CPU), call(1, 40, 20, collective="recv", root=0, **CPU)]
    assert split(rows) == [(0, 30), (0, 20)]


def test_a_pair_is_one_collective_of_two():
    rows = [call(0, 40, 20, collective="send", root=1, pg_ranks="0 1 2 3"),
            call(1, 0, 60, collective="recv", root=0, pg_ranks="0 1 2 3")]  # fmt: skip
    row = collective_of(rows, world_size=4)
    assert (row["collective"], row["group_size"], row["complete"], row["ranks"]) == ("send_recv", 2, True, "0 1")
    assert row["busbw_gb_per_s"] == row["algbw_gb_per_s"] == 4096 / row["transfer_ns"]


def test_of_a_pair_on_cpus_the_receiver_tells_when_the_data_had_moved():
    # The sender comes at 40 and looks after its send at 500 only; the data was there at 60.
    rows = [call(0, 40, 460, collective="send", root=1, device="cpu", name="gloo:send"),
            call(1, 0, 60, collective="recv", root=0, device="cpu", name="gloo:recv")]  # fmt: skip
    assert split(rows) == [(0, 20), (40, 20)]
    row = collective_of(rows)
    assert (row["transfer_low_ns"], row["transfer_ns"], row["transfer_high_ns"]) == (20, 20, 20)
    assert row["busbw_gb_per_s"] == 4096 / 20


def test_a_sender_on_a_cpu_that_is_done_first_bounds_the_transfer_from_below():
    rows = [call(0, 0, 12, collective="send", root=1, device="cpu", name="gloo:send"),
            call(1, 5, 60, collective="recv", root=0, device="cpu", name="gloo:recv")]  # fmt: skip
    row = collective_of(rows)
    assert (row["transfer_low_ns"], row["transfer_ns"], row["transfer_high_ns"]) == (12, 60, 60)


def test_without_clocks_a_pair_on_cpus_has_no_transfer():
    rows = [call(0, 40, 460, collective="send", root=1, device="cpu", name="gloo:send"),
            call(1, 0, 60, collective="recv", root=0, device="cpu", name="gloo:recv")]  # fmt: skip
    row = collective_of(rows, linked=False)
    assert (row["transfer_ns"], row["transfer_high_ns"], row["busbw_gb_per_s"]) == (None, None, None)


def test_an_unknown_collective_is_not_split():
    assert split([call(0, 0, 50, collective=None), call(1, 30, 20, collective=None)]) == [(None, None)] * 2


# --- what cannot be known --------------------------------------------------------------------------------------------


def test_without_comparable_clocks_nothing_is_split():
    rows = [call(0, 0, 50), call(1, 30, 20)]
    assert split(rows, linked=False) == [(None, None)] * 2
    row = collective_of(rows, linked=False)
    for key in ("last_rank", "first_rank", "arrival_skew_ns", "end_skew_ns", "transfer_ns", "last_start_ns",
                "last_arrival_to_last_end_ns", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_low_gb_per_s"):  # fmt: skip
        assert row[key] is None, key


def test_the_shortest_duration_needs_no_clock():
    row = collective_of([call(0, 0, 50), call(1, 30, 20)], linked=False)
    assert (row["min_dur_ns"], row["complete"]) == (20, True)
    assert row["busbw_high_gb_per_s"] == row["algbw_high_gb_per_s"] == 4096 / 20


def test_a_partial_collective_is_not_split_and_says_who_is_missing():
    rows = [call(0, 0, 50, pg_ranks="0 1 2"), call(1, 30, 20, pg_ranks="0 1 2")]
    assert split(rows) == [(None, None)] * 2
    row = collective_of(rows, world_size=3)
    assert (row["complete"], row["note"], row["algbw_gb_per_s"], row["transfer_ns"]) == (
        False,
        "not seen on rank 2",
        None,
        None,
    )


def test_without_the_group_a_rank_of_the_world_that_is_missing_makes_it_partial(tmp_path):
    # Nothing names the group; rank 2 of 3 has no trace, so who arrived last is not known.
    for rank, (start, dur) in enumerate([(0, 50 * US), (30 * US, 20 * US)]):
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"
        Trace(rank, 3).kernel(name, start, dur).write(tmp_path)
    found = analysed(tmp_path)
    assert found.collectives["complete"].tolist() == [False]
    assert found.participation["wait_ns"].isna().all()
    assert found.breakdown["exposed_wait_ns"].isna().all()
    assert found.ranks["split_calls"].tolist() == [0, 0]


def test_an_unmatched_call_is_not_split():
    rows = [call(0, 0, 500 * US), call(0, 2 * MS, 500 * US), call(1, 2 * MS + 30 * US, 470 * US)]
    assert split(rows) == [(None, None), (30 * US, 470 * US), (0, 470 * US)]


def test_a_group_of_one_waits_for_nobody():
    rows = [call(0, 0, 50, pg_ranks="0")]
    row = collective_of(rows)
    assert (row["complete"], row["arrival_skew_ns"], row["last_rank"]) == (True, None, None)


# --- clocks ----------------------------------------------------------------------------------------------------------


def clocks_of(hosts: list[str | None], rows: list[dict]) -> list[Row]:
    calls, known = calls_table(rows), dict(enumerate(hosts))
    return records(compared_clocks(calls, matches_of(calls, known), known))


def exchanged(count: int, *ahead: int, kind: str = "all_reduce", every: int = 3 * MS) -> list[dict]:
    """Collectives at irregular times; the ranks arrive in turn, and rank r's clock is so far ahead."""
    members = " ".join(map(str, range(len(ahead))))
    chance, rows = random.Random(7), []
    for k in range(count):
        start = k * every + chance.randrange(1_300) * US
        end = start + 900 * US
        for rank, error in enumerate(ahead):
            late = (rank + k) % len(ahead) * 200 * US
            more = {"collective": kind, "pg_ranks": members, "size_bytes": 4096 * (1 + k % 3), "root": 0}
            rows.append(call(rank, start + late + error, end - start - late, **more))
    return rows


def test_ranks_of_one_host_share_a_clock():
    for row in clocks_of(["a", "a"], exchanged(20, 0, 0)):
        assert (row["offset_ns"], row["drift_ppm"], row["linked"]) == (0, 0, 0)
        assert row["basis"] == "all linked ranks ran on a"


def test_processes_of_one_host_have_one_clock_however_late_one_of_them_ends():
    rows = [row | CPU | {"dur_ns": row["dur_ns"] + row["rank"] * 100 * US} for row in exchanged(20, 0, 0)]
    for row in clocks_of(["a", "a"], rows):
        assert (row["offset_ns"], row["uncertainty_ns"]) == (0, 2 * US)


@pytest.mark.parametrize("hosts", [["a", "b", "c"], [None, None, None], ["a", None, "b"]], ids=str)
@pytest.mark.parametrize("ahead", [(0, 8 * MS, -20 * MS), (0, -3 * MS, 700 * MS), (5 * MS, 0, 2 * MS)], ids=str)
def test_offsets_of_other_clocks_are_found_from_the_collectives(hosts, ahead):
    for row, error in zip(clocks_of(hosts, exchanged(20, *ahead)), ahead, strict=True):
        assert row["linked"] == 0
        # A rank alone on its host may always end late: only the 500 us in which all are there bound its clock.
        assert abs(row["offset_ns"] - (error - ahead[0])) <= row["uncertainty_ns"] <= 520 * US


def test_the_first_linked_rank_is_the_reference():
    reference, other = clocks_of([None, None], exchanged(20, 0, 8 * MS))
    assert (reference["rank"], reference["linked"], reference["offset_ns"]) == (0, 0, 0)
    assert other["basis"] == "estimated from collectives"


def test_clocks_that_agree_are_left_as_they_are():
    for row in clocks_of([None, None], exchanged(20, 0, 0)):
        assert row["offset_ns"] == 0
        assert row["basis"] == "raw clocks agree within the uncertainty"


def test_ranks_of_one_host_have_one_offset():
    found = clocks_of(["a", "a", "b", "b"], exchanged(30, 0, 0, 9 * MS, 9 * MS))
    assert found[0]["offset_ns"] == found[1]["offset_ns"] == 0
    assert found[2]["offset_ns"] == found[3]["offset_ns"]
    assert abs(found[2]["offset_ns"] - 9 * MS) <= found[2]["uncertainty_ns"] <= 100 * US


def test_a_clock_that_drifts_is_followed():
    rows = exchanged(4000, 0, 0)
    for row in rows:
        if row["rank"] == 1:
            row["start_ns"] = round(row["start_ns"] * (1 + 15e-6)) + 6 * MS
    found = clocks_of([None, None], rows)[1]
    assert found["drift_ppm"] == pytest.approx(15, abs=0.5)
    assert abs(found["offset_ns"] - 6 * MS - 15e-6 * found["origin_ns"]) <= found["uncertainty_ns"]


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_collectives_that_some_may_leave_early_link_no_clocks(kind):
    assert [row["linked"] for row in clocks_of([None, None], exchanged(20, 0, 0, kind=kind))] == [0, 1]


def test_without_a_matched_collective_nothing_is_linked():
    (row,) = clocks_of([None], [call(0, 0, 50)])
    assert (row["linked"], row["offset_ns"], row["basis"]) == (0, 0, "no collective links it to another rank")


def test_a_rank_without_calls_has_a_clock_too():
    found = clocks_of(["a", None, None], exchanged(20, 0, 0))
    assert [row["linked"] for row in found] == [0, 0, 2]


# --- known truth, from traces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", [(0, 0, 0, 0), (0, 37 * MS, 5 * MS, 1 * MS), (90 * MS, 0, 0, 0)], ids=str)
def test_a_transfer_of_10_ms_is_one_whatever_the_waiting(tmp_path, arrivals):
    traces = traces_of(4, [Collective(arrivals, 10 * MS, elems=250_000_000)])
    found = analysed(tmp_path, *traces)
    (row,) = records(found.collectives)
    assert (row["size_bytes"], row["transfer_ns"]) == (1_000_000_000, 10 * MS)
    assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"]) == (100, 150)
    assert (row["busbw_low_gb_per_s"], row["busbw_high_gb_per_s"]) == (150, 150)
    assert found.participation["wait_ns"].tolist() == [max(arrivals) - a for a in arrivals]


def test_fp8_counts_a_byte_each(tmp_path):
    (row,) = records(
        analysed(
            tmp_path, *traces_of(2, [Collective((0, 0), 1 * MS, elems=1_000_000, dtype="Float8_e4m3fn")])
        ).collectives
    )
    assert (row["dtype"], row["algbw_gb_per_s"]) == ("float8_e4m3fn", 1)


def test_without_skew_nobody_is_last(tmp_path):
    found = analysed(tmp_path, *traces_of(3, [Collective((k * MS,) * 3, 500 * US) for k in range(5)]))
    assert found.collectives["arrival_skew_ns"].tolist() == [0] * 5
    assert found.ranks["times_last"].tolist() == [0, 0, 0]
    assert found.ranks["caused_wait_ns"].tolist() == [0, 0, 0]
    assert found.ranks["wait_ns"].tolist() == [0, 0, 0]


def test_without_skew_no_rank_is_named_as_the_last(tmp_path):
    (row,) = records(analysed(tmp_path, *traces_of(3, [Collective((0, 0, 0), 500 * US)])).collectives)
    assert row["last_rank"] is None
    assert row["first_rank"] is None


@pytest.mark.slow
def test_who_waits_and_for_whom(tmp_path):
    truth = [Collective((0, 3 * MS, 1 * MS), 1 * MS), Collective((20 * MS, 27 * MS, 20 * MS), 1 * MS),
             Collective((40 * MS, 40 * MS, 42 * MS), 1 * MS)]  # fmt: skip
    table = analysed(tmp_path, *traces_of(3, truth)).ranks
    assert table["times_last"].tolist() == [0, 2, 1]
    assert table["wait_ns"].tolist() == [12 * MS, 2 * MS, 9 * MS]
    assert table["caused_wait_ns"].tolist() == [0, 19 * MS, 4 * MS]
    assert table["transfer_ns"].tolist() == [3 * MS] * 3
    assert records(table)[1]["late_max_ns"] == 7 * MS


# --- whatever the input ----------------------------------------------------------------------------------------------

KINDS = ["all_reduce", "all_gather", "all_to_all", "broadcast", "reduce", "scatter", "barrier", None]


@pytest.mark.slow
@settings(max_examples=8)
@given(
    kind=st.sampled_from(KINDS),
    times=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60)), min_size=2, max_size=4),
    root=st.one_of(st.none(), st.integers(0, 3)),
    linked=st.booleans(),
)
def test_waits_lie_within_the_call_and_transfers_are_the_rest(kind, times, root, linked):
    ranks = " ".join(map(str, range(len(times))))
    rows = [call(r, start, dur, collective=kind, root=root, pg_ranks=ranks) for r, (start, dur) in enumerate(times)]
    found = split(rows, linked=linked, world_size=len(times))
    for (wait, transfer), (_, dur) in zip(found, times, strict=True):
        assert (wait is None) == (transfer is None)
        if wait is not None:
            assert linked
            assert 0 <= wait <= dur
            assert wait + transfer == dur


@pytest.mark.slow
@settings(max_examples=8)
@given(
    kind=st.sampled_from(["all_reduce", "all_to_all", "all_gather"]),
    arrivals=st.lists(st.integers(0, 1000), min_size=2, max_size=5),
    transfer=st.integers(1, 500),
)
def test_bounds_enclose_the_transfer(kind, arrivals, transfer):
    end = max(arrivals) + transfer
    ranks = " ".join(map(str, range(len(arrivals))))
    rows = [call(r, a, end - a, collective=kind, pg_ranks=ranks) for r, a in enumerate(arrivals)]
    row = collective_of(rows, world_size=len(arrivals))
    assert row["min_dur_ns"] == row["transfer_ns"] == row["last_arrival_to_last_end_ns"] == transfer
    assert row["busbw_low_gb_per_s"] <= row["busbw_gb_per_s"] <= row["busbw_high_gb_per_s"]


@pytest.mark.slow
def test_in_a_group_of_one_rank_nobody_waits(tmp_path):
    alone = [Collective({rank: k * 100 * MS}, 5 * MS, group=f"of {rank}") for k in range(3) for rank in (0, 1)]
    both = [Collective((k * 100 * MS + 50 * MS, k * 100 * MS + 51 * MS), 5 * MS) for k in range(3)]
    found = analysed(tmp_path, *traces_of(2, alone + both))
    assert set(found.participation["wait_ns"]) == {0, 1 * MS}
    assert set(found.participation["transfer_ns"]) == {5 * MS}
    assert found.breakdown["exposed_unsplit_ns"].tolist() == [0, 0]
    assert "could not be split" not in " ".join(found.verdicts["because"])
    assert found.ranks["times_last"].tolist() == [0, 3]


def test_how_late_the_last_rank_was_is_exact_beside_calls_of_one_rank_alone(tmp_path):
    # Times since the epoch, in ns, do not fit into a float, which a missing value makes of a column.
    truth = [Collective((0, 1_000), 1 * MS), Collective({0: 5 * MS}, 1 * MS, group="alone")]
    found = analysed(tmp_path, *traces_of(2, truth, host="node")).collectives
    assert found["last_by_ns"].dropna().tolist() == [1_000]
