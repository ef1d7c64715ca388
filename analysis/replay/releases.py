"""What each exposed collective waited for before it began, and how much earlier it could have begun.

It begins when the last of three has come: its launch by the host, the end of the one before on its stream, and the end
of what produces its input. Examples: docs/metrics/releases.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from ..core.arrays import Ints
from ..core.intervals import covered, spans
from ..core.schema import Row
from .cycles import ACTIVITY_KEYS, Played
from .edges import ready
from .engine import Playing
from .producers import producers
from .programs import LONG_AGO, NONE

_OF_MEMBER = (
    "row", "start_ns", "exposed_ns", "since_launch_ns", "since_before_ns", "slack_ns", "released_by", "released_name",
)  # fmt: skip


def released_calls(cycles: Sequence[list[Playing]], run: Played) -> pd.DataFrame:
    """One row per exposed call, the longest exposed first, and more columns than `releases_calls` has."""
    names = run.activities["name"]
    rows = [row for members in cycles for member in members for row in _of_member(member, names)]
    released = pd.DataFrame(rows, columns=list(_OF_MEMBER))
    ran = run.activities.iloc[released["row"].to_numpy(dtype=np.int64)][ACTIVITY_KEYS].reset_index(drop=True)
    known = run.calls.drop_duplicates(ACTIVITY_KEYS).merge(
        run.participation[["call_id", "collective_id", "waited_for"]], on="call_id", how="left"
    )
    placed = ran.merge(known, on=ACTIVITY_KEYS, how="left").drop(columns="start_ns")
    table = pd.concat([placed, released], axis=1)
    table["earliest_ns"] = table["start_ns"] - table["slack_ns"]
    return table.sort_values(["exposed_ns", "rank", "start_ns"], ascending=[False, True, True], kind="stable")


def _of_member(member: Playing, names: pd.Series[str]) -> Iterator[Row]:
    program = member.program
    exposed = _exposed(member)
    before, launched = _ready(member)
    source_of = producers(program)
    for node in np.flatnonzero(exposed > 0).tolist():
        start = int(program.start[node])
        source = _producer(member, node, source_of)
        follows = before[node] != LONG_AGO
        at = {
            "host": int(launched[node]),
            "collective" if follows and program.is_comm[node - 1] else "stream": int(before[node]),
            "producer": LONG_AGO if source == NONE else int(program.end[source]),
        }
        # On a stream that computes, the one before made the input.
        if source == NONE and "stream" in at:
            at["producer"], source = at["stream"], node - 1 if follows else NONE
        last = max(at, key=lambda reason: (at[reason], reason == "producer"))
        by = None if at[last] == LONG_AGO else last
        name = {"producer": source, "collective": node - 1, "stream": node - 1}.get(by or "", NONE)
        yield {
            "row": int(program.row[node]),
            "start_ns": start,
            "exposed_ns": int(exposed[node]),
            "since_launch_ns": _since(start, int(launched[node])),
            "since_before_ns": _since(start, int(before[node])),
            "slack_ns": _since(start, at["producer"]),
            "released_by": by,
            "released_name": None if name == NONE else str(names.iloc[program.row[name]]),
        }


def _since(start: int, earlier: int) -> int | None:
    return None if earlier == LONG_AGO else start - earlier


def _ready(member: Playing) -> tuple[Ints, Ints]:
    """End of the one before on the stream, and launch or hand-over by the host, of each activity in ns."""
    program = member.program
    before, launched = ready(program)
    if program.issued_by is not None:
        issued = program.issued_by != NONE
        launched[issued] = program.end[program.issued_by[issued]]
    return before, launched


def _producer(member: Playing, node: int, source_of: dict[int, int]) -> int:
    """The activity on another stream that the collective waited for and that ended last; NONE for none."""
    program = member.program
    candidates = [each for each in member.edges.joins.get(node, []) if not program.is_comm[each]]
    if program.issued_by is not None:
        candidates = [each for each in candidates if each != int(program.issued_by[node])]
    if node in source_of:
        candidates.append(source_of[node])
    return max(candidates, key=lambda each: int(program.end[each])) if candidates else NONE


def _exposed(member: Playing) -> Ints:
    """Exposed time of each communication call, in ns; 0 for other activities."""
    program = member.program
    copies = np.zeros(len(program), dtype=bool) if program.host is None else program.host.is_copy[program.row]
    result = np.zeros(len(program), dtype=np.int64)
    for device in np.unique(program.device):
        here = program.device == device
        comm, computing = here & program.is_comm, here & ~program.is_comm & ~copies
        hidden = covered(
            spans(program.start[computing], program.end[computing]), program.start[comm], program.end[comm]
        )
        result[comm] = program.end[comm] - program.start[comm] - hidden
    return result
