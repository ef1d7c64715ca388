"""Matching of all shared sets: what is certain is possible, and what is not certain says why."""

from itertools import chain

import pytest
from beside_checkout import SHARED, TRACES, needs_shared
from samples import a_sample

from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared

SETS = sorted(path for kind in ("traces", "truth", "foresight") for path in (SHARED / kind).glob("*") if path.is_dir())
SEVERAL = [path for path in SETS if len(list(chain(path.glob("*.json"), path.glob("*.json.gz")))) > 1]


@pytest.mark.quick_cases("torchrec-resnet-w2")
@pytest.mark.parametrize("path", a_sample(SEVERAL, 8), ids=lambda path: path.name)
def test_every_doubt_has_a_reason(path):
    if path.name == "holes":
        pytest.skip("files of several jobs")
    found = analyse(path, workers=1)
    for table in (found.matches, found.collectives):
        doubtful = ~table["certain"].fillna(False).astype(bool)
        assert table["note"][doubtful].notna().all()


@pytest.mark.slow
def test_equal_groups_of_the_same_ranks_are_certain():
    """DeepEP in a CUDA graph: 116 calls on each of eight ranks, two groups of all of them."""
    found = analyse(TRACES / "lightllm-sglang-427996", workers=1)
    assert found.collectives["certain"].tolist() == [True] * 116
    assert found.collectives["complete"].all()
    assert (found.verdicts["verdict"] != "inconclusive").all()
