"""The same collective on every rank, aligned where windows differ: nothing invented, nothing doubtful certain."""

import pandas as pd
import pytest
from builders import MS, Collective, Trace, analysed, calls_table, traces_of
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.matching.ladder import matches_of


def hosts_of(calls: pd.DataFrame, host: str | None = None) -> dict[int, str | None]:
    """All ranks on that host; by default nothing is known about hosts."""
    return dict.fromkeys(sorted(set(calls["rank"])), host)


def groups_of(calls: pd.DataFrame, host: str | None = None) -> list[tuple[str, tuple[int, ...]]]:
    """(matched_by, call ids) of every collective, in order."""
    table = matches_of(calls, hosts_of(calls, host))
    assert table["call_id"].tolist() == calls["call_id"].tolist()
    found = table.groupby("collective_id")
    assert list(found.groups) == list(range(len(found)))
    return [(str(own["matched_by"].iloc[0]), tuple(own["call_id"])) for _, own in found]


def notes_of(calls: pd.DataFrame, *host: str) -> list[str | None]:
    return [row["note"] for row in records(matches_of(calls, hosts_of(calls, *host)))]


def call(rank: int, start: int, **more) -> dict:
    return {"rank": rank, "start_ns": start, "dur_ns": 10, **more}


ALONE = "no other rank shows it at that time"


# --- identifiers -----------------------------------------------------------------------------------------------------


def test_by_the_id_of_all_ranks():
    table = calls_table([
        call(0, 0, comms_id="77", seq=1), call(0, 100, comms_id="88", seq=2),
        call(1, 100, comms_id="88", seq=2), call(1, 5, comms_id="77", seq=1),
    ])  # fmt: skip
    assert groups_of(table) == [("comms_id", (0, 3)), ("comms_id", (1, 2))]


def test_by_sequence_number():
    table = calls_table([call(0, 0, seq=4), call(0, 50, seq=5), call(1, 20, seq=5), call(1, 70, seq=6)])
    assert groups_of(table) == [("none", (0,)), ("seq", (1, 2)), ("none", (3,))]
    assert notes_of(table) == [ALONE, None, None, ALONE]


def test_one_rank_with_one_collective_more_shifts_nothing():
    table = calls_table(
        [call(0, 100 * k, seq=k) for k in range(5)] + [call(1, 100 * k + 3, seq=k) for k in range(1, 5)]
    )
    assert groups_of(table) == [("none", (0,))] + [("seq", (k, k + 4)) for k in range(1, 5)]


@pytest.mark.parametrize("key", ["seq", "comms_id"])
@pytest.mark.parametrize("differs", [{"collective": "broadcast"}, {"size_bytes": 8}, {"dtype": "int64"}], ids=str)
def test_one_identifier_but_other_kinds_or_sizes_is_no_match(key, differs):
    table = calls_table([call(0, 0, **{key: 3}), call(1, 0, **{key: 3}, **differs)])
    assert groups_of(table) == [("none", (0,)), ("none", (1,))]
    assert notes_of(table) == [f"its {key} has another kind, dtype or size on another rank"] * 2


def test_what_one_rank_does_not_know_contradicts_nothing():
    table = calls_table([call(0, 0, seq=3), call(1, 0, seq=3, dtype=None, size_bytes=None, collective=None)])
    assert groups_of(table) == [("seq", (0, 1))]


def test_uneven_parts_of_an_all_to_all_belong_together():
    parts = [call(0, 0, seq=3, size_bytes=100), call(1, 0, seq=3, size_bytes=900)]
    assert groups_of(calls_table(p | {"collective": "all_to_all"} for p in parts)) == [("seq", (0, 1))]


def test_an_identifier_that_one_rank_shows_twice_is_no_match():
    table = calls_table([call(0, 0, seq=3), call(0, 50, seq=3), call(1, 0, seq=3)])
    assert [by for by, _ in groups_of(table)] == ["none"] * 3
    assert all("more often on one rank than on another" in note for note in notes_of(table))


# --- order -----------------------------------------------------------------------------------------------------------


def test_by_order_where_all_ranks_show_the_same_sequence():
    table = calls_table([call(0, 0), call(0, 50, size_bytes=8), call(1, 7), call(1, 90, size_bytes=8)])
    assert groups_of(table) == [("order", (0, 2)), ("order", (1, 3))]


