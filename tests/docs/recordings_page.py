"""The columns in docs/recordings.md, as they are declared. `python tests/docs/recordings_page.py` writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.analysis.core.tables.events import EventColumn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recordings.md"
_BEGIN, _END = "<!-- columns: python tests/docs/recordings_page.py -->\n", "<!-- end of columns -->\n"


def page_with_columns(page: str) -> str:
    """The page with the columns as they are now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{columns()}\n{_END}{after}"


def columns() -> str:
    """A row for each column that recordings have, of events and of the arguments of collectives."""
    from commtrace.analysis.core.tables.events import COMM_ARGUMENTS, EVENT_SORTS

    lines = ["| sort | column | holds | in Kineto's event | in tables | meaning |", "|---|---|---|---|---|---|"]
    for sort in (*EVENT_SORTS.values(), COMM_ARGUMENTS):
        for one in sort.held:
            told = (f"`{sort.name}`", f"`{one.name}`", _held(one), _written(one), _shown(one), one.meaning)
            lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _held(column: EventColumn) -> str:
    if column.texts is not None:
        return f"place in `{column.texts}`"
    return {"time": "us since the zero", "duration": "us"}.get(str(column.held), str(column.held))


def _written(column: EventColumn) -> str:
    places = [f"`args[{key!r}]`".replace("'", '"') for key in column.keys]
    return ", else ".join([*places, *([f"`{column.field}`"] if column.field else [])])


def _shown(column: EventColumn) -> str:
    return f"`{column.shown}`, {column.dtype}" if column.shown else ""


if __name__ == "__main__":
    PAGE.write_text(page_with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: columns written\n")
