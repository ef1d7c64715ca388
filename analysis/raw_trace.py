"""What is read from a trace file: columns of numbers, names once each; and how parts of it are joined."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .chunks import Surrounding
from .kineto_header import Header

Columns = dict[str, bytes]
"""Name of a column -> its values: native 64 bit integers, but doubles for `ts` and `dur`, which are us, and numbers
that are no integers, NaN where they are not there."""


class Annotation(msgspec.Struct, array_like=True, frozen=True):
    """A CPU annotation of a step or collective, or a c10d operator. Times in us since the header's zero."""

    name: str
    thread: int
    ts: float
    dur: float
    in_dims: list[Any] | None
    in_types: list[Any] | None
    in_values: list[Any] | None


class Events(msgspec.Struct, kw_only=True):
    """What is read of successive events. Times in us since the header's zero; MISSING where an integer is not there.

    `names` and `kinds` belong together; the column `name` of activities counts into them, that of operators into
    `operator_names`.
    """

    pid: int | None
    names: list[str]
    kinds: list[str]
    operator_names: list[str]
    activities: Columns
    launches: Columns
    operators: Columns
    memory: Columns
    annotations: list[Annotation]
    comm_args: list[dict[str, Any]]
    gloo_threads: list[int]
    events: int


class RawTrace(Events, kw_only=True):
    """What is read from one file: operators on CPU runs, and with `details`, as are allocations.

    `damage` says what ended the reading before the file did, None for a sound file; `notes` what else there is to say.
    """

    header: Header
    damage: str | None = None
    notes: list[str] = []


class Part(msgspec.Struct):
    """What is read of a span of a file's events. For `began_at` and `ended_at` see SpanStream."""

    events: Events
    with_operators: bool
    surrounding: Surrounding
    began_at: int | None
    ended_at: int | None


def raw_trace(events: Events, header: Header, damage: str | None = None, *, details: bool = False) -> RawTrace:
    """A file of these events, without what nobody needs of them."""
    kept = {name: getattr(events, name) for name in Events.__struct_fields__}
    if events.activities["ts"] and not details:
        kept["operators"], kept["operator_names"] = dict.fromkeys(events.operators, b""), []
    # The order in which a reader comes upon them depends on how it takes the file apart.
    kept["annotations"] = sorted(events.annotations, key=lambda annotation: annotation.name.startswith("c10d::"))
    kept["comm_args"] = sorted(events.comm_args, key=lambda args: str(args["source"]))
    return RawTrace(**kept, header=header, damage=damage)


def joined_events(parts: Sequence[Part]) -> Events | None:
    """The events of all parts of a file, in order; None if these are not all of it.

    Their columns are moved, not copied: the parts are used up.
    """
    begins, ends = [part.began_at for part in parts], [part.ended_at for part in parts]
    is_gapless = [*begins, None] == [None, *ends] and begins.count(None) == 1
    if not is_gapless or len({part.surrounding.before for part in parts}) > 1:
        return None
    found = [part.events for part in parts]
    names = _Numbers((kind, name) for e in found for kind, name in zip(e.kinds, e.names, strict=True))
    operators = _Numbers(name for e in found for name in e.operator_names)
    return Events(
        pid=next((e.pid for e in found if e.pid is not None), None),
        names=[name for _, name in names],
        kinds=[kind for kind, _ in names],
        operator_names=list(operators),
        activities=_joined([
            _renumbered(e.activities, [names[key] for key in zip(e.kinds, e.names, strict=True)]) for e in found
        ]),
        launches=_joined([e.launches for e in found]),
        operators=_joined([_renumbered(e.operators, [operators[name] for name in e.operator_names]) for e in found]),
        memory=_joined([e.memory for e in found]),
        annotations=[a for e in found for a in e.annotations],
        comm_args=[args for e in found for args in e.comm_args],
        gloo_threads=sorted({thread for e in found for thread in e.gloo_threads}),
        events=sum(e.events for e in found),
    )  # fmt: skip


class _Numbers(dict[Any, int]):
    """Each distinct key -> its number, in the order in which they come."""

    def __init__(self, keys: Iterable[Any]) -> None:
        super().__init__((key, number) for number, key in enumerate(dict.fromkeys(keys)))


def _renumbered(columns: Columns, numbers: Sequence[int]) -> Columns:
    columns["name"] = array("q", [numbers[name] for name in array("q", columns["name"])]).tobytes()
    return columns


def _joined(columns: Sequence[Columns]) -> Columns:
    return {name: b"".join([part.pop(name) for part in columns]) for name in list(columns[0])}
