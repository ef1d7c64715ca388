"""Write docs/screens.md: what terminals of 80, 120 and 200 columns show. `python tests/docs/screens_page.py`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "screens.md"

if TYPE_CHECKING:
    from commtrace import Analysis
    from commtrace.analysis.render.screen import Screen

HEAD = """<!-- Generated. Do not edit: run `python tests/docs/screens_page.py`. -->

# What terminals show

Text for people fits the terminal. Where it is narrow, names lose their middle, sentences are wrapped or stand below
their rows, and the columns that matter least are left out and named below the table, as are columns without a value.
Of more than 16 ranks the worst are shown, with minimum, median and maximum of all. `--all` shows everything. In
a pipe or a file tables are as wide as they need to be, and `--format csv` and `json` are always whole.

On a terminal headers are bold and the worst value is red. `NO_COLOR=1` turns both off, `FORCE_COLOR=1` turns them on in
a pipe.
"""


def page() -> str:
    """The page as it should be."""
    from commtrace import analyse, compare
    from commtrace.analysis.show.overview import overview
    from commtrace.analysis.show.two_runs import two_runs

    sides = ("tests/data/nccl-straggler", "tests/data/nccl-two-hosts")
    both = compare(*(ROOT / side for side in sides), workers=1)
    small = analyse(ROOT / "traces/resnet18-ddp-w2", workers=1)
    many = _many_ranks()
    return "\n".join(
        [
            HEAD,
            "## A run on one screen, 80 columns\n",
            _block("commtrace traces/resnet18-ddp-w2", overview(small, _screen(80))),
            "## Two runs on one screen, 80 columns\n",
            _block(f"commtrace compare {' '.join(sides)}", two_runs(both, _screen(80), " ".join(sides))),
            "## 64 ranks, one of them slow, 80 columns\n",
            _block("commtrace ranks traces/pretraining", _table(many, "ranks", 80)),
            "## All the time of a step, 80 columns\n",
            _block("commtrace table account traces/resnet18-ddp-w2", _table(small, "account_parts", 80)),
            "## Bandwidth, 120 and 200 columns\n",
            *(
                _block(
                    f"commtrace bandwidth traces/resnet18-ddp-w2    # {width} columns",
                    _table(small, "bandwidth", width),
                )
                for width in (120, 200)
            ),
        ]
    )


def _many_ranks() -> Analysis:
    """A simulated run of 8 hosts with 8 GPUs each."""
    from simulator import PRESETS, simulate

    from commtrace import analyse

    with tempfile.TemporaryDirectory() as folder:
        simulate(replace(PRESETS["straggler"], hosts=8, gpus=8)).write(Path(folder))
        found = analyse(folder, workers=1)
        found.table("ranks")
        return found


def _table(analysis: Analysis, name: str, width: int) -> str:
    from commtrace.analysis.render import as_text

    return as_text(name, analysis.table(name), _screen(width))


def _screen(width: int) -> Screen:
    from commtrace.analysis.render.screen import Screen

    return Screen(width=width, worst_only=True)


def _block(command: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```text\n$ {command}\n{lines}\n```\n"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]  # a script's own folder is on the path, the project is not
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
