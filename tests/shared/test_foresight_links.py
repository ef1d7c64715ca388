"""Runs with other links: what is predicted against the same job simulated again, by another simulator than ours."""

from functools import cache
from typing import Any

import pandas as pd
import pytest
from beside_checkout import SHARED

from commtrace.analysis.replay.slow_links import slow_groups
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

FORESIGHT = SHARED / "foresight"
MOST_WIDE = 0.2
pytestmark = pytest.mark.skipif(not FORESIGHT.is_dir(), reason="no runs with a known what-if beside the checkout")

TRUE_US: list[tuple[str, dict[str, Any], float]] = [
    ("moe_like_sizes", {"links": 2}, 8_544),
    ("moe_like_sizes", {"links": 0.5}, 17_315),
    ("moe_like_sizes", {"latency": 2}, 11_256),
    ("pp_two_hosts", {"links": 2}, 13_081),
    ("pp_two_hosts", {"links": 0.5}, 14_490),
    ("tp_slow_group", {"links_as_others": "slow"}, 7_707),
]


@cache
def detailed(name: str) -> Analysis:
    return analyse(FORESIGHT / name, details=True, workers=1)


@pytest.mark.quick_cases("moe_like_sizes-change2-11256")
@pytest.mark.parametrize(("name", "change", "true_us"), TRUE_US)
def test_the_true_step_is_as_predicted(name: str, change: dict[str, Any], true_us: float) -> None:
    [row] = detailed(name).predict(change).to_dict("records")
    # The first step of a trace begins with its mark here, and with its first kernel where the truth was measured.
    assert row["low_ns"] * 0.998 <= 1e3 * true_us <= row["high_ns"] * 1.002
    assert row["high_ns"] - row["low_ns"] <= MOST_WIDE * 1e3 * true_us
    assert pd.isna(row["step_ns"]) or row["step_ns"] == pytest.approx(1e3 * true_us, rel=0.03)


@pytest.mark.slow
def test_only_the_slow_group_is_named() -> None:
    slow = {folder.name: slow_groups(analyse(folder, workers=1).links) for folder in sorted(FORESIGHT.glob("*/"))}
    [links] = slow.pop("tp_slow_group")
    assert (links.label, links.ranks) == ("links of ranks 4-7 (node1)", (4, 5, 6, 7))
    assert links.slower_frac > 1.5 > 10 * links.noise_frac
    assert not any(slow.values())
