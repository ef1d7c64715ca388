"""Rows of the tables about a hang."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ...common.wording import ranges_of
from ..core.schema import Row
from ..formats.flight_recorder.dump import Call, Dump, Frame
from .groups import JobGroup, Standing
from .mismatches import Mismatch
from .origins import HangOrigin
from .waits import Wait

_OF_TORCH = ("/torch/", "/torch_npu/", "<frozen", "<string>")
_OF_PYTHON = re.compile(r"/lib(64)?/python3\.\d+/(?!(site|dist)-packages/)")
_LISTED = ("waiting", "missing", "without_dump", "behind", "odd", "not_begun", "done", "unsure")


def origin_rows(origins: Sequence[HangOrigin], dumps: Mapping[int, Dump], waiting: Sequence[int]) -> list[Row]:
    """Rows of `hang_origins`; `waiting` is the number of ranks that wait because of each."""
    rows = []
    for origin, count in zip(origins, waiting, strict=True):
        dump = dumps.get(origin.ranks[0])
        last = None if dump is None else dump.last
        group = None if dump is None else dump.last_group
        rows.append(
            {
                "ranks": every_range(origin.ranks),
                "why": origin.why.value,
                **_call_columns(origin.wait),
                "waiting": every_range(origin.wait.waiting),
                "waiting_ranks": count,
                "since_ns": origin.wait.since_ns,
                "last_collective": last and last.kind,
                "last_process_group": group and group.name,
                "last_seq": last and last.seq,
                "last_ns": (last and last.created_ns) or None,
                "code": own_code(last),
            }
        )
    return rows


def wait_rows(waits: Sequence[Wait], origins: Sequence[HangOrigin]) -> list[Row]:
    """Rows of `hang_waits`, the clearest first."""
    return [
        _call_columns(wait)
        | {"since_ns": wait.since_ns}
        | {name: every_range(getattr(wait, name)) or None for name in _LISTED}
        for wait in _clearest_first(waits, origins)
    ]


def _clearest_first(waits: Sequence[Wait], origins: Sequence[HangOrigin]) -> list[Wait]:
    """Sort waits: first those that blame only named ranks, and most of them."""
    named = {rank for origin in origins for rank in origin.ranks}

    def order(wait: Wait) -> tuple[bool, int, int, int]:
        blamed = {*wait.blamed, *wait.left_behind}
        tells_others = not blamed or bool(blamed - named)
        return tells_others, -len(named & blamed), -len(wait.waiting), wait.since_ns or 0

    return sorted(waits, key=order)


def position_rows(groups: Sequence[JobGroup], waits: Sequence[Wait], dumps: Mapping[int, Dump]) -> list[Row]:
    """Rows of `hang_positions`, for groups in which a rank waits in a collective."""
    of_group: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.peers is None:
            of_group[id(wait.group)].append(wait)
    rows = []
    for group in groups:
        alike: dict[tuple[str, tuple[int | None, ...], str | None], list[int]] = defaultdict(list)
        for rank in group.members if id(group) in of_group else ():
            position = group.positions.get(rank)
            numbers = (position.done, position.started, position.issued) if position else (None, None, None)
            state = _state(rank, of_group[id(group)], position, rank in dumps)
            alike[(state, numbers, _known_by(position))].append(rank)
        for (state, (done, started, issued), known_by), ranks in alike.items():
            rows.append(
                _group_columns(group)
                | {
                    "ranks": every_range(sorted(ranks)),
                    "state": state,
                    "last_done": done,
                    "last_started": started,
                    "last_issued": issued,
                    "known_by": known_by,
                }
            )
    return rows


def mismatch_rows(mismatches: Sequence[tuple[JobGroup, Mismatch]]) -> list[Row]:
    """Rows of `hang_mismatches`."""
    return [
        {
            "process_group": group.name,
            "description": group.about or None,
            "seq": mismatch.seq,
            "ranks": every_range(ranks),
            "called": what,
        }
        for group, mismatch in mismatches
        for what, ranks in mismatch.called
    ]


def stack_rows(origins: Sequence[HangOrigin], waits: Sequence[Wait], dumps: Mapping[int, Dump]) -> list[Row]:
    """Rows of `hang_stacks`: where waiting ranks stand, and where named ranks stood last."""
    alike: dict[tuple[str, str, str, int, tuple[Frame, ...]], set[int]] = defaultdict(set)
    for rank in sorted({rank for origin in origins for rank in origin.ranks}):
        dump = dumps.get(rank)
        if dump is not None and dump.last is not None and dump.last.frames and dump.last_group is not None:
            last = dump.last
            alike["last", dump.last_group.name, last.kind, last.seq, last.frames].add(rank)
    for wait in _clearest_first(waits, origins):
        for rank, call in wait.waiting.items():
            if call.frames:
                alike["waits", wait.group.name, call.kind, call.seq, call.frames].add(rank)
    return [
        {
            "ranks": every_range(sorted(ranks)),
            "state": state,
            "process_group": group,
            "collective": kind,
            "seq": seq,
            "stack": " < ".join(map(_frame_text, _own_frames(frames) or frames)),
        }
        for (state, group, kind, seq, frames), ranks in alike.items()
    ]


def own_code(call: Call | None) -> str | None:
    """The line outside torch that issued a call: `step (train.py:31)`; None without a stack."""
    frames = () if call is None else call.frames
    shown = _own_frames(frames) or list(frames)
    return _frame_text(shown[0]) if shown else None


def every_range(ranks: Collection[int]) -> str:
    """Format all ranks: `0-3, 8`."""
    return ranges_of(sorted(ranks), None)


def _own_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Frames outside torch and Python's standard library."""
    return [f for f in frames if not any(mark in f[1] for mark in _OF_TORCH) and not _OF_PYTHON.search(f[1])]


def _frame_text(frame: Frame) -> str:
    function, file, line = frame
    return f"{function} ({file}:{line})"


def _group_columns(group: JobGroup) -> Row:
    return {
        "process_group": group.name,
        "description": group.about or None,
        "pg_ranks": every_range(group.members),
    }


def _call_columns(wait: Wait) -> Row:
    return _group_columns(wait.group) | {"collective": wait.kind, "seq": wait.seq}


def _state(rank: int, waits: Sequence[Wait], position: Standing | None, has_dump: bool) -> str:
    if not has_dump:
        return "no dump"
    for wait in waits:
        if rank in wait.waiting:
            return "waits"
    for wait in waits:
        for state in ("missing", "behind"):
            if rank in getattr(wait, state):
                return state
    return "no record" if position is None else "idle"


def _known_by(position: Standing | None) -> str | None:
    if position is None:
        return None
    return "numbers" if position.by_status else "calls"
