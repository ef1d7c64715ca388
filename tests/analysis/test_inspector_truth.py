"""Logs of NCCL Inspector from simulated worlds: waits and bandwidths as the truth has them, and as traces give them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from inspector_logs import write_logs
from samples import with_slow
from simulator import PRESETS, Simulated, draw, simulate
from simulator.ops import SYNCHRONISING

from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

_TRUNCATED_NS = 2_000
"""Two durations in whole microseconds."""


def waits(made: Simulated, found: Analysis) -> pd.DataFrame:
    """Wait of every logged call that synchronises: as found, and true; and how much of an end is noise."""
    hardware = made.world.hardware
    true = made.truth.calls.reset_index(drop=True)
    true["collective"] = [numbers[0] for numbers in true["collectives"]]
    true = true.merge(made.truth.collectives[["collective", "op", "pg_ranks"]], on="collective")
    true = true[true["op"].isin(SYNCHRONISING)]
    true["place"] = true.sort_values("collective").groupby(["rank", "op", "pg_ranks"]).cumcount()
    rows = found.participation.merge(found.collectives[["collective_id", "pg_ranks", "seq"]], on="collective_id")
    rows = rows.sort_values("seq")
    rows["place"] = rows.groupby(["rank", "collective", "pg_ranks"]).cumcount()
    true = true.rename(columns={"op": "name", "wait_ns": "true_ns"})
    joined = rows.merge(
        true[["rank", "name", "pg_ranks", "place", "true_ns", "dur_ns"]],
        left_on=["rank", "collective", "pg_ranks", "place"], right_on=["rank", "name", "pg_ranks", "place"],
        suffixes=("", "_true"),
    )  # fmt: skip
    assert (joined["dur_ns"] == joined["dur_ns_true"] // 1000 * 1000).all()
    return joined.assign(noise_ns=hardware.end_noise_us * 1000)


@pytest.mark.slow_cases("straggler-v4.3")
@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
@pytest.mark.parametrize("world", with_slow(["straggler"], ["plain", "sharded", "slow loader", "two hosts", "large"]))
def test_waits_are_the_true_ones(tmp_path, world, version):
    made = simulate(PRESETS[world])
    write_logs(made, tmp_path, version)
    joined = waits(made, analyse(tmp_path))
    known = joined[joined["wait_ns"].notna()]
    assert len(known) > 0.9 * len(joined) > 0
    error = (known["wait_ns"] - known["true_ns"]).astype("float64").abs()
    # Ranks do not end at quite the same time, which is the noise.
    assert error.median() <= _TRUNCATED_NS + known["noise_ns"].iloc[0]
    assert error.quantile(0.99) <= _TRUNCATED_NS + 8 * known["noise_ns"].iloc[0]


@pytest.mark.slow_cases("straggler-v4.3")
@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
@pytest.mark.parametrize("world", with_slow(["straggler"], ["plain", "sharded", "slow loader", "two hosts", "large"]))
def test_bandwidth_is_that_of_the_traces(tmp_path, world, version):
    made = simulate(PRESETS[world])
    made.write(tmp_path / "traces")
    write_logs(made, tmp_path / "logs", version)
    keys = ["pg_ranks", "collective", "size_bytes"]
    columns = [*keys, "calls", "busbw_gb_per_s", "busbw_low_gb_per_s", "busbw_high_gb_per_s"]
    of_traces = analyse(tmp_path / "traces").bandwidth
    of_logs = analyse(tmp_path / "logs").bandwidth
    both = of_logs[columns].merge(of_traces[columns], on=keys, suffixes=("", "_traces"))
    assert len(both) == len(of_logs)
    # Of kernels that were launched before the profiler started, traces do not say how large they are.
    assert (both["calls"] >= both["calls_traces"]).all()
    known = both.dropna()
    assert len(known) > 0
    np.testing.assert_allclose(known["busbw_gb_per_s"], known["busbw_gb_per_s_traces"], rtol=0.04)
    assert (known["busbw_low_gb_per_s"] <= known["busbw_gb_per_s"]).all()
    np.testing.assert_allclose(known["busbw_high_gb_per_s"], known["busbw_gb_per_s"])


def test_the_straggler_is_named_as_in_the_traces(tmp_path):
    made = simulate(PRESETS["straggler"])
    write_logs(made, tmp_path, "v4.3")
    found = analyse(tmp_path)
    shares = found.ranks.set_index("rank")["caused_wait_frac"]
    assert shares.idxmax() == 2
    assert shares[2] > 0.9
    assert "for rank 2" in found.verdict


@pytest.mark.parametrize("number", with_slow([], range(8)))
def test_worlds_drawn_at_random(tmp_path, number):
    made = simulate(draw(number))
    write_logs(made, tmp_path, "v4.3")
    if not any(path.stat().st_size for path in tmp_path.iterdir()):
        pytest.skip("nothing of this world is large enough to be logged")
    joined = waits(made, analyse(tmp_path, keep_going=True))
    known = joined[joined["wait_ns"].notna()]
    late = max((us for _, us in made.world.hardware.late_end_us), default=0.0) * 1000
    error = (known["wait_ns"] - known["true_ns"]).astype("float64").abs()
    assert not len(known) or error.quantile(0.95) <= _TRUNCATED_NS + 8 * known["noise_ns"].iloc[0] + late
