"""All the time of a device adds up, on real traces of others, and is for those for whom it was."""

from collections import Counter

import pytest
from beside_checkout import TRACES, needs_shared

from commtrace.analysis.core.schema import records
from commtrace.analysis.results.opening import analyse
from commtrace.analysis.tables.account import WINDOW_PARTS

pytestmark = needs_shared

SETS = sorted(path for path in TRACES.iterdir() if path.is_dir()) if TRACES.is_dir() else []


@pytest.mark.quick_cases(
    "holes-True",
    "moe-b200-r0of2-False",
    "nanogpt-2026-02-False",
    "tracelens-bert-h100-True",
    "tracelens-bert-h100-False",
    "tracelens-falcon-mi300-True",
    "tracelens-falcon-mi300-False",
    "tracelens-vllm-False",
)
@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_every_set_adds_up(folder, details):
    found = analyse(folder, details=details, workers=1)
    for account, keys in ((found.account, ["rank", "device"]), (found.account_steps, ["rank", "device", "step"])):
        waits = found.account_waits.dropna(subset=["step"] if "step" in keys else [])
        if "step" not in keys and found.counted_steps:
            waits = waits[waits["step"].isin(found.counted_steps)]
        for_whom = waits.groupby(keys)["exposed_wait_ns"].sum().to_dict()
        expected: Counter[tuple[object, ...]] = Counter()
        for row in records(account):
            assert sum(row[part] or 0 for part in WINDOW_PARTS) == row["window_ns"]
            assert min(row[part] or 0 for part in WINDOW_PARTS) >= 0
            expected[tuple(row[key] for key in keys)] += row["exposed_wait_ns"] or 0
        assert for_whom == +expected


@pytest.mark.slow
def test_who_waits_for_the_late_rank():
    (wait,) = [part for part in analyse(TRACES / "nanogpt-h100-w8").typical_parts if part.column == "exposed_wait_ns"]
    assert wait.waited_for[0].rank == 1
    assert wait.waited_for[0].mean_ns > 0.95 * wait.mean_ns
    assert min(wait.of_ranks, key=lambda rank: wait.of_ranks[rank]) == 1


@pytest.mark.slow
def test_memory_freed_and_allocated_is_the_largest_part():
    parts = analyse(TRACES / "torchrec-v100-w4", details=True).typical_parts
    assert parts[0].column == "idle_alloc_ns"
    assert 0.35 < parts[0].share_frac < 0.4
