"""docs/run-directory.md is what the records of the contract say."""

import runpy
from pathlib import Path

GENERATOR = runpy.run_path(str(Path(__file__).with_name("contract_page.py")))


def test_the_page_is_what_the_records_say() -> None:
    current = GENERATOR["PAGE"].read_text(encoding="utf-8")
    assert GENERATOR["page"]() == current, (
        "docs/run-directory.md is out of date: run python tests/docs/contract_page.py"
    )
