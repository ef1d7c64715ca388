"""Join parts of a file that several processes read, to the result of a single process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import msgspec

from ...core.tables.events import EVENT_SORTS
from ...recording.recording import Columns, Events, latest, with_unread
from ...recording.values import MISSING
from .stream import Surrounding


class Part(msgspec.Struct):
    """The content of a span of a file's events. For the last three fields see SpanStream and EventStream."""

    events: Events
    with_operators: bool
    surrounding: Surrounding
    began_at: int | None
    ended_at: int | None
    state: tuple[int, ...]


class Joining:
    """The events of all parts of a file, added in order. The memory of each part is freed at once."""

    def __init__(self) -> None:
        self.parts = 0
        self.with_operators = False
        self.surrounding: Surrounding | None = None
        self._is_gapless = True
        self._state: tuple[int, ...] = ()
        self._ended_at: int | None = None
        self._texts = {one.texts: _Numbers() for sort in EVENT_SORTS.values() for one in sort.held if one.texts}
        self._columns: dict[str, dict[str, bytearray]] = {
            name: {one.name: bytearray() for one in sort.held} for name, sort in EVENT_SORTS.items()
        }
        self._gloo_threads: set[int] = set()
        self._shared: dict[str, str] = {}
        self._others = Events(
            pids=[None] * 4, names=[], kinds=[], operator_names=[], call_names=[], annotations=[],
            activities={}, launches={}, runtime={}, operators={}, memory={}, stream_waits={}, modules={},
            functions={}, counters={}, comm_args=[], gloo_threads=[],
        )  # fmt: skip

    def add(self, part: Part) -> None:
        """Add the next part, which is used up."""
        events, others = part.events, self._others
        self.parts += 1
        if self.surrounding is None:
            self.with_operators, self._state, others.zero_us = part.with_operators, part.state, events.zero_us
            follows = part.began_at is None
        else:
            follows = part.began_at is not None and part.began_at == self._ended_at
            follows = follows and part.surrounding.before == self.surrounding.before and part.state == self._state
            follows = follows and (events.zero_us == others.zero_us)
        self._is_gapless = self._is_gapless and follows
        self.surrounding, self._ended_at = part.surrounding, part.ended_at
        of_part = {name: [known[key] for key in _keys(events, name)] for name, known in self._texts.items()}
        for sort, columns in self._columns.items():
            added: Columns = getattr(events, sort)
            for one in EVENT_SORTS[sort].held:
                column = added.pop(one.name)
                columns[one.name].extend(_renumbered(column, of_part[one.texts]) if one.texts else column)
        others.pids = [new if old is None else old for old, new in zip(others.pids, events.pids, strict=True)]
        others.window_end = latest(others.window_end, events.window_end)
        others.launched += events.launched
        others.unread = with_unread(others.unread, events.unread)
        others.processes = sorted({*others.processes, *events.processes})
        others.annotations += events.annotations
        others.comm_args += map(self._with_shared_texts, events.comm_args)
        others.lists_bytes += events.lists_bytes
        others.repaired_bytes += events.repaired_bytes
        self._gloo_threads.update(events.gloo_threads)

    def _with_shared_texts(self, args: dict[str, Any]) -> dict[str, Any]:
        """Share equal texts between rows, as most rows have the same ones."""
        return {key: self._shared.setdefault(v, v) if type(v) is str else v for key, v in args.items()}

    def events(self) -> Events | None:
        """The events; None if the added parts are not the whole file."""
        if not self._is_gapless or self.surrounding is None or self._ended_at is not None:
            return None
        return msgspec.structs.replace(
            self._others,
            kinds=[kind for kind, _ in self._texts["names"]],
            **{name: [text for _, text in known] for name, known in self._texts.items()},
            gloo_threads=sorted(self._gloo_threads),
            **self._columns,
        )


class _Numbers(dict[Any, int]):
    """Number distinct keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


def _keys(events: Events, texts: str) -> Iterable[tuple[str, str]]:
    """What tells the texts of a list apart: a name that both kernels and copies have is two."""
    kept: list[str] = getattr(events, texts)
    return zip(events.kinds if texts == "names" else repeat(""), kept, strict=False)


def _renumbered(column: bytes, numbers: Sequence[int]) -> bytes:
    if list(numbers) == list(range(len(numbers))):
        return column
    return array("q", [MISSING if at == MISSING else numbers[at] for at in array("q", column)]).tobytes()
