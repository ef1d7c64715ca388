"""Read a log of NCCL Inspector as a recording: calls and their durations, and nothing else.

It does not say when a call began, only when its line was written. Calls of a communicator run one after the other, so
each is placed as late as it can have run; from there on only their order is used.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.wording import counted
from ...core.escaping import encodable
from ...errors import DamagedTrace, NotATrace
from ...recording.building import columns_of, events_of, header_of
from ...recording.header import Communicator
from ...recording.options import Progress, ReadOptions
from ...recording.recording import CommRow, Extent, RawTrace, raw_trace
from ...recording.row_bytes import tables_bytes
from .columns import RECORDED_KINDS, RECV, SEND, LogBlock
from .lines import KNOWN_VERSIONS, MOST_SN
from .log import InspectorLog
from .proxies import CALL_BYTES as PROXY_BYTES
from .proxies import SUMMED, Parent, ProxySums

_COMMUNICATOR_BYTES = 1_500
FOR_LARGE_LOGS = "`commtrace bandwidth --by time` reads logs of any size"


def read_inspector(path: Path, options: ReadOptions, progress: Progress | None = None) -> RawTrace:
    """Read one log. Raises DamagedTrace, NotATrace, UnreadableFile, TooLarge."""
    proxies = ProxySums()
    log, blocks, budget = InspectorLog(path, proxies=proxies), [], options.budget()
    counted_already = texts_bytes = 0
    for block in log.blocks(progress):
        blocks.append(block)
        texts = sum(
            len(communicator.id) + len(communicator.name) + len(communicator.process)
            for communicator in log.communicators[counted_already:]
        )
        texts_bytes += _COMMUNICATOR_BYTES * (len(log.communicators) - counted_already) + texts
        counted_already = len(log.communicators)
        rows = tables_bytes(activities=log.records, calls=log.records) + texts_bytes
        rows += PROXY_BYTES * len(proxies.by_call)
        budget.check(f"{encodable(str(path))}: every call of this log ({FOR_LARGE_LOGS})", rows)
    check_log(log)
    if log.broken_lines and not options.keep_going:
        raise DamagedTrace(f"{path}: {damage_in(log)}; write it again, or leave these out with --keep-going")
    return _trace(log, _once(LogBlock.joined(blocks), log.communicators), proxies, options)


def check_log(log: InspectorLog) -> None:
    """Raise NotATrace if the log has no readable call."""
    if log.records:
        return
    versions = ", ".join(log.versions) or "no version"
    why = f"; {damage_in(log)}" if log.broken_lines else ""
    raise NotATrace(
        f"{log.path}: holds no call that can be read as NCCL Inspector writes it ({versions} is named; versions "
        f"{KNOWN_VERSIONS[0]} to {KNOWN_VERSIONS[-1]} are known){why}; leave it out, or write it again"
    )


def damage_in(log: InspectorLog) -> str:
    """Describe the unreadable parts of the log."""
    return f"{counted(log.broken_lines, 'line')} cannot be read, {log.first_broken}"


def notes_of(logs: Sequence[InspectorLog]) -> Iterator[str]:
    """Yield notes on the figures of these logs, once for all."""
    strange = {version for log in logs for version in log.versions if version not in KNOWN_VERSIONS}
    if strange:
        who = _names([log for log in logs if strange & set(log.versions)])
        yield f"{who}: of version {', '.join(sorted(strange))}, not known here; read for what it shares with v4"
    cut = [log for log in logs if log.cut_bytes]
    if cut:
        yield f"{_names(cut)}: last line cut, and left out; its process was killed, or still writes"
    for attribute, what in _LOST:
        of = [log for log in logs if getattr(log, attribute)]
        if of:
            yield f"{_names(of)}: {counted(sum(getattr(log, attribute) for log in of), 'call')} {what}"


_LOST = (
    ("dropped", "dropped by the Inspector, whose buffer was full; let it write more often"),
    ("timed_by_cpu", "not timed by a GPU, so not compared with other ranks"),
    ("orphans", "left out, because no marker before them names their communicator"),
)


def _names(logs: Sequence[InspectorLog]) -> str:
    """`node0-pid12.log`, or `3 logs (node0-pid12.log, ...)`."""
    first = encodable(logs[0].path.name)
    return first if len(logs) == 1 else f"{len(logs):,} logs ({first}, ...)"


def _once(calls: LogBlock, communicators: list[Communicator]) -> LogBlock:
    """Drop calls that the log repeats."""
    first_like: dict[tuple[str, int], int] = {}  # another process may have written of the same rank
    places = [
        first_like.setdefault((communicator.id, communicator.rank), number)
        for number, communicator in enumerate(communicators)
    ]
    rank_of = np.array(places, dtype=np.int64)
    lane = rank_of[calls.communicator] * len(RECORDED_KINDS) + calls.kind
    first = np.unique(lane * MOST_SN + calls.sn, return_index=True)[1]
    return calls.taken(np.sort(first))


def _trace(log: InspectorLog, calls: LogBlock, proxies: ProxySums, options: ReadOptions) -> RawTrace:
    count = len(calls.sn)
    correlation = array("q", range(count))
    ended_us = calls.ended_us.astype(np.float64)
    order = np.argsort(calls.communicator, kind="stable")
    bounds = np.searchsorted(calls.communicator[order], np.arange(len(log.communicators) + 1))
    for begin, end in pairwise(bounds.tolist()):
        members = order[begin:end]
        ended_us[members] = _latest_ends(ended_us[members], calls.dur_us[members])
    names = [f"nccl {kind or 'call'}" for kind in RECORDED_KINDS]
    activities = columns_of(
        "activities",
        count,
        device=_devices(log.communicators)[calls.communicator].tolist(),
        stream=calls.communicator.tolist(),
        name=calls.kind.tolist(),
        correlation=correlation,
        ts=np.maximum(ended_us - calls.dur_us, 0.0).tolist(),
        dur=calls.dur_us.tolist(),
    )
    worked_for, unclear = _worked_for(calls, proxies)
    host, _, pid = log.communicators[0].process.rpartition(":")
    events = events_of(
        pids=[int(pid), None, None, None],
        names=names,
        kinds=["comm"] * len(names),
        activities=activities,
        comm_args=[
            _row(log.communicators, values) | worked_for.get(values[0], {})
            for values in zip(correlation, *(column.tolist() for column in calls), strict=True)
        ],
    )
    seen = {"communicators": tuple(log.communicators), "first_us": log.first_us, "last_us": log.last_us}
    header = header_of(backend="nccl", host=host, has_starts=False, **seen)
    damage = f"{log.path}: {damage_in(log)}, and left out" if log.broken_lines else None
    trace = raw_trace(events, header, Extent(log.read_bytes, log.broken_bytes), damage, details=options.details)
    trace.notes = [*notes_of([log]), *_on_proxies(log, unclear + proxies.lost)]
    return trace


def _worked_for(calls: LogBlock, proxies: ProxySums) -> tuple[dict[int, dict[str, int]], int]:
    """The sums of proxies by the number of the call they worked for, and of how many calls that is not clear.

    NCCL counts the calls of each kind, and a proxy does not name the kind: of two calls of one number in a communicator
    it may be either.
    """
    if not proxies.by_call:
        return {}, 0
    found: dict[Parent, list[int]] = {}
    for number, (communicator, kind, sn) in enumerate(
        zip(calls.communicator.tolist(), calls.kind.tolist(), calls.sn.tolist(), strict=True)
    ):
        found.setdefault(Parent(communicator, kind in (SEND, RECV), sn), []).append(number)
    clear = {parent: numbers[0] for parent, numbers in found.items() if len(numbers) == 1}
    worked_for = {
        clear[parent]: {name: value for name, value in zip(SUMMED, sums, strict=True) if value is not None}
        for parent, sums in proxies.by_call.items()
        if parent in clear
    }
    return worked_for, len(proxies.by_call) - len(worked_for)


def _on_proxies(log: InspectorLog, unclear: int) -> Iterator[str]:
    if unclear:
        yield (
            f"{encodable(log.path.name)}: which call proxies worked for is not clear {unclear:,} times: several kinds "
            "of calls have that number, or the call is not in the log; left out of `proxies`"
        )
    if log.proxies_dropped:
        yield (
            f"{encodable(log.path.name)}: {counted(log.proxies_dropped, 'step')} or operations of proxies dropped "
            "by the Inspector, whose buffer was full; what is summed over the others is less than all"
        )


def _latest_ends(ended: NDArray[np.float64], dur: NDArray[np.float64]) -> NDArray[np.float64]:
    """Latest possible end of each successive call: its time of writing, or the start of the next call."""
    if not len(ended):
        return ended
    took = np.cumsum(dur)
    latest: NDArray[np.float64] = took + np.minimum.accumulate((ended - took)[::-1])[::-1]
    return latest


def _devices(communicators: list[Communicator]) -> NDArray[np.int64]:
    """Number of the GPU of each entry: 0 unless the file holds several ranks of a communicator."""
    ranks: dict[str, set[int]] = {}
    for communicator in communicators:
        ranks.setdefault(communicator.id, set()).add(communicator.rank)
    places = {
        id_: {rank: place for place, rank in enumerate(sorted(ranks_of_communicator))}
        for id_, ranks_of_communicator in ranks.items()
    }
    return np.array([places[communicator.id][communicator.rank] for communicator in communicators], dtype=np.int64)


def _row(communicators: list[Communicator], values: tuple[Any, ...]) -> CommRow:
    """One call as arguments of its kernel."""
    correlation, number, kind, sn, size_bytes, _, _, by_gpu, _, peer = values
    communicator, collective = communicators[number], RECORDED_KINDS[kind]
    row: dict[str, Any] = {
        "source": "kernel",
        "correlation": correlation,
        "external_id": None,
        "op": collective or "unknown",
        "size_bytes": None if size_bytes < 0 else size_bytes,
        "group_size": communicator.size,
        "process_group": communicator.id,
        "seq": sn,
    }
    if kind >= SEND:  # or unknown
        row["root"] = peer if 0 <= peer < communicator.size else None
    elif by_gpu:
        # NCCL counts the calls of each kind in a communicator.
        row["comms_id"] = f"{communicator.id} {kind} {sn}"
    return row
