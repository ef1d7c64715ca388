"""The answer in words: missing ranks, since when, where their code stood, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from ...common.wording import counted, ranges_of
from ..formats.flight_recorder.dump import Dump
from .groups import JobGroup, world_of
from .origins import HangOrigin, Why
from .tables import own_code
from .waits import Wait

_NOTHING_SHOWN = "It is not known whether anything hangs: the dumps hold no call; collect those that torch wrote."
_NONE = "Nothing hangs: no rank waits in the {calls} that {ranks} recorded."
_NS = 10**9
_LONG_NS = 3600 * _NS


def answer(origins: Sequence[HangOrigin], waiting: Sequence[int], dumps: Mapping[int, Dump]) -> list[str]:
    """One or two sentences for each named set of ranks, or one that nothing hangs."""
    if not origins:
        calls = sum(dump.records for dump in dumps.values())
        if ranks := unshown(dumps):
            return [_not_shown(ranks)]
        if shows_nothing(dumps):
            return [_NOTHING_SHOWN]
        return [_NONE.format(calls=counted(calls, "call"), ranks=counted(len(dumps), "rank"))]
    return [
        " ".join(filter(None, (_who(origin), _others(origin, count), _where(origin, dumps))))
        for origin, count in zip(origins, waiting, strict=True)
    ]


def unshown(dumps: Mapping[int, Dump]) -> list[int]:
    """Ranks with unfinished calls by the status of a group whose calls their dump lacks."""
    return [
        rank
        for rank, dump in sorted(dumps.items())
        if any(status.issued > (status.done or 0) for status in dump.unplaced.values())
    ]


def shows_nothing(dumps: Mapping[int, Dump]) -> bool:
    """Whether the dumps have neither calls nor a group's status."""
    return not any(dump.records or dump.unplaced for dump in dumps.values())


def _not_shown(ranks: Sequence[int]) -> str:
    """A sentence if only the status of a group shows that ranks wait."""
    they, have = ("it", "has") if len(ranks) == 1 else ("they", "have")
    return (
        f"It is not known whether anything hangs: {names_of(tuple(ranks))} {have} not finished all that {they} issued "
        "in a group whose calls are no longer in the dumps; dump again with a larger TORCH_FR_BUFFER_SIZE."
    )


def _who(origin: HangOrigin) -> str:
    wait, ranks = origin.wait, names_of(origin.ranks)
    call, is_single = call_text(wait), len(origin.ranks) == 1
    begin = ranks[0].upper() + ranks[1:]
    if origin.why is Why.all_there:
        return (
            f"{begin} {'has' if is_single else 'have all'} issued {call}, and it does not end{since(wait)}: a device "
            "or a link among them stands still; the dumps do not say which, nor whether they were taken while all was "
            "well."
        )
    if origin.why is Why.circle:
        return f"{begin} wait for each other in a circle: {names_of(tuple(wait.waiting))} in {call}{since(wait)}."
    if origin.why is Why.mismatch and wait.mismatch is not None:
        called = "; ".join(f"{names_of(members)} called {what}" for what, members in wait.mismatch.called)
        of = f"number {wait.mismatch.seq} of {group_text(wait.group)}"
        return f"{begin} did not call what others did as {of}: {called}."
    if origin.why is Why.left_behind:
        return _left_behind(origin, begin)
    if origin.why is Why.not_begun:
        devices = "its device has" if is_single else "their devices have"
        return f"{begin} issued {call}, but {devices} not begun it, as those of others have."
    gone = f" left no dump{'' if is_single else 's'}, and" if origin.why is Why.no_dump else ""
    return f"{begin}{gone} {'is' if is_single else 'are'} missing from {call}."


def _left_behind(origin: HangOrigin, begin: str) -> str:
    """A sentence on ranks in a call that others finished, and the later call that they miss, if any."""
    wait, later = origin.wait, origin.held_up
    they, their = ("it", "its device or process") if len(origin.ranks) == 1 else ("they", "their devices or processes")
    stopped = f"{names_of(wait.done)} finished it, and {they} did not: {their} stopped there"
    if later is None:
        return f"{begin} stopped in {call_text(wait)}{since(wait)}: {stopped}."
    are = "is" if len(origin.ranks) == 1 else "are"
    same = later.group is wait.group
    before = f"{wait.kind} number {wait.seq}" + ("" if same else f" of {group_text(wait.group)}")
    return (
        f"{begin} {are} missing from {call_text(later)}, in which {names_of(tuple(later.waiting))} "
        f"{'waits' if len(later.waiting) == 1 else 'wait'}{since(later)}; {they} last stood in {before}: {stopped}."
    )


def _others(origin: HangOrigin, count: int) -> str:
    """A clause on the ranks that wait for them, directly and in total."""
    wait, them = origin.wait, "it" if len(origin.ranks) == 1 else "them"
    if origin.why in (Why.all_there, Why.circle):
        count -= len(origin.ranks)
    there = tuple(rank for rank in wait.waiting if rank not in origin.ranks)
    if origin.why not in (Why.missing, Why.no_dump) or not there:
        return f"{counted(count, 'other rank')} {_waits(count)} for {them}." if count > 0 else ""
    rest, who = count - len(there), names_of(there)
    also = f", and {counted(rest, 'more rank')} {_waits(rest)} for those" if rest > 0 else ""
    return f"{who[0].upper()}{who[1:]} {'has' if len(there) == 1 else 'have'} waited in it{since(wait)}{also}."


