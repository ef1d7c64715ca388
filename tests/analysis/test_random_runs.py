"""Random runs of known truth: what was matched, the clocks that were found, and every wait, against what is true."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Run, Shape, random_run
from samples import with_slow

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.matching.ladder import matches_of
from commtrace.analysis.tables.clocks import compared_clocks
from commtrace.analysis.tables.collectives import collectives
from commtrace.analysis.tables.participation import split_calls

MS = 1_000_000
# Steps that make some hundred to some thousand calls.
STEPS = {2: 80, 4: 50, 8: 40, 16: 20, 64: 10}
HARD = Shape(shifted_calls=12, missing=0.01, drift_ppm=20.0, clock_error_ns=20 * MS)


@dataclass(frozen=True)
class Found:
    """What the analysis makes of the calls of a run."""

    matches: pd.DataFrame
    clocks: pd.DataFrame
    participation: pd.DataFrame


def found_in(calls: pd.DataFrame, ranks: int) -> Found:
    hosts: dict[int, str | None] = dict.fromkeys(range(ranks))
    matched = matches_of(calls, hosts)
    known = compared_clocks(calls, matched, hosts)
    return Found(matched, known, split_calls(calls, matched, known, ranks))


def shape_of(ranks: int, ids: str, **more) -> Shape:
    return replace(HARD, ranks=ranks, ids=ids, **{"steps": STEPS[ranks], **more})


def sets_of(matched: pd.DataFrame) -> set[frozenset[int]]:
    return {frozenset(ids) for _, ids in matched.groupby("collective_id")["call_id"]}


def rightly_matched(run: Run, found: Found) -> tuple[int, int]:
    """Calls that are with all of their own and only them, of how many; wrong ones must not be called certain."""
    joined = run.truth.merge(found.matches, on="call_id")
    assert len(joined) == len(run.calls) == len(found.matches)
    true = joined["true_id"].map(joined.groupby("true_id")["call_id"].agg(frozenset))
    right = true == joined["collective_id"].map(joined.groupby("collective_id")["call_id"].agg(frozenset))
    of_collective = joined.groupby("collective_id").agg(true=("true_id", "nunique"), certain=("certain", "all"))
    wrong = of_collective[(of_collective["true"] > 1) & of_collective["certain"]]
    assert not len(wrong), f"{len(wrong)} collectives of calls that do not belong together are called certain"
    return int(right.sum()), len(right)


def assert_true_members(run: Run, found: Found) -> None:
    right, calls = rightly_matched(run, found)
    assert right >= 0.999 * calls, f"{calls - right} of {calls} calls are not with all of their own, and only them"


def ahead_ns(run: Run, rank: int, origin_ns: int) -> float:
    """How far the clock of that rank is ahead of true time when it shows `origin_ns`."""
    true_ns = (origin_ns - run.offset_ns[rank]) / (1 + run.drift[rank])
    return origin_ns - true_ns


def assert_true_clocks(run: Run, found: Found) -> None:
    for row in records(found.clocks):
        linked, origin_ns = row["linked"], row["origin_ns"]
        error = row["offset_ns"] - (ahead_ns(run, row["rank"], origin_ns) - ahead_ns(run, linked, origin_ns))
        assert abs(error) <= row["uncertainty_ns"], f"rank {row['rank']} against {linked}"
        if row["rank"] == linked:
            assert (row["offset_ns"], row["drift_ppm"]) == (0, 0)


def assert_true_waits(run: Run, found: Found) -> None:
    table = found.participation.merge(run.truth[["call_id", "wait_ns"]], on="call_id", suffixes=("", "_true"))
    split = table[table["wait_ns"].notna()]
    uncertain = found.clocks["uncertainty_ns"].max()
    assert ((split["wait_ns"] >= 0) & (split["wait_ns"] <= split["dur_ns"])).all()
    assert (split["wait_ns"] + split["transfer_ns"] == split["dur_ns"]).all()
    errors = (split["wait_ns"].astype("int64") - split["wait_ns_true"]).abs()
    # Both clocks of two ranks may be wrong against a third one.
    assert (errors <= 2 * uncertain).all(), f"off by {errors.max()} ns, uncertain by {uncertain} ns"


def assert_true(seed: int, shape: Shape, *, split_at_least: float = 0.0) -> None:
    run = random_run(seed, shape)
    found = found_in(run.calls, shape.ranks)
    assert_true_members(run, found)
    assert_true_clocks(run, found)
    assert_true_waits(run, found)
    assert found.participation["wait_ns"].notna().mean() >= split_at_least


@pytest.mark.quick_cases("2-none-0", "2-seq-0", "2-comms_id-0", "8-seq-0")
@pytest.mark.parametrize("seed", with_slow([0], [1]))
@pytest.mark.parametrize("ids", ["none", "seq", "comms_id"])
@pytest.mark.parametrize("ranks", with_slow([2, 8, 16], [4, 64]))
def test_calls_clocks_and_waits_are_as_they_were(ranks, ids, seed):
    assert_true(seed, shape_of(ranks, ids), split_at_least=0.5)


@pytest.mark.slow
@settings(max_examples=5, derandomize=True)
@given(
    seed=st.integers(1000, 10**6),
    ranks=st.sampled_from([2, 4, 8, 16]),
    ids=st.sampled_from(["none", "seq", "comms_id"]),
    shifted=st.integers(0, 12),
    missing=st.sampled_from([0.0, 0.002, 0.01]),
    drift=st.sampled_from([0.0, 5.0, 20.0]),
    subgroups=st.booleans(),
    point_to_point=st.booleans(),
    mean_compute_ns=st.sampled_from([800_000, 5_000_000]),
)
def test_whatever_the_run(seed, ranks, ids, shifted, missing, drift, subgroups, point_to_point, mean_compute_ns):
    more = {"subgroups": subgroups, "point_to_point": point_to_point, "mean_compute_ns": mean_compute_ns}
    assert_true(seed, shape_of(ranks, ids, shifted_calls=shifted, missing=missing, drift_ppm=drift, **more))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", with_slow([4], [2, 8]))
def test_one_call_in_twenty_lost(ranks):
    counts = []
    for seed in (1, 4, 124, 152):
        run = random_run(seed, shape_of(ranks, "none", missing=0.05, steps={2: 100, 4: 60, 8: 50}[ranks]))
        found = found_in(run.calls, ranks)
        counts.append(rightly_matched(run, found))
        assert_true_clocks(run, found)
        assert_true_waits(run, found)
    right, calls = map(sum, zip(*counts, strict=True))
    assert right >= 0.999 * calls, f"{calls - right} of {calls} calls are not with all of their own, and only them"


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "seed"), with_slow([(4, 0)], [(8, 1)]))
def test_drift_over_thousands_of_calls_is_followed(ranks, seed):
    shape = shape_of(ranks, "none", steps=400, mean_compute_ns=8 * MS)
    run = random_run(seed, shape)
    found = found_in(run.calls, ranks)
    assert_true_members(run, found)
    assert_true_waits(run, found)
    for row in records(found.clocks):
        true_ppm = (run.drift[row["rank"]] - run.drift[row["linked"]]) * 1e6
        # Undetected it would be up to 40.
        assert row["drift_ppm"] == pytest.approx(true_ppm, abs=2.0)
    assert_true_clocks(run, found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow(range(1), range(1, 4)))
@pytest.mark.parametrize(("ranks", "steps"), with_slow([(16, 5)], [(64, 2)]))
def test_of_windows_too_short_to_be_sure_nothing_wrong_is_certain(ranks, steps, seed):
    run = random_run(seed, shape_of(ranks, "none", steps=steps, shifted_calls=6, missing=0.02))
    joined = run.truth.merge(found_in(run.calls, ranks).matches, on="call_id")
    of_collective = joined.groupby("collective_id").agg(true=("true_id", "nunique"), certain=("certain", "all"))
    assert not ((of_collective["true"] > 1) & of_collective["certain"]).any()


# --- the same run seen otherwise -------------------------------------------------------------------------------------


def without(calls: pd.DataFrame, *columns: str) -> pd.DataFrame:
    return calls.assign(**dict.fromkeys(columns, pd.NA)).astype(dict(calls.dtypes))


@pytest.mark.quick_cases("1-2-seq")
@pytest.mark.parametrize("ids", ["seq", "comms_id"])
@pytest.mark.parametrize("ranks", with_slow([2, 16], [8]))
@pytest.mark.parametrize("seed", with_slow([1], [0]))
def test_without_ids_the_same_calls_belong_together(ranks, ids, seed):
    run = random_run(seed, shape_of(ranks, ids, missing=0.002))
    by_id, by_order = found_in(run.calls, ranks), found_in(without(run.calls, ids), ranks)
    assert ids in set(by_id.matches["matched_by"])
    assert set(by_order.matches["matched_by"]) <= {"order", "time", "none"}
    same = sets_of(by_id.matches) & sets_of(by_order.matches)
    assert sum(map(len, same)) >= 0.999 * len(run.calls)


@pytest.mark.quick_cases("4")
@pytest.mark.parametrize("ranks", [4, 16])
def test_without_sizes_and_kinds_too(ranks):
    run = random_run(5, shape_of(ranks, "seq", missing=0.0, subgroups=False, point_to_point=False))
    bare = without(run.calls, "seq", "size_bytes", "dtype", "collective")
    assert sets_of(found_in(bare, ranks).matches) == sets_of(found_in(run.calls, ranks).matches)


def named(found: Found, ids: "pd.Series[int]") -> pd.DataFrame:
    """Wait of every call, and the calls it belongs with, by the number it had before."""
    back = ids.to_dict()
    members = found.matches.groupby("collective_id")["call_id"].agg(lambda own: frozenset(map(back.__getitem__, own)))
    table = found.participation.assign(members=found.participation["collective_id"].map(members))
    return table.assign(call_id=table["call_id"].map(back)).set_index("call_id").sort_index()


@pytest.mark.quick_cases("1-seq")
@pytest.mark.parametrize("ids", ["none", "seq"])
@pytest.mark.parametrize("seed", with_slow([1], [0]))
def test_the_order_of_rows_changes_nothing(ids, seed):
    run = random_run(seed, shape_of(8, ids))
    mixed = run.calls.sample(frac=1, random_state=seed).reset_index(drop=True)
    same = pd.Series(run.calls["call_id"].to_numpy(), index=run.calls["call_id"].to_numpy())
    before, after = named(found_in(run.calls, 8), same), named(found_in(mixed, 8), same)
    pd.testing.assert_series_equal(before["members"], after["members"])
    pd.testing.assert_series_equal(before["wait_ns"], after["wait_ns"])


@pytest.mark.quick_cases("1-seq")
@pytest.mark.parametrize("ids", ["none", "seq"])
@pytest.mark.parametrize("seed", with_slow([1], [0]))
def test_other_numbers_for_the_ranks_change_no_match_and_no_wait(ids, seed):
    run = random_run(seed, shape_of(8, ids, point_to_point=False))
    order = np.random.default_rng(seed).permutation(8)
    members = [sorted(int(order[int(r)]) for r in ranks.split()) for ranks in run.calls["pg_ranks"]]
    renamed = run.calls.assign(
        rank=order[run.calls["rank"]], pg_ranks=pd.array([" ".join(map(str, own)) for own in members], dtype="string")
    )
    renamed = renamed.sort_values(["rank", "start_ns"], ignore_index=True)
    old = renamed["call_id"].copy()
    renamed["call_id"] = range(len(renamed))
    same = pd.Series(run.calls["call_id"].to_numpy(), index=run.calls["call_id"].to_numpy())
    first, second = found_in(run.calls, 8), found_in(renamed, 8)
    before, after = named(first, same), named(second, old)
    assert (before["members"] == after["members"]).mean() >= 0.999
    uncertain = first.clocks["uncertainty_ns"].max() + second.clocks["uncertainty_ns"].max()
    assert ((before["wait_ns"] - after["wait_ns"]).abs().dropna() <= uncertain).all()


@pytest.mark.slow_cases("1-none")
@pytest.mark.parametrize("ids", ["none", "comms_id"])
@pytest.mark.parametrize("seed", with_slow([1], [0]))
def test_clocks_that_are_set_otherwise_change_no_match_and_no_wait(ids, seed):
    run = random_run(seed, shape_of(8, ids, drift_ppm=0.0))
    moved = run.calls["rank"].map(dict(enumerate(np.random.default_rng(seed).integers(-(10**9), 10**9, 8).tolist())))
    shifted = run.calls.assign(start_ns=run.calls["start_ns"] + moved, issue_ns=run.calls["issue_ns"] + moved)
    first, second = found_in(run.calls, 8), found_in(shifted, 8)
    assert sum(map(len, sets_of(first.matches) & sets_of(second.matches))) >= 0.999 * len(run.calls)
    table = first.participation.merge(second.participation, on="call_id", suffixes=("", "_moved"))
    assert (table["dur_ns"] == table["dur_ns_moved"]).all()
    uncertain = first.clocks["uncertainty_ns"].max() + second.clocks["uncertainty_ns"].max()
    assert ((table["wait_ns"] - table["wait_ns_moved"]).abs().dropna() <= uncertain).all()


def test_durations_alone_bound_the_wait_from_below():
    # Nobody moves data for longer than the slowest: what a call lasts beyond the shortest is waiting, but for end skew.
    run = random_run(3, shape_of(8, "seq", drift_ppm=0.0))
    found = found_in(run.calls, 8)
    split = found.participation[found.participation["wait_ns"].notna()]
    kinds = split.merge(run.truth[["call_id", "collective"]], on="call_id")
    everybody = kinds[~kinds["collective"].isin(["send", "recv"])]
    slack = 2 * found.clocks["uncertainty_ns"].max() + HARD.end_jitter_ns
    assert ((everybody["wait_clock_free_ns"] - everybody["wait_ns"]).abs() <= slack).all()


@pytest.mark.slow
def test_bounds_of_the_transfer_enclose_it():
    run = random_run(6, shape_of(8, "seq", drift_ppm=0.0, missing=0.0))
    found = found_in(run.calls, 8)
    table = collectives(run.calls, found.matches, found.participation, found.clocks, 8)
    known = table[table["transfer_ns"].notna()]
    assert len(known) > 100
    low, high = known["transfer_low_ns"], known["transfer_high_ns"]
    assert ((low <= known["transfer_ns"]) | (low > high)).all()
    assert (known["transfer_ns"] <= pd.concat([low, high], axis=1).max(axis=1)).all()
