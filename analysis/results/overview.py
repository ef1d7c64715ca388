"""A run on one screen: the verdict, what it costs in a step, who and why, what to try, and a few numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pandas as pd
from rich.cells import cell_len

from ..core.escaping import printable
from ..core.schema import Row, records
from ..core.wording import counted, ranges_of
from ..metrics.verdicts.doing import on_cpu
from ..render.fitting import shortened, shortened_kernel
from ..render.people import styled, wrapped
from ..render.screen import PAPER, Screen

_WIDEST, _NARROWEST, _MOST_LINES = 100, 60, 38
_BAR = 24
_WORTH_NAMING = 0.02
"""Of all waiting, so much is caused by a rank that is named."""
_PARTS = (
    ("compute alone", "alone_ns"),
    ("compute and communication", "overlap_ns"),
    ("exposed transfer", "exposed_transfer_ns"),
    ("exposed wait", "exposed_wait_ns"),
    ("exposed, not split", "exposed_unsplit_ns"),
    ("exposed copies", "exposed_memory_ns"),
    ("idle", "idle_ns"),
)


class OverviewTables(Protocol):
    """What an overview needs of a run: an `Analysis`, which cannot be imported here because it imports this module."""

    @property
    def run(self) -> Any: ...  # noqa: D102 - these are `Analysis`'s
    @property
    def ceiling(self) -> Any: ...  # noqa: D102
    @property
    def warnings(self) -> list[str]: ...  # noqa: D102
    def table(self, name: str) -> pd.DataFrame: ...  # noqa: D102


def overview(analysis: OverviewTables, screen: Screen = PAPER, program: str = "commtrace") -> str:
    """At most 40 lines of at most 100 columns; fewer rows of each kind where that would be more."""
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    lines: list[str] = []
    for most in (4, 3, 2, 1):
        lines = list(_lines(analysis, screen, (width, most), program))
        if len(lines) <= _MOST_LINES:
            break
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _lines(analysis: OverviewTables, screen: Screen, size: tuple[int, int], program: str) -> Iterator[str]:
    width, most = size
    yield from _cut(wrapped(_what(analysis), width), 2)
    yield ""
    yield from (styled(line, "bold", screen) for line in _cut(wrapped(_verdict(analysis), width), 7))
    for title, found in (
        (_step_title(analysis), list(_step(analysis, screen, width))),
        ("Who makes the others wait", list(_who(analysis, width, most))),
        ("What to try, and what a step gains by it at most", list(_try(analysis, width, most))),
        ("Bus bandwidth, where most time is spent", list(_bandwidth(analysis, width, most))),
    ):
        if found:
            yield ""
            yield styled(title, "bold", screen)
            yield from found
    yield ""
    yield from _warned(analysis, screen, width, most)
    run = shortened(printable(analysis.run.name), 24)
    yield from wrapped(
        f"More: `{program} summary --all {run}` has everything, `report` pictures, `lateness` and `ranks` who was late "
        f"and why, `bandwidth` every size; `{program} --help` lists the rest.",
        width,
    )


def _what(analysis: OverviewTables) -> str:
    run = analysis.run
    steps = run.steps
    parts = [
        f"{counted(len(run.ranks), 'rank')}{_of_world(run)}",
        f"{counted(len(steps), 'step')} ({ranges_of(steps)})" if steps else "no steps marked",
        *(", ".join(sorted(set(run.traces[column].dropna()))) for column in ("backend", "device_name")),
    ]
    return printable(f"{run.name}: {', '.join(part for part in parts if part)}")


def _verdict(analysis: OverviewTables) -> str:
    first = records(analysis.table("verdicts").head(1))
    if first:
        return printable(f"{first[0]['verdict']}: {first[0]['because']}")
    return "no communication was traced" if len(analysis.table("breakdown")) else "nothing was measured"


def _of_world(run: Any) -> str:
    return f" of {run.world_size}" if run.world_size not in (None, len(run.ranks)) else ""


def _mean_step(analysis: OverviewTables) -> tuple[Row, bool]:
    """Means over devices and steps in ns, and whether they are of steps; otherwise of the whole window."""
    steps = analysis.table("breakdown_steps")
    table = steps if len(steps) else analysis.table("breakdown")
    known = table["exposed_wait_ns"].notna()
    split = table.assign(
        alone_ns=table["compute_ns"] - table["overlap_ns"],
        exposed_unsplit_ns=table["exposed_unsplit_ns"].where(known, table["exposed_comm_ns"]),
    )
    columns = ["window_ns", *(column for _, column in _PARTS)]
    return {column: float(split[column].fillna(0).mean()) for column in columns}, bool(len(steps))


def _step_title(analysis: OverviewTables) -> str:
    if not len(analysis.table("breakdown")):
        return ""
    mean, of_steps = _mean_step(analysis)
    what = "A step takes" if of_steps else "The window is"
    return f"{what} {mean['window_ns'] / 1e6:,.1f} ms (mean over devices{' and steps' if of_steps else ''})"


def _step(analysis: OverviewTables, screen: Screen, width: int) -> Iterator[str]:
    if not len(analysis.table("breakdown")):
        return
    mean, _ = _mean_step(analysis)
    mark = "#" if screen.ascii_only else "\u2588"
    for name, column in _PARTS:
        share = mean[column] / mean["window_ns"] if mean["window_ns"] else 0.0
        if mean[column] >= 0.5:
            bar = mark * round(min(_BAR, width - 51) * share)
            yield f"  {name:<26}{mean[column] / 1e6:>10,.1f} ms {share:>6.1%}  {bar}"


def _who(analysis: OverviewTables, width: int, most: int) -> Iterator[str]:
    late = [row for row in records(analysis.table("ranks")) if row["caused_wait_ns"]]
    late.sort(key=lambda row: -row["caused_wait_ns"])
    rows = [row for row in late if (row["caused_wait_frac"] or 0) >= _WORTH_NAMING][:most]
    for row in rows:
        host = f" ({shortened(printable(row['host']), 16)})" if row["host"] else ""
        share = f", {row['caused_wait_frac']:.0%} of all waiting" if row["caused_wait_frac"] is not None else ""
        doing = on_cpu(analysis.table("late_work"), row["rank"]) if row["because"] == "cpu" else None
        why = f": {_BECAUSE.get(row['because'], row['because'])}" if row["because"] else ""
        why = f": CPU {printable(str(doing))}" if doing is not None else why
        kernel = f" in {shortened_kernel(printable(row['kernel']), 36)}" if row["kernel"] else ""
        caused = f"  rank {row['rank']}{host}: {row['caused_wait_ns'] / 1e6:,.1f} ms{share}"
        if cell_len(caused + why + kernel) <= width:
            yield caused + why + kernel
        else:  # what makes a rank late is not worth the number beside it
            yield caused
            yield shortened(f"    {why.removeprefix(': ')}{kernel}", width)
    rest = late[len(rows) :]
    if rest:
        together = sum(row["caused_wait_ns"] for row in rest) / 1e6
        who = counted(len(rest), "more rank" if rows else "rank")
        yield f"  {who}: {together:,.1f} ms{' together' if rest[1:] else ''}"


_BECAUSE = {"cpu": "CPU launches late", "data": "data loader", "start": "begins the traced step later"}
"""Why a rank is late, where `ranks` says it in one word that says little alone."""


def _try(analysis: OverviewTables, width: int, most: int) -> Iterator[str]:
    room = width - 26
    for row in records(analysis.table("remedies"))[:most]:
        yield f"  {shortened(row['what'], room):<{room}}{row['gain_ns'] / 1e6:>11,.1f} ms {row['gain_frac']:>7.1%}"


def _bandwidth(analysis: OverviewTables, width: int, most: int) -> Iterator[str]:
    """By collective and size; several groups of as many ranks together."""
    alike: dict[tuple[str, int, int], list[Row]] = {}
    name = "bandwidth" if analysis.ceiling is None else "bandwidth_ceiling"
    for row in records(analysis.table(name)):
        if row["busbw_gb_per_s"] is not None:
            key = row["collective"], row["size_bytes"] or 0, len((row["pg_ranks"] or "").split())
            alike.setdefault(key, []).append(row)
    longest = sorted(alike, key=lambda key: -sum(row["calls"] * (row["time_us_median"] or 0) for row in alike[key]))
    for collective, size, ranks in longest[:most]:
        rows = alike[collective, size, ranks]
        calls = counted(sum(row["calls"] for row in rows), "call")
        several = f" in {len(rows)} groups" if len(rows) > 1 else ""
        what = f"  {collective} of {size:,} bytes{f', {ranks} ranks' if ranks else ''}, {calls}{several}"
        reached = [row["of_ceiling_frac"] for row in rows if row.get("of_ceiling_frac") is not None]
        of = f", {min(reached):.0%} of the ceiling" if reached else ""
        rate = f"{_between([row['busbw_gb_per_s'] for row in rows])} GB/s{of}"
        room = width - cell_len(rate) - 1
        yield f"{shortened(what, room):<{room}} {rate}"


def _between(values: list[float]) -> str:
    low, high = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _warned(analysis: OverviewTables, screen: Screen, width: int, most: int) -> Iterator[str]:
    """As many warnings as there is room for, and how many there are besides."""
    found = analysis.warnings
    if not found:
        return
    shown = found[: max(most - 1, 1)]
    for warning in shown:
        for number, line in enumerate(_cut(wrapped(printable(warning), width - 9), 2)):
            yield f"{'       ' if number else styled('warning', 'red', screen)}  {line}"
    if len(found) > len(shown):
        yield f"         and {counted(len(found) - len(shown), 'more warning')}, which `summary --all` shows"
    yield ""


def _cut(lines: list[str], most: int) -> list[str]:
    """So many lines at most; the last says that there are more."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1].rstrip(' .,;')} ..."]
