"""Ranks that share one GPU: it takes turns between them, which is no error of clocks, and no link is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import MS, Trace

from commtrace import analyse
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.show.first_screen import first_screen

CALLS_PER_TURN = 20


def analysed(folder: Path, uuids: list[str | None]) -> Analysis:
    """Two ranks in 80 all_reduces without a pause, of which in turns one ends 2 ms before the other, then the other."""
    for rank in range(2):
        trace = Trace(rank, 2, groups={"0": [0, 1]}).step(0, 0, 500 * MS)
        for call in range(80):
            late = 2 * MS if (call // CALLS_PER_TURN + rank) % 2 else 0
            trace.nccl("all_reduce", 10 * MS + call * 5 * MS + late, 5 * MS - 10_000, elems=10**7)
        trace.write(folder)
        side = {"rank": rank, "host": "a", "device": {"type": "cuda", "uuid": uuids[rank]}}
        (folder / f"node_{rank}.meta.json").write_text(json.dumps(side))
    return analyse(folder)


@pytest.mark.slow
def test_its_turns_are_no_error_of_clocks(tmp_path: Path) -> None:
    run = analysed(tmp_path, ["GPU-1", "GPU-1"])
    assert run.run.sharing == {0, 1}
    assert run.clocks["offset_ns"].tolist() == [0, 0]
    assert run.clocks["bends"].isna().all()
    assert set(run.clocks["basis"]) == {"all linked ranks ran on a"}
    (note,) = [note for note in run.run.notes if "share" in note]
    assert note.startswith("ranks 0-1 share one GPU, which takes turns between them")
    (rate,) = first_screen(run).rates
    assert rate.beside == ""


@pytest.mark.slow
@pytest.mark.parametrize("uuids", [["GPU-1", "GPU-2"], [None, None]])
def test_other_gpus_have_clocks_and_links_of_their_own(tmp_path: Path, uuids: list[str | None]) -> None:
    run = analysed(tmp_path, uuids)
    assert run.run.sharing == frozenset()
    assert run.clocks["bends"].notna().any()  # that of another GPU may jump
    assert not [note for note in run.run.notes if "share" in note]
    (rate,) = first_screen(run).rates
    assert rate.beside.endswith("of NVLink 4")
