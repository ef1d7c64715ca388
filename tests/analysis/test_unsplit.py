"""What is advised where calls could not be split into wait and transfer: only what would help."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from commtrace import analyse

RUN = Path(__file__).resolve().parents[1] / "data" / "nccl-rooted"


@pytest.mark.slow
@pytest.mark.parametrize("has_steps", [True, False])
def test_whole_steps_are_asked_for_only_where_calls_lie_in_none(tmp_path: Path, has_steps: bool) -> None:
    """Uneven all_to_alls whose other side no trace shows for certain, in steps of which all is traced."""
    for path in RUN.iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if not has_steps:
            trace["traceEvents"] = [e for e in trace["traceEvents"] if "ProfilerStep" not in str(e.get("name"))]
        (tmp_path / path.name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    said = " ".join(analyse(tmp_path, details=True).verdicts["because"])
    assert "no call of another rank fits them for certain" in said
    assert ("capture whole steps" in said) == (not has_steps)