def windows(*ranks: tuple[range, int], every: int = 2 * MS) -> pd.DataFrame:
    """Per rank the k-th collectives that its trace shows, and how far its clock is ahead; all arrive within 100 us."""
    rows = [
        call(
            rank, k * every + k * k % 7 * 90_000 + rank * 30_000 + ahead, dur_ns=400_000 - rank * 30_000, **KINDS[k % 3]
        )
        for rank, (shown, ahead) in enumerate(ranks)
        for k in shown
    ]
    return calls_table(row | {"pg_ranks": " ".join(map(str, range(len(ranks))))} for row in rows)


KINDS = ({"size_bytes": 4096}, {"size_bytes": 8192}, {"collective": "all_gather", "size_bytes": 4096})


def true_sets(*ranks: tuple[range, int]) -> list[tuple[int, ...]]:
    """Call ids of every collective of `windows`, which numbers calls rank by rank."""
    numbered = iter(range(10_000))
    ids = [{k: next(numbered) for k in shown} for shown, _ in ranks]
    every = sorted({k for shown, _ in ranks for k in shown})
    return [tuple(own[k] for own in ids if k in own) for k in every]


@pytest.mark.parametrize("host", ["a", None], ids=["one host", "hosts not known"])
@pytest.mark.parametrize(
    "shown",
    [
        (range(12), range(11)), (range(12), range(1, 12)), (range(10), range(2, 12)), (range(2, 12), range(10)),
        (range(12), range(3, 9)), (range(4, 9), range(12)), (range(8), range(2, 10), range(4, 12)),
    ],
    ids=str,
)  # fmt: skip
def test_windows_that_differ_are_laid_where_they_belong(shown, host):
    ranks = [(own, 0) for own in shown]
    found = groups_of(windows(*ranks), host)
    assert [ids for _, ids in found] == true_sets(*ranks)
    assert [by for by, _ in found] == ["order" if len(ids) > 1 else "none" for _, ids in found]
    assert set(matches_of(windows(*ranks), dict.fromkeys(range(3), host))["certain"]) <= {True, False}


@pytest.mark.parametrize("ahead", [-700 * MS, -3 * MS, 5 * MS, 20 * MS])
def test_windows_that_differ_are_found_on_clocks_that_differ(ahead):
    ranks = [(range(3, 30), 0), (range(27), ahead)]
    found = groups_of(windows(*ranks))
    assert sorted(ids for _, ids in found) == sorted(true_sets(*ranks))
    assert {by for by, ids in found if len(ids) > 1} == {"order"}


def test_a_call_that_a_trace_lost_shifts_nothing():
    lost = [k for k in range(20) if k not in (7, 8, 13)]
    table = windows((range(20), 0), (lost, 0))
    assert [ids for _, ids in groups_of(table, "a")] == true_sets((range(20), 0), (lost, 0))
    assert {by for by, ids in groups_of(table, "a") if len(ids) > 1} == {"time"}


def test_calls_that_follow_each_other_at_once_are_not_confused():
    # Rank 0 lost the second of ten equal calls 120 us apart, rank 1 the third.
    rows = [call(0, k * 120_000, dur_ns=60_000) for k in range(10) if k != 1]
    rows += [call(1, k * 120_000, dur_ns=60_000) for k in range(10) if k != 2]
    table = calls_table(rows)
    found = matches_of(table, {0: "a", 1: "a"}).merge(table, on="call_id")
    together = found.groupby("collective_id").agg(
        apart=("start_ns", lambda s: s.max() - s.min()), sure=("certain", "all")
    )
    assert not ((together["apart"] > 0) & together["sure"]).any()
    assert (together["apart"] == 0).sum() >= 8


def test_calls_that_repeat_like_a_clock_are_not_called_certain():
    # Equal calls every 2 ms; nothing says by how many of them two clocks differ.
    rows = [call(0, k * 2 * MS, dur_ns=300_000) for k in range(20)]
    rows += [call(1, k * 2 * MS + 901 * MS, dur_ns=300_000) for k in range(17)]
    found = matches_of(calls_table(rows), {0: None, 1: None})
    assert not found.groupby("collective_id")["certain"].all().any()
    assert found.groupby("collective_id")["note"].first().notna().all()


