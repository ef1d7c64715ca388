"""docs/predict.md with what the command prints: `python tests/docs/predict_page.py` writes it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "predict.md"
_BEGIN, _END = "<!-- output: python tests/docs/predict_page.py -->\n", "<!-- end of output -->\n"
_OPTIONS, _OPTIONS_END = "<!-- options: python tests/docs/predict_page.py -->\n", "<!-- end of options -->\n"


def page_as_printed(page: str) -> str:
    """The page with the table as it is now, without what it assumes."""
    from commtrace.cli import main

    shown = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(shown)) as out, redirect_stderr(io.TextIOWrapper(io.BytesIO())):
        main(["predict", "--format", "markdown", str(ROOT / "tests/data/nccl-straggler")])
        out.flush()
        lines = shown.getvalue().decode().splitlines()
    table = "".join(f"{line.rpartition('|')[0].rpartition('|')[0]}|\n" for line in lines if line)
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table}\n{_END}{rest.partition(_END)[2]}"


def page_with_options(page: str) -> str:
    """The page with every change that can be asked for, by what help says of it."""
    from commtrace.analysis.replay.changes import OPTIONS

    lines = ["| option | what it does |", "|---|---|"]
    for option in OPTIONS.values():
        value = (option.metavar or "|".join(option.choices)).replace("|", "\\|")
        lines.append(f"| `{option.asked(value)}` | {option.help} |")
    before, _, rest = page.partition(_OPTIONS)
    return f"{before}{_OPTIONS}\n" + "\n".join(lines) + f"\n\n{_OPTIONS_END}{rest.partition(_OPTIONS_END)[2]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page_with_options(page_as_printed(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: output written\n")
