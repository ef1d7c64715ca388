"""A real mixture of experts over gloo, with uneven splits: the table says what its ranks know of themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from capturing import SCRIPTS, torchrun
from samples import with_slow

from commtrace import Analysis, analyse
from commtrace.analysis.core.schema import records

pytest.importorskip("torch")
HOT = 1


@pytest.fixture(scope="module", params=with_slow([2], [4]))
def routed(request, tmp_path_factory) -> tuple[Analysis, dict[int, Any]]:
    folder: Path = tmp_path_factory.mktemp("experts")
    done = torchrun(request.param, SCRIPTS / "routed_experts.py", folder)
    assert done.returncode == 0, done.stderr
    known = {rank: json.loads((folder / f"known_{rank}.txt").read_text()) for rank in range(request.param)}
    return analyse(folder), known


def test_tokens_are_those_that_were_sent(routed):
    found, known = routed
    told = {
        (step, layer, rank): (sum(sent), sum(got))
        for rank, of in known.items()
        for step, layer, sent, got in of["rows"]
    }
    rows = records(found.experts)
    assert len(rows) == 3 * 2 * len(known)
    for row in rows:
        at = row["step"], row["layer"], row["rank"]
        assert (row["sent_tokens"], row["received_tokens"]) == told[at]
        every = [told[row["step"], row["layer"], rank][1] for rank in known]
        assert row["imbalance_factor"] == pytest.approx(max(every) * len(every) / sum(every))
        assert row["passes"] == 2
        assert row["note"] is None


def test_the_hot_rank_is_named_in_each_layer(routed):
    found, _ = routed
    table = found.experts_layers
    assert table["layer"].tolist() == [0, 1]
    assert set(table["hot_rank"]) == {HOT}
    assert (table["hot_factor"] > 1.2).all()
    assert (table["wait_combine_ns"] > table["wait_dispatch_ns"] / 4).all()


@pytest.mark.alone
def test_experts_take_as_long_as_their_ranks_measured(routed):
    """What ranks measure includes Python between operators; more ranks than cores wait for one behind that as well."""
    found, known = routed
    most = 0.15 if len(known) <= (os.cpu_count() or 1) else 0.5
    shown = found.experts.groupby("rank")["expert_ns"].sum() / 1e9
    for rank, of in known.items():
        measured = sum(took for at, took in of["took_s"].items() if int(at.split()[0]) >= 1)
        assert shown[rank] == pytest.approx(measured, rel=most)
