"""Bounds of a latency hold the true one, and are as narrow as the sizes that ran allow."""

import numpy as np
import pandas as pd
import pytest

from commtrace.analysis.metrics.latency import fitted_latency, latency_bounds

TRUE_NS, NS_PER_BYTE, CALLS, RUNS = 25_000.0, 0.01, 4, 200


def transfers(sizes: list[int], seed: int, noise: float = 0.01) -> "pd.Series[float]":
    """Four calls of each size that take the true latency and their bytes, give or take noise."""
    index = np.repeat(np.array(sizes, dtype=np.float64), CALLS)
    drawn = np.random.default_rng(seed).normal(0, noise, len(index))
    return pd.Series((TRUE_NS + index * NS_PER_BYTE) * np.exp(drawn), index=index)


@pytest.mark.parametrize(
    ("sizes", "widest"),
    [
        ([1 << 20, 8 << 20, 64 << 20], 0.2),
        ([1 << 20, 64 << 20], 0.2),
        ([34_000_000 + number * 100_000 for number in range(12)], 20.0),
    ],
)
def test_a_fit_knows_how_sure_it_is(sizes: list[int], widest: float) -> None:
    """Nineteen in twenty times; sizes that differ by 3 % tell little."""
    fits = [fitted_latency(transfers(sizes, seed)) for seed in range(RUNS)]
    known = [bounds for bounds in fits if bounds is not None]
    assert len(known) == RUNS
    assert sum(low <= TRUE_NS <= high for low, high in known) >= 0.9 * RUNS
    wide = np.median([high - low for low, high in known]) / TRUE_NS
    assert widest / 20 < wide < widest


def test_one_size_tells_nothing() -> None:
    assert fitted_latency(transfers([1 << 20], 0)) is None


def collectives(times: "pd.Series[float]", collective: str, ranks: str) -> pd.DataFrame:
    same = {"collective": collective, "pg_ranks": ranks, "ranks": ranks}
    return pd.DataFrame({"transfer_ns": times.to_numpy(), "size_bytes": times.index.astype("int64"), **same})


def test_what_else_the_ranks_do_bounds_a_latency() -> None:
    """A barrier, or the same among other ranks; under NCCL its own model; and never more than a transfer takes."""
    hosts = dict.fromkeys(range(8), "node0")
    alone = collectives(transfers([32 << 20], 1), "all_gather", "0 1 2 3")
    [bounds] = latency_bounds(alone, hosts, nccl=False).values()
    assert (bounds.low_ns, bounds.of) == (0, "its shortest transfer")
    assert bounds.high_ns == pytest.approx(TRUE_NS + (32 << 20) * NS_PER_BYTE, rel=0.03)
    [bounds] = latency_bounds(alone, hosts, nccl=True).values()
    assert (bounds.high_ns, bounds.of) == (2 * (14_000 + 3 * 3_400), "NCCL's own model")
    small = collectives(transfers([4], 2), "reduce_scatter", "0 1 2 3")
    both = latency_bounds(pd.concat([alone, small]), hosts, nccl=True)
    assert all(bounds.high_ns == pytest.approx(TRUE_NS, rel=0.03) for bounds in both.values())
    others = collectives(transfers([4], 3), "all_gather", "4 5 6 7")
    alike = latency_bounds(pd.concat([alone, others]), hosts, nccl=True)
    assert {bounds.of for bounds in alike.values()} <= {
        "its shortest transfer",
        "the shortest transfer of groups alike",
    }
    assert all(bounds.high_ns == pytest.approx(TRUE_NS, rel=0.03) for bounds in alike.values())
