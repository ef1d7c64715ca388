"""Real traces as torch 2.14 would write them with `cupti_monitor`: every table is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_checkout import TRACES, needs_shared
from cupti_monitor import convert

from commtrace.analysis.catalog import CATALOG
from commtrace.analysis.core.declaring import InputKind
from commtrace.analysis.errors import NothingMeasured, NotPredictable
from commtrace.analysis.render import as_csv
from commtrace.analysis.results.analysis import Analysis
from commtrace.analysis.results.opening import analyse

pytestmark = needs_shared
TABLES = [entry.name for entry in CATALOG.values() if entry.of is InputKind.run]


def csv_or_why(result: Analysis, name: str) -> str:
    """A table, without the names of files."""
    try:
        table = result.table(name)
    except (NothingMeasured, NotPredictable) as err:
        return str(err)
    return as_csv(name, table[[column for column in table if column != "trace"]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm-v100-w8", "megatron-v100-tp2", "torchrec-v100-w4", "moe-b200-r0of2"])
def test_all_tables_are_those_of_whole_names(tmp_path: Path, name: str) -> None:
    files = sorted((TRACES / name).glob("*.json*"))
    assert sum(convert(path, tmp_path / path.name) for path in files)
    old, new = (analyse(run, details=True) for run in (TRACES / name, tmp_path))
    for table in TABLES:
        assert csv_or_why(new, table) == csv_or_why(old, table), table
