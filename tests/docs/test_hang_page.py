"""docs/hang.md shows what the command prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "hang.md"
OUTPUT = re.compile(r"<!-- output of: commtrace hang (\S+) -->\n```text\n(.*?)```\n", re.DOTALL)


def with_output(page: str) -> str:
    """The page as it should be."""
    from dataclasses import replace

    from commtrace.analysis.hang.analysis import find_hang
    from commtrace.analysis.hang.report import hang_report
    from commtrace.analysis.render.screen import PAPER

    def shown(block: re.Match[str]) -> str:
        text = hang_report(find_hang(ROOT / block[1]), "table", replace(PAPER, width=110))
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        return f"<!-- output of: commtrace hang {block[1]} -->\n```text\n{lines}\n```\n"

    return OUTPUT.sub(shown, page)


def test_the_page_shows_what_is_printed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert OUTPUT.search(page)
    assert with_output(page) == page, "docs/hang.md is out of date: run python tests/docs/test_hang_page.py"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(with_output(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
