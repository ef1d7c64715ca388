"""The first screens of real and of simulated runs: no two numbers contradict each other, or the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_checkout import SHARED
from reading_screens import contradictions

from commtrace.analysis.recording.options import ReadOptions
from commtrace.analysis.render.screen import Screen
from commtrace.analysis.results.opening import analyse_with
from commtrace.analysis.show.overview import overview

_QUICK = ("ddp-a100-r0of2", "dlrm-v100-w8", "tracelens-bert-h100", "ddp_checkpoint_once", "h_cpu_sync", "k_hang")
_ROOTS = ("traces", "truth", "foresight")
_WIDTH = 80


def _runs() -> list[Path]:
    folders = [path for root in _ROOTS for path in sorted((SHARED / root).glob("*")) if path.is_dir()]
    return [path for path in folders if path.name != "holes"] + sorted((SHARED / "traces" / "holes").glob("*"))


def _param(path: Path) -> object:
    marks = [] if path.name in _QUICK else [pytest.mark.slow]
    return pytest.param(path, id=path.name, marks=marks)


pytestmark = pytest.mark.skipif(not _runs(), reason="no shared runs beside the checkout")


@pytest.mark.parametrize("path", [_param(path) for path in _runs()])
def test_no_two_numbers_contradict_each_other(path: Path) -> None:
    run = analyse_with(path, ReadOptions(details_if_small=True))
    screen = overview(run, Screen(width=_WIDTH))
    assert not contradictions(run, screen, _WIDTH), screen


def _files(path: Path) -> list[Path]:
    return sorted(
        file
        for file in path.iterdir()
        if file.name.endswith((".json", ".json.gz")) and not file.name.startswith(".") and "meta" not in file.name
    )


@pytest.mark.parametrize("path", [_param(path) for path in _runs() if path.is_dir() and len(_files(path)) > 1])
def test_nor_do_they_where_a_rank_has_no_trace(path: Path) -> None:
    """Sizes are those of the ranks seen, and the screen says that there are others."""
    run = analyse_with(_files(path)[1:], ReadOptions(details_if_small=True))
    screen = overview(run, Screen(width=_WIDTH))
    assert not contradictions(run, screen, _WIDTH), screen
    if run.run.missing_ranks and not len(run.hangs):
        assert f"Only {len(run.run.ranks)} of {run.run.world_size} ranks" in " ".join(screen.split()), screen
