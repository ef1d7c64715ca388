"""What a timeline shows of all ranks together: counters, and facts across the top."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...common.wording import counted
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


def about(tables: Tables, zero_ns: int, end_ns: int, moved: int, notes: tuple[str, ...]) -> Slices:
    """Facts about the whole timeline, shown along all of it."""
    begun, ended = (np.array([time], dtype=np.int64) for time in (zero_ns, end_ns))
    facts: dict[str, Texts | Integers] = {
        "zero_ns": Integers.same(zero_ns),
        "slices_on_further_lanes": Integers.same(moved),
    }
    facts |= {f"note {number}": Texts.same(note, 1) for number, note in enumerate(notes, 1)}
    names = Texts.same(tables.headline or f"{tables.name}: {_counts_from(zero_ns)}", 1)
    return Slices(begun, ended, names, facts).shaded(colours.OF_FACTS)


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
    labels = "rank " + pieces["rank"].astype("string") + ": " + pieces["name"].fillna(pieces["kind"]).astype("string")
    notes: dict[str, Texts | Integers] = {"kind": names_in(pieces["kind"])}
    notes |= {key: integers_in(pieces[key]) for key in ("step", "rank", "activities", "waiting_rank")}
    start_ns = pieces["start_ns"].to_numpy(dtype=np.int64)
    end_ns = start_ns + pieces["dur_ns"].to_numpy(dtype=np.int64)
    return [Track("critical path", Slices(start_ns, end_ns, names_in(labels), notes, shades=shades))]


def _shades_of(kinds: pd.Series[str]) -> tuple[Numbers, tuple[str, ...]]:
    codes, values = pd.factorize(kinds)
    return codes.astype(np.int64), tuple(colours.OF_LINKS[kind] for kind in values)