def _waits(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _where(origin: HangOrigin, dumps: Mapping[int, Dump]) -> str:
    """A sentence on where the named ranks' code stood, if their dumps show it."""
    parts = []
    alike: dict[str, list[int]] = {}
    for rank in origin.ranks:
        alike.setdefault(_last_text(dumps[rank]) if rank in dumps else "", []).append(rank)
    for text, ranks in list(alike.items())[:4]:
        if text:
            parts.append(f"{names_of(tuple(ranks))} {text}")
    return f"{'; '.join(parts)[0].upper()}{'; '.join(parts)[1:]}." if parts else ""


def _last_text(dump: Dump) -> str:
    last, group = dump.last, dump.last_group
    if last is None or group is None:
        return "recorded nothing that is not done"
    code = own_code(last)
    at = f" at {moment(last.created_ns)}" if last.created_ns else ""
    of = f" of group {group.name}" + (f" ({group.about})" if group.about else "")
    return f"last issued {last.kind} number {last.seq}{of}{at}" + (f", in {code}" if code else "")


def notes(
    origins: Sequence[HangOrigin], waits: Sequence[Wait], groups: Sequence[JobGroup], dumps: Mapping[int, Dump]
) -> Iterator[str]:
    """Yield what these dumps cannot show, or show only under a condition."""
    named = {rank for origin in origins for rank in origin.ranks}
    if len(named) > 1 and not all(origin.why in (Why.all_there, Why.circle) for origin in origins):
        yield "it is not known which of these ranks stopped first: clocks of hosts differ, and dumps hold no end times"
    gone = sorted(set(range(world_of(dumps, (group.members for group in groups)))) - dumps.keys())
    if gone:
        yield f"there is no dump of {names_of(gone)}: what they did, and whether they were alive, is not known"
    unsure = sorted({rank for wait in waits for rank in wait.unsure})
    if unsure:
        yield (
            f"{names_of(tuple(unsure))}: the dump no longer shows the group in question; that the rank did not issue "
            "the call is concluded from those that wait"
        )
    wrapped = [rank for rank, dump in dumps.items() if not dump.only_active and (dump.first_record or 0) > 0]
    if wrapped:
        yield f"older calls were overwritten on {names_of(tuple(wrapped))}; raise TORCH_FR_BUFFER_SIZE to keep more"
    active = [rank for rank, dump in dumps.items() if dump.only_active and dump.records]
    if active:
        yield f"the dumps of {names_of(tuple(active))} hold only what was not done: what was left out counts as done"
    if any(wait.left_behind for wait in waits):
        yield "what a rank left behind shows as not done, its device may have done: a stopped process no longer looks"
    if any(wait.peers for wait in waits):
        yield "sends and receives are matched in order, from the last ones back, as their numbers differ by rank"
    if waits and not any(dump.has_frames for dump in dumps.values()):
        yield "the dumps hold no stacks, so that it is not known where the code stood (JSON dumps never hold stacks)"
    vague = [group for group in groups if not group.is_sure]
    if vague:
        yield (
            f"who is in {counted(len(vague), 'group')} is not in the dumps: a rank that never issued anything there is "
            "not missed"
        )
    if any(group.only_retired for group in groups):
        yield "gloo does not say whether a call succeeded: one that failed looks done, if all ranks issued it"
    yield from _spread(dumps)


def _spread(dumps: Mapping[int, Dump]) -> Iterator[str]:
    last = {rank: dump.newest_ns for rank, dump in dumps.items() if dump.newest_ns}
    if last and max(last.values()) - min(last.values()) > _LONG_NS:
        late, early = max(last, key=lambda r: last[r]), min(last, key=lambda r: last[r])
        yield (
            f"the dumps are of different times: rank {early} ends at {moment(last[early])}, rank {late} at "
            f"{moment(last[late])}; are some of an earlier job?"
        )


def names_of(ranks: Sequence[int]) -> str:
    """Format ranks: `rank 3`, `ranks 0-3 and 8`."""
    if len(ranks) < 3:
        return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, sorted(ranks)))}"
    text = ranges_of(sorted(ranks))
    head, _, tail = text.rpartition(", ")
    return f"ranks {head} and {tail}" if head and tail != "..." else f"ranks {text}"


def group_text(group: JobGroup) -> str:
    """Format a group: `group 72 (EXPERT_MODEL_PARALLEL_GROUP, ranks 8-15)`."""
    about = f"{group.about}, " if group.about and group.about != "undefined" else ""
    return f"group {group.name} ({about}{names_of(group.members)})"


def call_text(wait: Wait) -> str:
    """Format a call: `all_reduce number 7 of group 0 (default_pg, ranks 0-3)`; a transfer names both ranks."""
    if wait.peers is None:
        return f"{wait.kind} number {wait.seq} of {group_text(wait.group)}"
    source, target = wait.peers
    return f"the transfer from rank {source} to rank {target} in {group_text(wait.group)}"


def since(wait: Wait) -> str:
    """Format the start of a wait: ` since 2025-09-22 22:47:17.548 UTC`, empty if unknown."""
    return "" if wait.since_ns is None else f" since {moment(wait.since_ns)}"


def moment(time_ns: int) -> str:
    """Format a time: `2025-09-22 22:47:17.548 UTC`."""
    try:
        seconds = datetime.fromtimestamp(time_ns // _NS, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return f"{time_ns} ns"
    return f"{seconds:%Y-%m-%d %H:%M:%S}.{time_ns % _NS // 1_000_000:03} UTC"
