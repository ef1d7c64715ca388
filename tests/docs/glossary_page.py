"""docs/glossary.md from analysis/glossary.py: `python tests/docs/glossary_page.py` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "glossary.md"

_INTRO = """<!-- Generated from analysis/glossary.py. Do not edit: run `python tests/docs/glossary_page.py`. -->

# Glossary

The words of tables, notes and verdicts. `commtrace explain TERM` prints the same; it knows tables and columns as well.
"""


def page() -> str:
    """The whole of docs/glossary.md."""
    from commtrace.analysis.glossary import GLOSSARY

    return _INTRO + "".join(
        f"\n## {name}\n\n{term.meaning}{_also(term.synonyms)}"
        f" More: [{_heading(term.section)}](metrics/{term.section}).\n"
        for name, term in GLOSSARY.items()
    )


def _also(synonyms: tuple[str, ...]) -> str:
    columns = [f"`{word}`" for word in synonyms if "_" in word]
    return f" Columns: {', '.join(columns)}." if columns else ""


def _heading(section: str) -> str:
    sys.path.insert(0, str(Path(__file__).parent))
    from table_page import headings

    return headings()[section]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
