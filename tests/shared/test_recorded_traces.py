"""Real traces and their recordings: the same tables, and the sizes that docs/recordings.md states."""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_checkout import SHARED

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import NothingMeasured, NotPredictable
from commtrace.analysis.recording.compression import unpacked_bytes
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

FOLDER = SHARED / "traces"
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]
SETS = sorted(path.name for path in FOLDER.glob("*-*")) if FOLDER.exists() else []
NAMES_ARE_MOST_BYTES = 3_000_000

pytestmark = pytest.mark.skipif(not SETS, reason="no shared traces beside the checkout")


def csv_or_why(result: Analysis, name: str) -> str:
    """A table, without the names of files."""
    try:
        table = result.table(name)
    except (NothingMeasured, NotPredictable) as err:
        return str(err)
    return as_csv(name, table[[column for column in table if column != "trace"]])


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS[::2])
def test_all_tables_are_the_same(tmp_path: Path, name: str) -> None:
    small = tmp_path / name
    assert main(["pack", "-o", str(small), str(FOLDER / name)]) == 0
    there, here = analyse(FOLDER / name, details=True), analyse(small, details=True)
    for table in TABLES:
        assert csv_or_why(here, table) == csv_or_why(there, table), table


@pytest.mark.quick_cases("tracelens-vllm")
@pytest.mark.parametrize("name", SETS)
def test_tables_without_operators_are_the_same(tmp_path: Path, name: str) -> None:
    small = tmp_path / name
    assert main(["pack", "--no-details", "-o", str(small), str(FOLDER / name)]) == 0
    there, here = analyse(FOLDER / name, details=False), analyse(small)
    for table in ("breakdown", "breakdown_steps", "calls", "collectives", "participation", "bandwidth", "kernels"):
        assert csv_or_why(here, table) == csv_or_why(there, table), table
    for trace in (FOLDER / name).glob("*.json.gz"):
        size = (small / trace.name.replace(".json.gz", ".ctrace")).stat().st_size
        if unpacked_bytes(trace) > NAMES_ARE_MOST_BYTES:
            assert size < unpacked_bytes(trace) / 150
            assert size < trace.stat().st_size / 10
