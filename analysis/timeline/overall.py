"""What a timeline shows of all ranks together: counters, and facts across the top."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from ...common.wording import counted
from ..metrics.verdicts.of_idle import IDLE_CAUSES
from . import colours
from .arrows import Arrows
from .counters import bus_bandwidths, busy, ranks_waiting
from .slices import Group, Integers, Numbers, Slices, Texts, Track
from .tables import Tables, integers_in, names_in


def counters_and_notes(tables: Tables, arrows: Arrows) -> tuple[Group, tuple[str, ...]]:
    """The counters of all ranks, and the notes of the timeline with one on what they leave out."""
    member = tables.collectives["collective_id"].isin(arrows.calls["collective_id"])
    drawn = tables.collectives[member]
    counters = Group("counters", (*ranks_waiting(arrows.calls), *bus_bandwidths(busy(drawn))))
    return counters, (*tables.notes, *_quiet(drawn))


def has_content(group: Group) -> bool:
    """Whether anything is drawn: counters of runs without waiting have no point."""
    return any(len(track.content) for track in group.all_tracks())


def title(tables: Tables, zero_ns: int, notes: tuple[str, ...]) -> str:
    """Facts about the whole timeline, in words."""
    return ". ".join([*filter(None, [tables.headline]), _counts_from(zero_ns), *notes])


def about(tables: Tables, zero_ns: int, end_ns: int, notes: tuple[str, ...]) -> Slices:
    """The verdict and its reasons, and what is not drawn, shown along the whole timeline.

    Without a shade, which the viewer would show beside them: facts need no colour.
    """
    begun, ended = (np.array([time], dtype=np.int64) for time in (zero_ns, end_ns))
    said = {**tables.reasons, "0 is at (ns since 1970)": f"{zero_ns:,}"}
    facts: dict[str, Texts | Integers] = {name: Texts.same(text, 1) for name, text in said.items() if text}
    facts |= {f"note {number}": Texts.same(note, 1) for number, note in enumerate(notes, 1)}
    names = Texts.same(tables.headline or f"{tables.name}: {_counts_from(zero_ns)}", 1)
    return Slices(begun, ended, names, facts)


_IN_LEGEND = ("sync", "alloc", "data", "operator", "outside", "launching", "queued")
_LEGEND: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compute", colours.OF_COMPUTE),
    ("copy", colours.OF_COPYING),
    ("waiting for another rank", (colours.OF_WAITS,)),
    ("transfer", (colours.OF_TRANSFERS,)),
    ("a call", (colours.OF_CALLS,)),
    ("late, up to its arrival", (colours.OF_LATENESS,)),
    ("CPU blocked", (colours.OF_BLOCKING,)),
    *((f"idle: {IDLE_CAUSES[f'{cause}_ns']}", (colours.OF_IDLE[cause],)) for cause in _IN_LEGEND),
    ("idle", (colours.OF_IDLE["idle"],)),
)
"""What colours mean: a shade for each, or several that look alike."""


def legend(zero_ns: int, end_ns: int, used: Collection[str]) -> Track:
    """What the `used` shades mean, side by side along the whole timeline."""
    entries = [(name, shades[0]) for name, shades in _LEGEND if not set(shades).isdisjoint(used)]
    ends = zero_ns + (end_ns - zero_ns) * np.arange(len(entries) + 1, dtype=np.int64) // len(entries)
    names, shades = (Texts(np.arange(len(entries), dtype=np.int64), texts) for texts in zip(*entries, strict=True))
    return Track("legend", Slices(ends[:-1], ends[1:], names, shades=shades), "What colours mean; no times.")


def _counts_from(zero_ns: int) -> str:
    return f"0 here is {zero_ns:,} ns on the common clock"


def _quiet(collectives: pd.DataFrame) -> list[str]:
    """A sentence on the groups whose bandwidth is left out; none if there are none."""
    known = collectives[collectives["busbw_gb_per_s"].notna() & collectives["last_start_ns"].notna()]
    groups = [len(each[["process_group", "pg_ranks"]].drop_duplicates()) for each in (known, busy(known))]
    quiet = groups[0] - groups[1]
    return [f"no bus bandwidth of {counted(quiet, 'process group')} that hardly moved data"] if quiet else []


def path_lines(tables: Tables) -> list[Track]:
    """The critical path over all ranks, piece by piece; empty if not known."""
    if tables.path is None or not len(pieces := tables.path[tables.in_steps(tables.path)]):
        return []
    shades = Texts(*_shades_of(pieces["kind"]))
    names = pieces["name"].fillna(pieces["kind"]).astype("string")
    labels = names + " (rank " + pieces["rank"].astype("string") + ")"  # of which the viewer cuts the end
    notes: dict[str, Texts | Integers] = {"kind": names_in(pieces["kind"])}
    notes |= {key: integers_in(pieces[key]) for key in ("step", "rank", "activities", "waiting_rank")}
    start_ns = pieces["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + pieces["dur_ns"].to_numpy(dtype=np.int64)
    return [Track("critical path", Slices(start_ns, end_ns, names_in(labels), notes, shades=shades))]


def _shades_of(kinds: pd.Series[str]) -> tuple[Numbers, tuple[str, ...]]:
    codes, values = pd.factorize(kinds)
    return codes.astype(np.int64), tuple(colours.OF_LINKS[kind] for kind in values)