def looping(ahead: int, *, numbered: int = 0, **more) -> list[dict]:
    """Equal calls every 2 ms, four in each of five steps; of rank 1, whose clock is ahead and who counts from there."""
    return [
        call(rank, k * 2 * MS + rank * ahead, dur_ns=300_000, step=k // 4 + rank * numbered, turn=k % 4, **more)
        for rank in range(2)
        for k in range(20)
    ]


STEPS_ALONE = "only the numbers of steps join it to ranks of other hosts, and neither clocks nor times confirm them"


@pytest.mark.slow
def test_steps_of_two_hosts_in_a_loop_are_certain_only_near_their_clocks():
    by_step = [("step", (k, k + 20)) for k in range(20)]
    near, far = (calls_table(looping(ahead)) for ahead in (1 * MS, 901 * MS))
    assert groups_of(near) == groups_of(far) == by_step
    assert notes_of(near) == [None] * 40
    assert matches_of(near, {0: "a", 1: "b"})["certain"].all()
    both = matches_of(far, {0: "a", 1: "b"}).groupby("collective_id")
    assert (both["certain"].sum() == 1).all()
    assert set(notes_of(far)) == {None, STEPS_ALONE}


def test_calls_stay_as_they_were_where_steps_are_doubted():
    calls = calls_table(looping(901 * MS))
    before = calls.copy(deep=True)
    matches_of(calls, {0: "a", 1: "b"})
    pd.testing.assert_frame_equal(calls, before)


@pytest.mark.parametrize("numbered", [0, 1])
def test_ids_in_another_group_say_whether_steps_are_numbered_alike(numbered):
    rows = looping(901 * MS, numbered=numbered)
    other = [
        row | {"process_group": "other", "seq": k % 20, "start_ns": row["start_ns"] + MS} for k, row in enumerate(rows)
    ]
    found = matches_of(calls_table([*rows, *other]), {0: "a", 1: "b"})[: len(rows)]
    assert found.groupby("collective_id")["call_id"].agg(tuple).tolist() == [(k, k + 20) for k in range(20)]
    assert found["certain"].all()


def test_on_one_host_the_same_calls_are_certain():
    rows = [call(0, k * 2 * MS, dur_ns=300_000) for k in range(20)]
    rows += [call(1, k * 2 * MS, dur_ns=300_000) for k in range(3, 20)]
    found = groups_of(calls_table(rows), "a")
    assert [ids for _, ids in found] == [(0,), (1,), (2,), *((k, k + 17) for k in range(3, 20))]
    assert matches_of(calls_table(rows), {0: "a", 1: "a"})["certain"].tolist() == [False] * 3 + [True] * 34


@pytest.mark.parametrize("differs", [{"collective": "broadcast"}, {"size_bytes": 8}, {"dtype": "int64"}], ids=str)
def test_other_kinds_or_sizes_match_nothing_and_say_so(differs):
    table = calls_table([call(0, 0), call(0, 1 * MS), call(1, 0), call(1, 1 * MS, **differs)])
    assert groups_of(table, "a") == [("time", (0, 2)), ("none", (1,)), ("none", (3,))]
    assert notes_of(table, "a") == [None, ALONE, None, ALONE]


@pytest.mark.parametrize("key", ["seq", "comms_id"])
def test_order_never_joins_what_ids_hold_apart(key):
    # Each rank shows one that the other one lacks, at nearly the same time.
    table = calls_table([call(0, 0, **{key: 4}), call(1, 20, **{key: 5})])
    assert groups_of(table, "a") == [("none", (0,)), ("none", (1,))]


def test_what_ids_know_holds_for_calls_without_them():
    table = calls_table([
        row | {"pg_ranks": "0 1 2"} for row in (
            call(0, 0, seq=4), call(0, 1 * MS, seq=5), call(1, 0, seq=4), call(1, 1 * MS, seq=5),
            call(2, 0), call(2, 1 * MS),
        )
    ])  # fmt: skip
    assert groups_of(table, "a") == [("order", (0, 2, 4)), ("order", (1, 3, 5))]


def test_the_order_of_gloo_is_that_of_issue_not_of_start():
    # Two worker threads took the two collectives of rank 1 up in the other order.
    rows = [
        call(0, 10, issue_ns=1, size_bytes=4), call(0, 20, issue_ns=2, size_bytes=8),
        call(1, 30, issue_ns=2, size_bytes=8), call(1, 31, issue_ns=1, size_bytes=4),
    ]  # fmt: skip
    table = calls_table(row | {"device": "cpu"} for row in rows)
    assert groups_of(table) == [("order", (0, 3)), ("order", (1, 2))]


def test_calls_from_before_the_window_do_not_shift_the_others():
    unknown = {"issue_ns": None, "size_bytes": None, "collective": None, "dur_ns": 900_000}
    table = calls_table([
        call(0, 0, **unknown), call(0, 1 * MS, **unknown), call(0, 2 * MS, dur_ns=900_000),
        call(1, 1 * MS, **unknown), call(1, 2 * MS, dur_ns=900_000),
    ])  # fmt: skip
    assert groups_of(table, "a") == [("none", (0,)), ("order", (1, 3)), ("order", (2, 4))]


def test_on_cpus_a_rank_that_is_done_much_later_is_sure_all_the_same():
    rows = [
        call(rank, (k * 10 + rank) * MS, dur_ns=(7 if (rank, k) == (1, 9) else 2) * MS, device="cpu", size_bytes=4 * k)
        for rank in (0, 1)
        for k in range(1, 21)
    ]
    table = calls_table(rows)
    assert groups_of(table, "one") == [("order", (k, k + 20)) for k in range(20)]
    assert matches_of(table, hosts_of(table, "one"))["certain"].all()


def test_where_ends_are_far_apart_the_step_tells():
    """As gloo showed it, in us: rank 0 was done early, and its next call ends nearer to where rank 1's ends."""
    first, second = [(2_858, 598), (5_212, 1_916), (8_384, 1_978)], [(3_130, 2_207), (6_696, 1_792), (9_969, 4_875)]
    rows = [
        call(rank, start * 1_000, dur_ns=dur * 1_000, device="cpu", step=step)
        for rank, calls in enumerate((first, second))
        for step, (start, dur) in enumerate(calls, start=3)
    ]
    matched = [("order", (0, 3)), ("order", (1, 4)), ("order", (2, 5))]
    assert groups_of(calls_table(rows), "one") == matched
    assert groups_of(calls_table([row | {"step": None} for row in rows]), "one") == matched


# --- process groups --------------------------------------------------------------------------------------------------


def test_one_name_for_two_disjoint_groups_is_two_groups():
    rows = [call(rank, rank, seq=1, pg_ranks="0 1" if rank < 2 else "2 3") for rank in range(4)]
    assert groups_of(calls_table(rows)) == [("seq", (0, 1)), ("seq", (2, 3))]


def test_one_id_in_two_disjoint_groups_is_two_collectives():
    # The id is a hash of the group's name and the sequence number, so groups that share the name share ids.
    rows = [call(rank, rank, seq=1, comms_id="77", pg_ranks="0 1" if rank < 2 else "2 3") for rank in range(4)]
    assert groups_of(calls_table(rows), "a") == [("comms_id", (0, 1)), ("comms_id", (2, 3))]


def test_equal_ranks_under_two_names_are_two_groups():
    rows = [call(rank, 10 * k, seq=1, process_group=name) for rank in range(2) for k, name in enumerate(("tp", "dp"))]
    assert groups_of(calls_table(rows)) == [("seq", (0, 2)), ("seq", (1, 3))]


def test_a_group_of_one_rank_is_complete_with_itself():
    table = calls_table([call(0, 0, seq=1, pg_ranks="0"), call(0, 10, pg_ranks="0")])
    assert groups_of(table) == [("seq", (0,)), ("order", (1,))]


@pytest.mark.slow
def test_a_group_of_64_ranks(tmp_path):
    traces = traces_of(64, [Collective([rank * 1000 for rank in range(64)]), Collective([MS * 20] * 64)])
    table = analysed(tmp_path, *traces).collectives
    assert table[["matched_by", "complete", "group_size"]].to_numpy().tolist() == [["seq", True, 64]] * 2
    assert table["arrival_skew_ns"].tolist() == [63_000, 0]
    assert table["last_rank"].tolist()[0] == 63


# --- sends and receives ----------------------------------------------------------------------------------------------


def p2p(kind: str, rank: int, peer: int, start: int, **more) -> dict:
    return call(rank, start, collective=kind, root=peer, **more)


def test_sends_and_receives_go_by_source_destination_and_order():
    table = calls_table([
        p2p("send", 0, 1, 0, size_bytes=4), p2p("recv", 0, 1, 50, size_bytes=16), p2p("send", 0, 1, 90, size_bytes=8),
        p2p("recv", 1, 0, 5, size_bytes=4), p2p("send", 1, 0, 40, size_bytes=16), p2p("recv", 1, 0, 95, size_bytes=8),
    ])  # fmt: skip
    assert sorted(groups_of(table)) == [("order", (0, 3)), ("order", (1, 4)), ("order", (2, 5))]


def test_sequence_numbers_of_sends_and_receives_are_each_ranks_own():
    table = calls_table([p2p("send", 0, 1, 0, seq=7), p2p("recv", 1, 0, 0, seq=3)])
    assert groups_of(table) == [("order", (0, 1))]


def test_ids_of_sends_and_receives_are_each_ranks_own_too():
    # The id is a hash of group, sequence number and kind, so those of a pair are equal by chance only ...
    table = calls_table([p2p("send", 0, 1, 0, comms_id="77", seq=1), p2p("recv", 1, 0, 0, comms_id="88", seq=2)])
    assert groups_of(table) == [("order", (0, 1))]
    # ... or equal for calls that have nothing to do with each other: the first of every rank of a pipeline.
    ranks = {"pg_ranks": "0 1 2", "group_size": 3}
    table = calls_table([
        p2p("send", 0, 1, 0, comms_id="1", seq=1, **ranks),
        p2p("recv", 1, 0, 0, comms_id="1", seq=1, **ranks), p2p("send", 1, 2, 50, comms_id="2", seq=2, **ranks),
        p2p("recv", 2, 1, 50, comms_id="1", seq=1, **ranks),
    ])  # fmt: skip
    assert groups_of(table) == [("order", (0, 1)), ("order", (2, 3))]


@pytest.mark.parametrize("both_ends", [False, True])
def test_the_same_from_traces(tmp_path, both_ends):
    args = {"Comms Id": 2**63 + 5, "Seq": 1} | ({"Src Rank": 0, "Dst Rank": 1} if both_ends else {})
    first = Trace(0, 2).nccl("send", 0, 5 * MS, **args | {"Dst Rank": 1})
    second = Trace(1, 2).nccl("recv", 1 * MS, 4 * MS, **args | {"Src Rank": 0})
    table = analysed(tmp_path, first, second).collectives
    assert table[["collective", "matched_by", "ranks"]].to_numpy().tolist() == [["send_recv", "order", "0 1"]]


def test_sends_beside_an_all_reduce_of_the_same_group():
    table = calls_table([
        call(0, 0, seq=1), p2p("send", 0, 1, 20, seq=1), call(0, 60, seq=2),
        call(1, 0, seq=1), p2p("recv", 1, 0, 20, seq=1), call(1, 60, seq=2),
    ])  # fmt: skip
    assert groups_of(table) == [("seq", (0, 3)), ("order", (1, 4)), ("seq", (2, 5))]


def test_sends_beside_an_all_reduce_without_numbers():
    table = calls_table([call(0, 0), p2p("send", 0, 1, 20), call(0, 60), call(1, 0), p2p("recv", 1, 0, 5), call(1, 60)])
    assert groups_of(table) == [("order", (0, 3)), ("order", (1, 4)), ("order", (2, 5))]


def test_a_send_whose_other_side_is_not_there_says_so():
    table = calls_table([p2p("send", 0, 1, 0), call(1, 0)])
    assert groups_of(table) == [("none", (0,)), ("none", (1,))]
    assert notes_of(table) == [ALONE, ALONE]


def test_of_sends_and_receives_in_other_numbers_the_rest_stays_alone():
    table = calls_table([
        p2p("send", 0, 1, 0, dur_ns=500_000), p2p("send", 0, 1, 2 * MS, dur_ns=500_000),
        p2p("recv", 1, 0, 2 * MS + 10_000, dur_ns=490_000),
    ])  # fmt: skip
    assert groups_of(table, "a") == [("none", (0,)), ("order", (1, 2))]


# --- sends and receives between CPUs, which end when somebody waits for them ------------------------------------------


def sent(start: int, end: int, step: int | None = None, **more) -> dict:
    return _message(0, "send", 1, start, end, step) | more


def received(start: int, end: int, step: int | None = None, **more) -> dict:
    return _message(1, "recv", 0, start, end, step) | more


def _message(rank: int, kind: str, peer: int, start: int, end: int, step: int | None) -> dict:
    on_cpu = {"device": "cpu", "name": f"gloo:{kind}", "collective": kind, "root": peer, "step": step}
    return {"rank": rank, "start_ns": start, "dur_ns": end - start, **on_cpu}


# Four messages a step, as a pipeline sends them: the first rank waits for all its sends at the end of the step.
def pipelined(*steps: int, offset: int = 0) -> tuple[list[dict], list[dict]]:
    sends, receives = [], []
    for step in steps:
        at = 100 * MS * step
        sends += [sent(at + 10 * MS * k, at + 60 * MS + k, step) for k in range(4)]
        receives += [
            received(at + 10 * MS * k - 5 * MS + offset, at + 10 * MS * k + MS + offset, step) for k in range(4)
        ]
    return sends, receives


@pytest.mark.parametrize("host", ["node", None])
def test_sends_that_end_late_go_to_their_own_receives(host):
    sends, receives = pipelined(2, 3)
    table = calls_table(sends + receives)
    assert sorted(groups_of(table, host)) == [("order", (k, k + 8)) for k in range(8)]
    assert matches_of(table, hosts_of(table, host))["certain"].all()


@pytest.mark.parametrize("host", ["node", None])
def test_steps_tell_where_windows_of_messages_differ(host):
    sends, receives = pipelined(2, 3)[0], pipelined(3, 4)[1]
    table = calls_table(sends + receives)
    paired = [("order", (k + 4, k + 8)) for k in range(4)]
    alone = [("none", (k,)) for k in (0, 1, 2, 3, 12, 13, 14, 15)]
    assert sorted(groups_of(table, host)) == sorted(paired + alone)
    assert matches_of(table, hosts_of(table, host))["certain"].tolist() == [False] * 4 + [True] * 8 + [False] * 4


def test_nothing_is_received_before_it_is_sent():
    sends = [sent(10 * MS * k, 10 * MS * k + MS) for k in range(2)]
    receives = [received(10 * MS * k - 15 * MS, 10 * MS * k - 9 * MS) for k in range(2)]
    table = calls_table(sends + receives)
    assert groups_of(table, "node") == [("none", (2,)), ("order", (0, 3)), ("none", (1,))]
    assert matches_of(table, hosts_of(table, "node"))["certain"].tolist() == [True, False, False, True]


def test_without_steps_messages_that_block_are_certain_and_others_are_not():
    blocking = calls_table(
        [sent(10 * MS * k, 10 * MS * k + MS) for k in range(3)]
        + [received(10 * MS * k - MS, 10 * MS * k + MS) for k in range(3)]
    )
    assert groups_of(blocking, "node") == [("order", (k + 3, k)[::-1]) for k in range(3)]
    assert matches_of(blocking, hosts_of(blocking, "node"))["certain"].all()
    sends, receives = pipelined(2)
    late = calls_table([row | {"step": None} for row in sends + receives])
    assert sorted(groups_of(late, "node")) == [("order", (k, k + 4)) for k in range(4)]
    assert not matches_of(late, hosts_of(late, "node"))["certain"].any()
    assert all("other pairings fit as well" in str(note) for note in notes_of(late, "node"))


def test_a_lost_message_makes_its_neighbours_uncertain():
    sends, receives = pipelined(2)
    sizes = [{"size_bytes": 100}, {"size_bytes": 200}, {"size_bytes": 300}, {"size_bytes": 400}]
    sends = [row | size for row, size in zip(sends, sizes, strict=True)]
    receives = [row | size for row, size in zip(receives, sizes, strict=True)]
    table = calls_table([*sends, receives[0], receives[1], receives[3]])
    assert sorted(groups_of(table, "node")) == [("none", (2,)), ("time", (0, 4)), ("time", (1, 5)), ("time", (3, 6))]
    assert not matches_of(table, hosts_of(table, "node"))["certain"].any()
    assert "calls are missing in between" in str(notes_of(table, "node")[0])


def test_each_profiling_cycle_finds_its_own_messages():
    sends, receives = pipelined(2, 3, 7, 8)
    cycles = [{"cycle": int(k >= 8)} for k in range(16)]
    rows = [row | cycle for side in (sends, receives) for row, cycle in zip(side, cycles, strict=True)]
    assert sorted(groups_of(calls_table(rows), "node")) == [("order", (k, k + 16)) for k in range(16)]


@pytest.mark.slow
@settings(max_examples=12)
@given(st.integers(1, 4), st.integers(1, 4), st.data(), st.sampled_from(["node", None]))
def test_messages_within_whole_steps_are_paired_as_they_were_sent(steps, each, data, host):
    first, last = sorted((data.draw(st.integers(0, steps - 1)), data.draw(st.integers(0, steps - 1))))
    rows, true_pairs = [], set()
    for n in range(steps * each):
        start = 1000 * n
        late = data.draw(st.integers(0, 5000))
        rows.append(sent(start, start + late + 1, n // each))
    for n in range(steps * each):
        if first <= n // each <= last:
            start = 1000 * n + data.draw(st.integers(0, 900))
            true_pairs.add((n, len(rows)))
            rows.append(received(start, start + 50, n // each))
    table = calls_table(rows)
    assert {ids for rung, ids in groups_of(table, host) if rung != "none"} == true_pairs
    assert (
        matches_of(table, hosts_of(table, host))
        .set_index("call_id")["certain"][[n for pair in true_pairs for n in pair]]
        .all()
    )


def test_a_receive_from_whoever_comes_is_unmatched_with_the_reason():
    table = calls_table([p2p("recv", 0, None, 0)])
    assert notes_of(table) == ["its peer is not known"]


# --- whatever the input ----------------------------------------------------------------------------------------------

ANY_CALL = st.fixed_dictionaries({
    "rank": st.integers(0, 3),
    "start_ns": st.integers(0, 50),
    "dur_ns": st.integers(0, 10),
    "collective": st.sampled_from(["all_reduce", "broadcast", "send", "recv", None]),
    "pg_ranks": st.sampled_from(["0 1", "0 1 2 3", None]),
    "size_bytes": st.sampled_from([4, 8, None]),
    "seq": st.one_of(st.none(), st.integers(0, 2)),
    "comms_id": st.one_of(st.none(), st.sampled_from(["1", "2"])),
    "root": st.one_of(st.none(), st.integers(0, 3)),
    "issue_ns": st.one_of(st.none(), st.integers(0, 50)),
})  # fmt: skip


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(ANY_CALL, max_size=12))
def test_every_call_is_in_one_collective_with_at_most_one_call_a_rank(rows):
    table = calls_table(rows)
    found = matches_of(table, hosts_of(table))
    assert found["call_id"].tolist() == table["call_id"].tolist()
    joined = table.merge(found, on="call_id")
    for _, together in joined.groupby("collective_id"):
        assert together["rank"].is_unique
        assert together["matched_by"].nunique() == 1
        if together["matched_by"].iloc[0] == "none":
            assert len(together) == 1
            assert together["note"].notna().all()
        else:
            assert together["process_group"].nunique() <= 1
            assert together["pg_ranks"].nunique() <= 1
            assert together["size_bytes"].nunique() <= 1


def test_no_calls_no_matches():
    assert len(matches_of(calls_table([]), {0: None})) == 0


# --- a whole order ---------------------------------------------------------------------------------------------------


def far_ends(ranks: int, lost: frozenset[tuple[int, int]] = frozenset()) -> pd.DataFrame:
    """Calls 2 ms apart; the ends of every third are 700 us apart, as where each rank waits for its own tokens only."""
    group = {"process_group": "0", "pg_ranks": " ".join(map(str, range(ranks))), "group_size": ranks}
    rows = [
        call(rank, k * 2 * MS + rank * 1_000, **group, dur_ns=300_000 + 700_000 * (k % 3 == 2 and rank == 1))
        for rank in range(ranks)
        for k in range(31)
        if (rank, k) not in lost
    ]
    return calls_table(rows)


def test_distant_ends_are_certain_where_all_show_the_same_calls_in_the_same_order():
    assert matches_of(far_ends(4), hosts_of(far_ends(4), "one"))["certain"].all()


def test_distant_ends_are_doubtful_where_calls_are_missing():
    table = far_ends(4, frozenset({(0, 7), (1, 7), (2, 15)}))
    found = matches_of(table, hosts_of(table, "one"))
    assert (~found["certain"]).any()
    assert found["note"][~found["certain"]].notna().all()
