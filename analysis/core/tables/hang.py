"""The tables of a hang, from flight recorder dumps. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

_GROUP = ("string", "name of the process group")
_ABOUT = ("string", "its description, as whoever made the group gave it; NA for none")
_MEMBERS = ("string", "its global ranks, as in 0-3, 8; of gloo, where dumps do not say them, those that left a call")
_KIND = ("string", "what was called, in torch's words: all_reduce, all_gather, send, recv, coalesced, ...")
_SEQ = ("int64", "its number in the group; sends and receives are counted apart, by each rank for itself")

HANG_ORIGINS = Schema("hang_origins", "set of ranks at which waiting ends: they wait for nobody, others for them", {
    "ranks": ("string", "these ranks, as in 9, 14"),
    "why": (
        "string",
        (
            "missing, no dump, left behind, mismatch, not begun, circle or all there: "
            "what that means stands in the page on hangs"
        ),
    ),
    "process_group": _GROUP,
    "description": _ABOUT,
    "pg_ranks": _MEMBERS,
    "collective": _KIND,
    "seq": _SEQ,
    "waiting": ("string", "ranks that wait in it"),
    "waiting_ranks": ("int64", "ranks that wait because of these, directly or by way of others"),
    "since_ns": ("Int64", "when the first of those that wait issued it: Unix time, by that rank's clock"),
    "last_collective": ("string", "what the first of these ranks issued last; NA if its dump has nothing"),
    "last_process_group": ("string", "in which group"),
    "last_seq": ("Int64", "under which number"),
    "last_ns": ("Int64", "when: Unix time, by its clock"),
    "code": ("string", "where in its code, outside torch; NA without stacks"),
})  # fmt: skip

HANG_WAITS = Schema("hang_waits", "collective, or transfer between two ranks, in which ranks wait", {
    "process_group": _GROUP,
    "description": _ABOUT,
    "pg_ranks": _MEMBERS,
    "collective": _KIND,
    "seq": _SEQ,
    "since_ns": ("Int64", "when the first rank issued it: Unix time, by its clock"),
    "waiting": ("string", "ranks that issued it and have not finished it"),
    "missing": ("string", "ranks that have not issued it; NA for none, as in the next columns"),
    "without_dump": ("string", "ranks of which there is no dump"),
    "behind": ("string", "ranks that still wait for an earlier collective of the group"),
    "odd": ("string", "ranks that called something else under this number, or diverged before"),
    "not_begun": ("string", "ranks that issued it, but whose devices have not begun it, as those of others have"),
    "done": ("string", "ranks that have finished it"),
    "unsure": ("string", "those of `missing` whose dumps do not show the group, so that this is concluded, not seen"),
})  # fmt: skip

HANG_POSITIONS = Schema("hang_positions", "process group, and ranks of it that stand at the same place", {
    "process_group": _GROUP,
    "description": _ABOUT,
    "pg_ranks": _MEMBERS,
    "ranks": ("string", "the ranks that stand there"),
    "state": ("string", "waits, missing, behind, no dump, no record (the dump does not show the group), or idle"),
    "last_done": ("Int64", "number of the last collective that they finished"),
    "last_started": ("Int64", "of the last one that their devices began; NA where the recorder does not see it"),
    "last_issued": ("Int64", "of the last one that they issued"),
    "known_by": (
        "string",
        "calls: the dump holds them; numbers: it holds numbers of the group only; NA if it holds neither",
    ),
})  # fmt: skip

HANG_MISMATCHES = Schema("hang_mismatches", "first number of a group under which ranks called different things", {
    "process_group": _GROUP,
    "description": _ABOUT,
    "seq": _SEQ,
    "ranks": ("string", "ranks that called this"),
    "called": ("string", "collective, dtype and elements, as far as all ranks have to agree on them"),
})  # fmt: skip

HANG_STACKS = Schema("hang_stacks", "stack that ranks have in common, and call at which they stand", {
    "ranks": ("string", "ranks with this stack"),
    "state": ("string", "waits: in this call; last: it is what they issued last, and are named for"),
    "process_group": _GROUP,
    "collective": _KIND,
    "seq": _SEQ,
    "stack": ("string", "function (file:line), innermost first, of all frames outside torch, or of all"),
})  # fmt: skip
