"""The options of reading in docs/api.md, from their entries: `python tests/docs/options_page.py` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
_BEGIN, _END = (
    "<!-- from analysis/recording/options.py: python tests/docs/options_page.py -->\n",
    "<!-- end of options -->\n",
)


def page_with_options(page: str) -> str:
    """The page with the options as they are now."""
    from commtrace.analysis.recording.options import READING_OPTIONS, GivenOptions

    lines = ["| in Python | of commands | what it does |", "|---|---|---|"]
    for name, option in READING_OPTIONS.items():
        own = f"`{name}`" if name in GivenOptions.__annotations__ else ""
        lines.append(f"| {own} | `{option.flag} {option.metavar}".rstrip() + f"` | {option.meaning} |")
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page_with_options(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: options written\n")
