"""A running job as lines for people: a table that fits a screen, or what has changed since the last look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import NamedTuple, get_args

from ...common.trigger import Beside
from ...common.wording import counted, ranks_in_words
from ..core.escaping import printable
from ..core.schema import Row
from .captures import OnDemand
from .job import Job
from .standing import JobStanding, Onset, RankStanding

_NOTHING = "-"
_MOST_CAPTURES = 3
_LEAST_ROWS = 4
_UNFOLDED = 4
"""Ranks that are shown of a host with somebody late or silent."""
_MOST_NAMED = 3
_LONGEST_HOST = 24
_STATUS_S = 60.0
_NEEDS = {"collective": "a collective", "backward": "its backward pass"}


class ScreenLine(NamedTuple):
    """A line, and how to show it: "", "bold", "red" or "dim"."""

    text: str
    style: str = ""


def job_table(job: Job, cycles: Sequence[Row], width: int, height: int) -> list[ScreenLine]:
    """The job on a screen of this size: its ranks, or its hosts where that are too many; the worst first.

    `cycles` are the rows of the run itself, of which the last are shown with the captures on demand.
    """
    standing = job.standing
    if standing is None:
        return []
    captures = _captures(job.captures, cycles)
    head, foot = _head(job.run.name, standing), _wrapped(_foot(standing), width)
    room = max(_LEAST_ROWS, height - 1 - len(head) - len(foot) - len(captures) - 1)  # a header, and room for the cursor
    columns, rows = _by_rank(standing) if len(standing.ranks) <= room else _by_host(standing, room)
    lines = [*head, ScreenLine(columns, "bold"), *rows, *foot, *captures]
    return [ScreenLine(printable(line.text)[:width].rstrip(), line.style) for line in lines]


def _head(name: str, standing: JobStanding) -> list[ScreenLine]:
    lines = [ScreenLine(f"{name}: {_summary(standing)}")]
    if standing.longer_since is not None:
        lines.append(ScreenLine(_longer(standing.longer_since, standing.usual_ns), "red"))
    return lines


def _summary(standing: JobStanding) -> str:
    hosts = {one.host for one in standing.ranks}
    steps = [one.step for one in standing.ranks]
    at = f"{max(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    took = "" if standing.step_ns is None else f", {_ms(standing.step_ns)} ms each"
    on = f" on {counted(len(hosts), 'host')}" if "" not in hosts else ""
    return f"{counted(len(standing.ranks), 'rank')}{on}, step {at}{took}"


def _longer(since: Onset, usual_ns: int | None) -> str:
    return f"steps are longer since {_time(since)}, and took {_ms(usual_ns)} ms before"


def _foot(standing: JobStanding) -> list[ScreenLine]:
    late = standing.late
    if late:
        return [ScreenLine(_late(one), "red") for one in late[:_MOST_NAMED]]
    if standing.compared:
        return [ScreenLine(f"nobody is late for {_need(standing.ranks)}", "dim")]
    if len(standing.ranks) == 1:
        return []
    if any(one.alone_ns is not None for one in standing.ranks):
        return [ScreenLine("who is late is known after five pulses of each rank", "dim")]
    return [
        ScreenLine("who is late is not known: no step shows how long a rank works before it needs another rank", "dim")
    ]


def _wrapped(lines: Sequence[ScreenLine], width: int) -> list[ScreenLine]:
    wide = max(width, 1)
    return [ScreenLine(text, line.style) for line in lines for text in wrap(line.text, wide, subsequent_indent="  ")]


def _late(one: RankStanding) -> str:
    others_ns = (one.alone_ns or 0) - (one.late_ns or 0)
    on = f" on {one.host}" if one.host else ""
    since = "" if one.since is None else f" since {_time(one.since)}"
    return (
        f"rank {one.rank}{on} is late by {_ms(one.late_ns)} ms{since}: {_ms(one.alone_ns)} ms until "
        f"{_NEEDS.get(one.need or '', 'others')}, others {_ms(others_ns)} ms"
    )


def _need(ranks: Sequence[RankStanding]) -> str:
    needs = {one.need for one in ranks if one.need is not None}
    return "the backward pass" if needs == {"backward"} else "the first collective of a step"


_RANK = "{:>6}  {:<{}} {:>12} {:>9} {:>9} {:>11}  {}"
_HOST = "{:<{}} {:>6} {:>12} {:>9} {:>9}  {}"


def _by_rank(standing: JobStanding) -> tuple[str, list[ScreenLine]]:
    wide = _widest({one.host for one in standing.ranks})
    header = _RANK.format("rank", "host", wide, "step", "step ms", "alone ms", "late by ms", "since")
    rows = []
    for one in standing.worst_first:
        cells = one.rank, _host(one.host), wide, f"{one.step:,}", _ms(one.step_ns), _ms(one.alone_ns), _late_ms(one)
        rows.append(ScreenLine(_RANK.format(*cells, _state(one)), _style(one)))
    return header, rows


def _by_host(standing: JobStanding, room: int) -> tuple[str, list[ScreenLine]]:
    hosts = standing.by_host()
    wide = max(_widest(hosts), len(f"and {counted(len(hosts), 'more host')}"))
    header = _HOST.format("host", wide, "ranks", "step", "step ms", "alone ms", "")
    rows: list[ScreenLine] = []
    left = list(hosts.items())
    for name, ranks in hosts.items():
        bad = [one for one in ranks if one.late_ns or one.silent_s is not None]
        unfolded = min(len(bad), _UNFOLDED)
        if len(rows) + 1 + unfolded > room - (len(left) > 1):
            break
        rows.append(ScreenLine(_HOST.format(*_cells(name, wide, ranks), _states(ranks)), "red" if bad else ""))
        for one in bad[:unfolded]:
            late = "" if not one.late_ns else f"+{_ms(one.late_ns)} ms since "
            cells = (
                f"  rank {one.rank}",
                wide,
                "",
                f"{one.step:,}",
                _ms(one.step_ns),
                _ms(one.alone_ns),
                late + _state(one),
            )
            rows.append(ScreenLine(_HOST.format(*cells), "red"))
        left.pop(0)
    if left:
        rest = [one for _, ranks in left for one in ranks]
        bad = [one for one in rest if one.late_ns or one.silent_s is not None]
        is_known = all(one.late_ns is not None for one in rest)
        who = f"among them {ranks_in_words(sorted(one.rank for one in bad))}" if bad else "nobody there is late"
        name = f"and {counted(len(left), 'more host')}"
        rows.append(
            ScreenLine(_HOST.format(*_cells(name, wide, rest), who if bad or is_known else ""), "red" if bad else "dim")
        )
    return header, rows


def _cells(name: str, wide: int, ranks: Sequence[RankStanding]) -> tuple[str | int, ...]:
    """The cells of several ranks: the last step that all have done, and medians."""
    steps_ns = sorted(one.step_ns for one in ranks if one.step_ns is not None)
    alone_ns = sorted(one.alone_ns for one in ranks if one.alone_ns is not None)
    step = f"{min(one.step for one in ranks):,}"
    medians = (_ms(some[len(some) // 2] if some else None) for some in (steps_ns, alone_ns))
    return _host(name), wide, len(ranks), step, *medians


def _states(ranks: Sequence[RankStanding]) -> str:
    said: list[tuple[list[int], str]] = [
        ([one.rank for one in ranks if one.late_ns], "late"),
        ([one.rank for one in ranks if one.silent_s is not None], "silent"),
        *(([one.rank for one in ranks if one.beside == kind], kind) for kind in get_args(Beside)),
    ]
    return "; ".join(f"{ranks_in_words(sorted(who))} {what}" for who, what in said if who)


def _state(one: RankStanding) -> str:
    parts = [
        None if one.since is None else _time(one.since),
        one.beside,
        None if one.silent_s is None else f"silent for {one.silent_s:,.0f} s",
    ]
    return ", ".join(part for part in parts if part)


def _style(one: RankStanding) -> str:
    return "red" if one.late_ns or one.silent_s is not None else ""


def _captures(on_demand: Sequence[OnDemand], cycles: Sequence[Row]) -> list[ScreenLine]:
    found: list[tuple[str, Row | None, str | None]] = [(f"cycle {row['cycle']}", row, None) for row in cycles]
    found += [(capture.folder.name, capture.row, capture.why) for capture in on_demand]
    if not found:
        return []
    return [ScreenLine("captures", "bold"), *(ScreenLine(f"  {_captured(*one)}") for one in found[-_MOST_CAPTURES:])]


def _captured(name: str, row: Row | None, why: str | None) -> str:
    if row is None:
        return f"{name}: {why}"
    ended = row.get("ended_utc")
    parts = [
        None if ended is None else _clock(datetime.fromisoformat(ended)),
        None if row.get("step_ns") is None else f"{_ms(row['step_ns'])} ms a step",
        row.get("verdict"),
        None if row.get("blamed_rank") is None else f"others wait for rank {row['blamed_rank']}",
    ]
    return f"{name}: {', '.join(part for part in parts if part)}"


class JobNews:
    """What is worth a line where there is no screen: what has begun or ended since the last look."""

    def __init__(self) -> None:
        self._before: JobStanding | None = None
        self._said_s = float("-inf")

    def of(self, standing: JobStanding | None, now_s: float) -> list[str]:
        """What is new, in sentences; how the job stands, where nothing was said for a minute."""
        before, self._before = self._before, standing
        if standing is None:
            return []
        news = list(_news(before, standing))
        if now_s - self._said_s >= _STATUS_S:
            late = standing.late
            who = f"; {ranks_in_words(sorted(one.rank for one in late))} late" if late else ""
            news.insert(0, f"{_summary(standing)}{who}")
        if news:
            self._said_s = now_s
        return news


def _news(before: JobStanding | None, now: JobStanding) -> Iterator[str]:
    known = {} if before is None else {one.rank: one for one in before.ranks}
    if now.longer_since is not None and (before is None or before.longer_since is None):
        yield _longer(now.longer_since, now.usual_ns)
    elif now.longer_since is None and before is not None and before.longer_since is not None:
        yield "steps are as short as before"
    late = now.late
    begun = [one for one in late if one.rank not in known or not known[one.rank].late_ns]
    yield from (_late(one) for one in begun[:_MOST_NAMED])
    if len(begun) > _MOST_NAMED:
        yield f"late as well: {ranks_in_words(sorted(one.rank for one in begun[_MOST_NAMED:]))}"
    over = [one.rank for one in now.ranks if not one.late_ns and one.rank in known and known[one.rank].late_ns]
    if over:
        yield f"no longer late: {ranks_in_words(over)}"
    for what in get_args(Beside):
        at_it = [one.rank for one in now.ranks if one.beside == what and _beside(known.get(one.rank)) != what]
        if at_it:
            yield f"{what}: {ranks_in_words(at_it)}"
    silent = [one for one in now.ranks if one.silent_s is not None and not _is_silent(known.get(one.rank))]
    gone = sorted(known.keys() - {one.rank for one in now.ranks})
    if gone:
        yield f"{ranks_in_words(gone)} left the job"
    if silent:
        longest = max(one.silent_s or 0.0 for one in silent)
        yield f"silent for up to {longest:,.0f} s: {ranks_in_words([one.rank for one in silent])}"


def _beside(one: RankStanding | None) -> str | None:
    return None if one is None else one.beside


def _is_silent(one: RankStanding | None) -> bool:
    return one is not None and one.silent_s is not None


def _late_ms(one: RankStanding) -> str:
    return "0" if one.late_ns == 0 else _ms(one.late_ns)


def _widest(hosts: Iterable[str]) -> int:
    return min(max((len(host) for host in hosts), default=0), _LONGEST_HOST) + 1


def _host(name: str) -> str:
    return name if len(name) <= _LONGEST_HOST else f"{name[: _LONGEST_HOST - 3]}..."


def _ms(time_ns: int | None) -> str:
    return _NOTHING if time_ns is None else f"{time_ns / 1e6:,.1f}"


def _time(since: Onset) -> str:
    return f"{_clock(datetime.fromtimestamp(since.unix_ns / 1e9))}{' or earlier' if since.or_earlier else ''}"


def _clock(at: datetime) -> str:
    """Time of day in the local time zone."""
    return at.astimezone().strftime("%H:%M:%S")
