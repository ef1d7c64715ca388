"""Dumps of jobs in which faults were injected: the log beside them says on which ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from beside_checkout import SHARED

from commtrace import cli
from commtrace.analysis.hang.analysis import find_hang

JOBS = sorted(path.parent for path in (SHARED / "flight-recorder").glob("*/fault_injection.log"))

pytestmark = pytest.mark.skipif(not JOBS, reason="no dumps of flight recorders beside the checkout")


@pytest.mark.parametrize("folder", JOBS, ids=lambda folder: folder.name)
def test_the_broken_ranks_are_named_in_the_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [listed] = re.findall(r"^Fault ranks: \[(.*)\]$", (folder / "fault_injection.log").read_text(), re.MULTILINE)
    broken = list(map(int, listed.split(",")))
    hang = find_hang(folder)
    assert sorted(rank for origin in hang.origins for rank in origin.ranks) == broken
    first = f"Ranks {' and '.join(map(str, broken))} are missing from all_to_all number "
    assert hang.answer[0].startswith(first)
    assert len(hang.answer) == 1
    assert cli.main(["hang", str(folder)]) == 1
    assert first in capsys.readouterr().out
