"""Trainings of many kinds on two ranks: what a step is, which ranks are traced, and what is said."""

import json
import re
from collections import Counter

import pytest
from capturing import SCRIPTS, leftovers, metas, names_in_steps, torchrun, trace, traced_steps

# Optimizer steps and calls of gloo in one step of each kind, on each rank.
ONE_STEP = {
    "nanogpt": {"AdamW": 1, "all_reduce": 1},  # in the last of four micro-batches
    # A gather of each layer, forward and backward; gloo has no reduce_scatter of its own. One more is the norm's.
    "fsdp2": {"AdamW": 1, "all_gather": 4, "all_reduce": 3},
    "tensor_parallel": {"SGD": 1, "all_reduce": 1},
    "pipelining": {"Adam": 1, "send": 4, "recv": 4},
    "compiled": {"Adam": 1, "all_reduce": 1},
    "zero": {"ZeroRedundancyOptimizer": 1, "Adam": 1, "all_reduce": 1, "broadcast": 4},
    "gan": {"Adam": 3, "all_reduce": 4},
    "lbfgs": {"LBFGS": 1},  # which evaluates its closure as often as it likes
}


@pytest.mark.slow
def test_a_step_of_each_kind_of_training(tmp_path) -> None:
    done = torchrun(2, SCRIPTS / "kinds.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ONE_STEP)
    for kind, expected in ONE_STEP.items():
        run = tmp_path / kind
        found = metas(run)
        assert sorted(found) == [0, 1]
        for meta in found.values():
            assert (meta["complete"], meta["reason"], len(meta["steps"])) == (True, None, 5), kind
            content = trace(run / meta["traces"][0])
            assert traced_steps(content) == [2, 3]
            for names in names_in_steps(content, ("Optimizer.step#", "gloo:")):
                seen = Counter(re.sub(r"Optimizer\.step#|\.step$|gloo:", "", name) for name in names)
                assert {name: seen[name] for name in expected} == expected, kind
                assert kind == "lbfgs" or seen == expected
        assert found[0]["absent_ranks"] == []
        sizes = [meta["model"]["parameters"] for _, meta in sorted(found.items())]
        assert sizes == {"pipelining": [272, 68], "gan": [17, 17]}.get(kind, [340, 340])
        assert json.loads((run / "run.json").read_text())["backend"] == "gloo"
        assert f"commtrace: done: 2 ranks traced in {run}" in done.stderr
        assert leftovers(run) == []
    assert done.stderr.count("commtrace:") == 2 * len(ONE_STEP) + 1  # of optimizers that take turns
    assert "error" not in done.stderr
    assert "do not share" not in done.stderr
