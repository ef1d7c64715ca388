"""Ranks that end collectives at another time than the others of their host are named, and spoil no bandwidth."""

import json
from random import Random

import pytest
from builders import MS, US, Trace, analysed, write_bytes

CALLS = 10


def run_of(folder, late, *, hosts, begins=None, uuid=""):
    """Ten all_reduces, of which rank r ends the k-th `late[r, k]` ns after its time, and begins it that much later."""
    ranks = range(len(hosts))
    traces = [Trace(rank, len(hosts), groups={"0": list(ranks)}, host=hosts[rank]) for rank in ranks]
    for rank, trace in enumerate(traces):
        for k in range(CALLS):
            begin = (begins or {}).get((rank, k), 0)
            dur = 3 * MS + rank * 10 * US + late.get((rank, k), 0) - begin
            trace.nccl("all_reduce", 20 * k * MS + begin, dur, ranks=ranks, elems=1_000_000, Seq=k)
        if uuid:
            side = {"device": {"type": "cuda", "index": 0, "uuid": uuid}}
            write_bytes(folder / f"node_{rank}.meta.json", json.dumps(side).encode())
    return analysed(folder, *traces)


def said(found) -> list[str]:
    return [text.partition(" of its host")[0] for text in found.warnings if " of its host" in text]


@pytest.mark.quick_cases("3")
@pytest.mark.parametrize("seed", range(4))
def test_who_how_often_and_by_how_much(tmp_path, seed):
    draw = Random(seed)
    size = draw.randint(3, 8)
    rank, by_ns = draw.randrange(size), draw.randint(2 * MS, 9 * MS)
    calls = draw.sample(range(CALLS), draw.randint(1, CALLS))
    found = run_of(tmp_path / "late", {(rank, k): by_ns for k in calls}, hosts=["a"] * size)
    plain = run_of(tmp_path / "plain", {}, hosts=["a"] * size)
    (text,) = said(found)
    who, by = text.split(" collectives ")
    assert who == f"rank {rank} ended {len(calls)} of {CALLS}"
    assert abs(float(by.split(" ms after")[0]) - by_ns / MS) < 0.1
    assert said(plain) == []
    assert (found.collectives["busbw_gb_per_s"] / plain.collectives["busbw_gb_per_s"]).between(0.97, 1.03).all()


@pytest.mark.quick_cases("5")
@pytest.mark.parametrize("seed", range(6))
def test_late_ends_spoil_neither_transfer_nor_bandwidth(tmp_path, seed):
    """Of groups of two and more on one host or two, some ranks end late, in any calls, also those who come last."""
    draw = Random(seed)
    size = 2 if seed % 2 else draw.randint(3, 6)
    hosts = ["a"] * size + ["b"] * (size if seed % 3 == 0 else 0)
    slow = draw.randrange(size)
    calls = draw.sample(range(CALLS), draw.randint(1, CALLS))
    late = {(slow, k): draw.randint(2 * MS, 9 * MS) for k in calls}
    begins = {(rank, k): draw.randint(0, 800) * US for rank in range(len(hosts)) for k in range(CALLS)}
    last = draw.choice([slow, 0])
    begins |= {(last, k): 900 * US for k in range(CALLS)}
    found, plain = (
        run_of(tmp_path / name, own, hosts=hosts, begins=begins) for name, own in (("late", late), ("plain", {}))
    )
    assert found.collectives["transfer_ns"].between(2 * MS, 2.2 * MS).all()
    assert (found.collectives["transfer_low_ns"] <= found.collectives["transfer_ns"]).all()
    for name in ("time_us_median", "time_us_p95", "busbw_gb_per_s"):
        assert found.bandwidth[name].to_list() == pytest.approx(plain.bandwidth[name].to_list(), rel=0.05)


def test_where_no_ends_agree_no_transfer_is_known(tmp_path):
    found = run_of(tmp_path, {(1, 3): 2 * MS, (2, 3): 5 * MS}, hosts=["a"] * 3).collectives
    assert found.index[found["transfer_ns"].isna()].tolist() == [3]
    assert found["note"].dropna().tolist() == ["its ends on one host differ by up to 5.020 ms, and none agree"]


def test_ranks_that_share_a_gpu_need_not_end_together(tmp_path):
    late = {(1, k): 5 * MS for k in range(CALLS)}
    apart, shared = (run_of(tmp_path / gpu, late, hosts=["a"] * 2, uuid=gpu) for gpu in ("", "GPU-1"))
    assert (apart.collectives["transfer_ns"] < 3.1 * MS).all()
    assert (shared.collectives["transfer_ns"] > 5 * MS).all()


def test_a_rank_that_ends_before_all_others(tmp_path):
    found = run_of(tmp_path, {(rank, 3): 5 * MS for rank in (0, 1, 3)}, hosts=["a"] * 4)
    assert said(found) == ["rank 2 ended 1 of 10 collectives 4.980 ms before other ranks"]


def test_of_two_ranks_the_first_to_end_is_believed(tmp_path):
    assert said(run_of(tmp_path, {(0, 3): 5 * MS}, hosts=["a", "a"])) == [
        "rank 0 ended 1 of 10 collectives 4.990 ms after other ranks"
    ]


def test_ranks_of_other_hosts_are_not_compared(tmp_path):
    assert said(run_of(tmp_path, {(3, 3): 5 * MS}, hosts=["a", "a", "a", "b"])) == []


def test_the_rank_that_loses_most_comes_first(tmp_path):
    late = {(1, k): 2 * MS for k in (2, 5)} | {(4, k): 3 * MS for k in (1, 2, 7)}
    texts = said(run_of(tmp_path, late, hosts=["a"] * 6))
    assert [text.split(" ended ")[0] for text in texts] == ["rank 4", "rank 1"]


def test_on_a_cpu_ends_say_nothing(tmp_path):
    traces = [Trace(rank, 2, groups={"0": [0, 1]}, backend="gloo", host="a") for rank in range(2)]
    for rank, trace in enumerate(traces):
        trace.gloo("all_reduce", 0, 3 * MS + rank * 5 * MS)
    found = analysed(tmp_path, *traces)
    assert len(found.collectives)
    assert said(found) == []
