"""A real capture of two ranks, read back: what DDP is known to send is what the tables show."""

from pathlib import Path

import pytest

from commtrace import Analysis, analyse

RESNET18_BYTES = 11_173_962 * 4
BUCKETS_BYTES = [15_823_104, 28_872_744]


@pytest.fixture(scope="module")
def result(gloo_run: Path) -> Analysis:
    return analyse(gloo_run)


def test_both_ranks_and_the_traced_steps_are_there(result: Analysis) -> None:
    assert result.run.ranks == [0, 1]
    assert result.run.world_size == 2
    assert sorted(result.breakdown_steps["step"].unique()) == [2, 3]
    assert result.run.traces["complete"].all()


def test_ddp_broadcasts_its_buffers_and_reduces_two_buckets_a_step(result: Analysis) -> None:
    assert sum(BUCKETS_BYTES) == RESNET18_BYTES
    for (_, _), calls in result.calls.groupby(["rank", "step"]):
        by_kind = calls.groupby("collective")["size_bytes"].apply(sorted)
        assert by_kind["all_reduce"] == BUCKETS_BYTES
        assert len(by_kind["broadcast"]) == 2
        assert len(calls) == 4
    assert set(result.calls["metadata_from"]) == {"c10d"}
    assert set(result.calls["pg_ranks"]) == {"0 1"}


def test_every_collective_is_matched_on_both_ranks(result: Analysis) -> None:
    collectives = result.collectives
    assert len(collectives) == 8
    assert collectives["complete"].all()
    assert set(collectives["ranks"]) == {"0 1"}


def test_wait_and_transfer_are_there_and_add_up(result: Analysis) -> None:
    assert set(result.clocks["linked"]) == {0}
    participation, breakdown = result.participation, result.breakdown
    assert participation["wait_ns"].notna().all()
    assert (participation["wait_ns"] + participation["transfer_ns"] == participation["dur_ns"]).all()
    assert (breakdown["exposed_comm_ns"] > 0).all()
    parts = breakdown["exposed_wait_ns"] + breakdown["exposed_transfer_ns"] + breakdown["exposed_unsplit_ns"]
    assert (parts == breakdown["exposed_comm_ns"]).all()
    for table in (breakdown, result.breakdown_steps):
        parts = table["compute_ns"] + table["exposed_comm_ns"] + table["exposed_memory_ns"] + table["idle_ns"]
        assert (parts == table["window_ns"]).all()


def test_bandwidth_has_a_row_for_each_bucket(result: Analysis) -> None:
    bandwidth = result.bandwidth.set_index(["collective", "size_bytes"]).loc["all_reduce"]
    assert sorted(bandwidth.index) == BUCKETS_BYTES
    assert (bandwidth["busbw_low_gb_per_s"] <= bandwidth["busbw_gb_per_s"]).all()
    assert (bandwidth["busbw_gb_per_s"] <= bandwidth["busbw_high_gb_per_s"]).all()
    # Over two ranks the factor 2(n-1)/n is 1.
    assert bandwidth["busbw_gb_per_s"].tolist() == pytest.approx(bandwidth["algbw_gb_per_s"].tolist())
