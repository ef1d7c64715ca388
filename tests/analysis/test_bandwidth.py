"""Bandwidth in the columns of nccl-tests: by group, collective, dtype and size, sums divided."""

import pytest
from builders import MS, Collective, Trace, analysed, traces_of

from commtrace.analysis.core.schema import Row, records
from commtrace.common.nccl_tests import bus_factor


def rows_of(folder, world: int, truth: list[Collective], **options) -> list[Row]:
    return records(analysed(folder, *traces_of(world, truth, **options)).bandwidth)


def test_the_columns_of_nccl_tests(tmp_path):
    truth = [
        Collective((0, 3 * MS), 10 * MS, elems=250_000_000),
        Collective((50 * MS, 50 * MS), 40 * MS, elems=250_000_000),
    ]
    (row,) = rows_of(tmp_path, 2, truth)
    assert (row["process_group"], row["pg_ranks"], row["collective"], row["dtype"]) == (
        "0",
        "0 1",
        "all_reduce",
        "float32",
    )
    assert (row["size_bytes"], row["count_elems"], row["calls"]) == (1_000_000_000, 250_000_000, 2)
    assert (row["time_us_min"], row["time_us_median"]) == (10_000, 25_000)
    assert row["time_us_p95"] == pytest.approx(38_500)
    assert row["algbw_gb_per_s"] == row["busbw_gb_per_s"] == 40  # 2e9 bytes in 50 ms, not the mean of 100 and 25


def test_whole_durations_give_what_a_single_trace_would_suggest(tmp_path):
    (row,) = rows_of(tmp_path, 2, [Collective((0, 30 * MS), 10 * MS, elems=250_000_000)])
    assert row["busbw_gb_per_s"] == 100
    assert row["busbw_from_dur_gb_per_s"] == 1e9 / 25e6  # the mean of 40 and 10 ms


@pytest.mark.slow_cases("all_gather-8", "all_to_all-8")
@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_bus_bandwidth_of_every_collective(tmp_path, kind, world):
    arrivals = [k * 1000 for k in range(world)]
    (row,) = rows_of(tmp_path, world, [Collective(arrivals, 10 * MS, kind, elems=8_000_000)])
    assert row["size_bytes"] == 32_000_000
    assert row["algbw_gb_per_s"] == pytest.approx(3.2)
    assert row["busbw_gb_per_s"] == pytest.approx(3.2 * bus_factor(kind, world))


def test_sizes_kinds_dtypes_and_groups_are_rows_of_their_own(tmp_path):
    truth = [
        Collective((0, 0), 1 * MS, elems=100),
        Collective((10 * MS,) * 2, 1 * MS, elems=200),
        Collective((20 * MS,) * 2, 1 * MS, elems=100, dtype="Int"),
        Collective((30 * MS,) * 2, 1 * MS, "all_gather", elems=100),
        Collective((40 * MS,) * 2, 1 * MS, elems=100, group="tp"),
        Collective((50 * MS,) * 2, 1 * MS, elems=100),
    ]
    rows = rows_of(tmp_path, 2, truth)
    assert sorted((r["process_group"], r["collective"], r["dtype"], r["size_bytes"], r["calls"]) for r in rows) == [
        ("0", "all_gather", "float32", 400, 1),
        ("0", "all_reduce", "float32", 400, 2),
        ("0", "all_reduce", "float32", 800, 1),
        ("0", "all_reduce", "int32", 400, 1),
        ("tp", "all_reduce", "float32", 400, 1),
    ]


@pytest.mark.slow
def test_one_group_name_for_disjoint_groups_is_two_rows(tmp_path):
    truth = [Collective({0: 0, 1: 0}, 1 * MS, group="3"), Collective({2: 0, 3: 0}, 2 * MS, group="3")]
    rows = rows_of(tmp_path, 4, truth)
    assert sorted((r["pg_ranks"], r["time_us_min"]) for r in rows) == [("0 1", 1000), ("2 3", 2000)]


@pytest.mark.slow
def test_the_group_counts_not_the_world(tmp_path):
    (row,) = rows_of(tmp_path, 8, [Collective({0: 0, 4: 0}, 10 * MS, elems=250_000_000, group="dp")])
    assert row["busbw_gb_per_s"] == 100  # 2 (n - 1) / n of n = 2


@pytest.mark.slow
def test_barriers_move_no_data(tmp_path):
    assert rows_of(tmp_path, 2, [Collective((0, 0), 1 * MS, "barrier")]) == []


def test_calls_whose_waiting_is_not_known_count_in_durations_only(tmp_path):
    (row,) = records(
        analysed(
            tmp_path, Trace(0, 2, groups={"0": [0, 1]}).nccl("all_reduce", 0, 10 * MS, elems=250_000_000)
        ).bandwidth
    )
    assert (row["calls"], row["busbw_from_dur_gb_per_s"]) == (1, 100)
    unknown = ["time_us_min", "time_us_median", "time_us_p95", "algbw_gb_per_s", "busbw_gb_per_s", "busbw_low_gb_per_s"]
    for key in unknown:
        assert row[key] is None, key


def test_calls_without_a_size_have_no_bandwidth(tmp_path):
    traces = [Trace(r, 2).kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 0, 1 * MS) for r in (0, 1)]
    assert records(analysed(tmp_path, *traces).bandwidth) == []


def test_calls_of_no_duration_have_no_bandwidth(tmp_path):
    (row,) = rows_of(tmp_path, 2, [Collective((0, 0), 0)])
    assert (row["calls"], row["algbw_gb_per_s"], row["busbw_from_dur_gb_per_s"]) == (1, None, None)


def test_copies_between_gpus_have_a_bandwidth_from_their_duration(tmp_path):
    (row,) = records(analysed(tmp_path, Trace(world=1).memcpy("PtoP", 0, 1 * MS, nbytes=25_000_000)).bandwidth)
    assert (row["collective"], row["size_bytes"], row["busbw_from_dur_gb_per_s"]) == ("peer_copy", 25_000_000, 25)


@pytest.mark.parametrize("offset", [0, 500 * MS])
def test_the_lower_bound_of_the_time_needs_no_clocks(tmp_path, offset):
    truth = [Collective((0, 3 * MS), 10 * MS, elems=250_000_000)]
    table = analysed(tmp_path, *traces_of(2, truth, offsets=(0, offset))).collectives
    assert table["busbw_high_gb_per_s"].tolist() == [100]
