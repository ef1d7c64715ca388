"""A run on one screen: the verdict, what it costs in a step, who and why, what to try, and a few numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Protocol

import pandas as pd
from rich.cells import cell_len

from ..core.escaping import for_shell, printable
from ..core.schema import Row, records
from ..core.wording import counted, listed, ranges_of
from ..metrics.causes.blame import shares_of_waiting
from ..metrics.typical_step import STEP_PARTS, TypicalStep
from ..metrics.verdicts.culprits import length
from ..metrics.verdicts.doing import on_cpu
from ..metrics.verdicts.of_idle import idle_rows
from ..metrics.verdicts.of_run import first_verdict
from ..render.fitting import shortened, shortened_kernel
from ..render.people import styled, wrapped
from ..render.screen import PAPER, Screen

_WIDEST, _NARROWEST, _MOST_LINES = 100, 60, 38
_BAR = 24
_SHOWN_FROM = 0.0005
"""Of a step: parts that would be shown as 0.0% say nothing."""
_SAME_LENGTH = 0.02
_MOST_LEFT_OUT = 3
_WORTH_TRYING = 0.005
"""Of a step: changes that are about less are left out."""
_WORTH_NAMING = 0.02
"""Of the exposed waiting, so much is caused by a rank that is named."""
_LEAST_MS = 0.001


class OverviewTables(Protocol):
    """What an overview needs of a run: an `Analysis`, which cannot be imported here because it imports this module."""

    @property
    def run(self) -> Any: ...  # noqa: D102 - these are `Analysis`'s
    @property
    def ceiling(self) -> Any: ...  # noqa: D102
    @property
    def typical_step(self) -> TypicalStep: ...  # noqa: D102
    @property
    def typical_ranks(self) -> pd.DataFrame: ...  # noqa: D102
    @property
    def idle_causes(self) -> dict[str, float] | None: ...  # noqa: D102
    @property
    def warnings(self) -> list[str]: ...  # noqa: D102
    def table(self, name: str) -> pd.DataFrame: ...  # noqa: D102


def overview(
    analysis: OverviewTables, screen: Screen = PAPER, program: str = "commtrace", run: str | None = None
) -> str:
    """At most 40 lines of at most 100 columns; fewer rows of each kind where that would be more.

    `run` names the run in a command to copy: its paths, quoted for a shell; where not given, its name does.
    """
    width = max(min(screen.width or _WIDEST, _WIDEST), _NARROWEST)
    lines: list[str] = []
    for most in (4, 3, 2, 1):
        lines = list(_lines(analysis, screen, (width, most), program, run or for_shell(analysis.run.name)))
        if len(lines) <= _MOST_LINES:
            break
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _lines(analysis: OverviewTables, screen: Screen, size: tuple[int, int], program: str, named: str) -> Iterator[str]:
    width, most = size
    yield from _cut(wrapped(_what(analysis), width), 2)
    yield ""
    hangs = len(analysis.table("hangs")) > 0
    verdict, not_known = first_verdict(analysis.table("verdicts")) or ("Nothing was measured.", "")
    yield from (styled(line, "bold", screen) for line in wrapped(printable(verdict), width))
    yield from wrapped(printable(f"Not known: {not_known}"), width) if not_known else ()
    for title, found in (
        (_step_title(analysis), list(_step(analysis, screen, width))),
        ("Who makes the others wait", list(_who(analysis, width, most))),
        ("What to try, and how much of a step it is about", [] if hangs else list(_try(analysis, width, most))),
        ("Bus bandwidth, where most time is spent", list(_bandwidth(analysis, width, most))),
    ):
        if found:
            yield ""
            yield from (styled(line, "bold", screen) for line in wrapped(title, width))
            yield from found
    yield ""
    yield from _warned(analysis, screen, width, most)
    # On a line of its own and whole, however long: it is there to be copied.
    yield f"More: {program} summary --all {named}"
    yield from wrapped(
        "has everything, `report` pictures, `lateness` and `ranks` who was late and why, `bandwidth` every size; "
        f"`{program} --help` lists the rest.",
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


def _of_world(run: Any) -> str:
    return f" of {run.world_size}" if run.world_size not in (None, len(run.ranks)) else ""


def _step_title(analysis: OverviewTables) -> str:
    if not len(analysis.table("breakdown")):
        return ""
    typical = analysis.typical_step
    ms = typical.parts["window_ns"] / 1e6
    lengths = [ns / 1e6 for ns in typical.lengths_ns]
    devices = len(analysis.table("breakdown"))
    of_devices = f", mean of {devices} devices" if devices > 1 else ""
    if not lengths:
        return f"The window is {ms:,.1f} ms{of_devices}"
    if typical.differ:
        each = listed([f"{length:,.1f}" for length in lengths])
        return f"Steps {ranges_of(typical.steps)} take {each} ms, on average {ms:,.1f} ms{of_devices}"
    if len(lengths) == 1:
        [row] = records(analysis.table("steps").query("step == @typical.steps[0]"))
        between = f", {row['shortest_ns'] / 1e6:,.1f} to {row['longest_ns'] / 1e6:,.1f}" if devices > 1 else ""
        return f"A step takes {ms:,.1f} ms (step {typical.steps[0]}{of_devices}{between})"
    middle = median(lengths)
    of_middle = f", median {middle:,.1f}" if abs(middle - ms) > _SAME_LENGTH * ms else ""
    spread = f"{min(lengths):,.1f} to {max(lengths):,.1f}{of_middle}"
    return f"A step takes {ms:,.1f} ms (steps {ranges_of(typical.steps)}: {spread}{of_devices})"


def _step(analysis: OverviewTables, screen: Screen, width: int) -> Iterator[str]:
    if not len(analysis.table("breakdown")):
        return
    parts = analysis.typical_step.parts
    mark = "#" if screen.ascii_only else "\u2588"
    for column, name in STEP_PARTS.items():
        share = parts[column] / parts["window_ns"] if parts["window_ns"] else 0.0
        if share >= _SHOWN_FROM:
            bar = mark * round(min(_BAR, width - 51) * share)
            yield f"  {name:<26}{parts[column] / 1e6:>10,.1f} ms {share:>6.1%}  {bar}"
    for name, ns in idle_rows(analysis.idle_causes):
        yield f"    {name:<24}{ns / 1e6:>10,.1f} ms {ns / parts['window_ns']:>6.1%}"
    steps = analysis.table("steps")
    for row in records(steps[steps["left_out"].notna()].head(_MOST_LEFT_OUT)):
        yield from (f"  {line}" for line in wrapped(f"Step {row['step']} is not counted: {row['note']}.", width - 2))


def _who(analysis: OverviewTables, width: int, most: int) -> Iterator[str]:
    """Who caused the exposed waiting of a typical step, in ms of that, and why."""
    ranks = analysis.typical_ranks
    shares = shares_of_waiting(ranks, "rank")
    waited_ms = analysis.typical_step.parts["exposed_wait_ns"] / 1e6 if len(analysis.table("breakdown")) else 0.0
    late = shares[shares * waited_ms >= _LEAST_MS].sort_values(ascending=False, kind="stable")
    named = late[late >= _WORTH_NAMING].index[:most].tolist()
    a_step = " a step" if analysis.typical_step.steps else ""
    for row in sorted(records(ranks[ranks["rank"].isin(named)]), key=lambda row: named.index(row["rank"])):
        host = f" ({shortened(printable(row['host']), 16)})" if row["host"] else ""
        share = shares[row["rank"]]
        doing = on_cpu(analysis.table("late_work"), row["rank"]) if row["because"] == "cpu" else None
        why = f": {_BECAUSE.get(row['because'], row['because'])}" if row["because"] else ""
        why = f": CPU {printable(str(doing))}" if doing is not None else why
        kernel = f" in {shortened_kernel(printable(row['kernel']), 36)}" if row["kernel"] else ""
        caused = f"  rank {row['rank']}{host}: {length(share * waited_ms)}{a_step}, {share:.0%} of the exposed wait"
        if cell_len(caused + why + kernel) <= width:
            yield caused + why + kernel
        else:  # what makes a rank late is not worth the number beside it
            yield caused
            yield shortened(f"    {why.removeprefix(': ')}{kernel}", width)
    rest = late.drop(named)
    if len(rest):
        who = counted(len(rest), "more rank" if named else "rank")
        yield f"  {who}: {length(rest.sum() * waited_ms)}{a_step}{' together' if len(rest) > 1 else ''}"


_BECAUSE = {"cpu": "CPU launches late", "data": "data loader", "start": "begins the traced step later"}
"""Why a rank is late, where `ranks` says it in one word that says little alone."""


def _try(analysis: OverviewTables, width: int, most: int) -> Iterator[str]:
    room = width - 26
    for row in records(analysis.table("remedies"))[:most]:
        if row["concerned_frac"] >= _WORTH_TRYING:
            ms = row["concerned_ns"] / 1e6
            yield f"  {shortened(row['what'], room):<{room}}{ms:>11,.1f} ms {row['concerned_frac']:>7.1%}"


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
