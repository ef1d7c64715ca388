"""`commtrace plan-ranks`: which ranks of a large job to trace."""

from __future__ import annotations

from itertools import pairwise
from textwrap import fill
from typing import Annotated

import typer

from ....common.wording import counted
from ...core.escaping import printable
from ...metrics.rank_plan import INNERMOST_FIRST, Layout, Plan, cheapest_of_each, rank_plans
from ..output import write_out

_MOST_RANKS = 1 << 20

Order = Annotated[str, typer.Option(metavar="DIM-DIM-...", help="How ranks are numbered, innermost dimension first.")]
PerHost = Annotated[int, typer.Option("--gpus-per-host", min=1, help="Ranks on each host.")]


def plan_ranks_command(
    *,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Ranks in a tensor-parallel group.")] = 1,
    cp: Annotated[int, typer.Option("--cp", min=1, help="Ranks in a context-parallel group.")] = 1,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Stages of a pipeline.")] = 1,
    dp: Annotated[int, typer.Option("--dp", min=1, help="Ranks in a data-parallel group, sharded or not.")] = 1,
    order: Order = INNERMOST_FIRST,
    gpus_per_host: PerHost = 8,
) -> None:
    """Print which ranks to trace so that whole process groups are seen, and what is then not seen.

    A collective can be split into waiting and transfer only if all ranks of its group have traces. Groups of experts
    are parts of the groups that reduce gradients.

    \b
    Examples:
      commtrace plan-ranks --tp 8 --pp 4 --dp 32
      commtrace plan-ranks --tp 4 --cp 2 --dp 16 --order tp-cp-dp-pp
      commtrace plan-ranks --dp 64 --gpus-per-host 4
    """
    named = order.split("-")
    dimensions = INNERMOST_FIRST.split("-")
    if sorted(named) != sorted(dimensions):
        known = ", ".join(dimensions)
        raise typer.BadParameter(f"{printable(order)} must name each of {known} once", param_hint="--order")
    sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    layout = Layout({name: sizes[name] for name in named}, gpus_per_host)
    if layout.ranks > _MOST_RANKS:
        raise typer.BadParameter(f"that makes {layout.ranks:,} ranks; the most is {_MOST_RANKS:,}", param_hint="--dp")
    write_out(_plan_text(layout), None)


def _plan_text(layout: Layout) -> str:
    hosts = -(-layout.ranks // layout.ranks_per_host)
    sizes = ", ".join(f"{name} {size}" for name, size in layout.sizes.items())
    head = f"{counted(layout.ranks, 'rank')} on {counted(hosts, 'host')}: {sizes}, innermost first\n"
    if not layout.sorts:
        return f"{head}\nA single rank communicates with nobody: trace rank 0.\n"
    plans = rank_plans(layout)
    width = max(len(plan.what) for plan in plans)
    lines = [f"{'trace':<{width}}  {'ranks':>7}  {'hosts':>6}  whole groups"]
    lines += [f"{p.what:<{width}}  {len(p.ranks):>7,}  {p.hosts:>6,}  {_whole(layout, p)}" for p in plans]
    best = cheapest_of_each(layout)
    numbers = _ranges(best.ranks)
    lines += ["", f"The fewest ranks that show a whole group of every kind ({counted(len(best.ranks), 'rank')}):"]
    lines += ["", *_wrapped(numbers)]
    if len(best.ranks) < layout.ranks:
        lines += ["", "To trace only these:", "", *_wrapped(_condition(best.ranks)), "", _not_seen(layout, best)]
    return "\n".join([head, *lines, ""])


def _whole(layout: Layout, plan: Plan) -> str:
    parts = [f"{sort} {plan.whole[sort]:,}/{_groups(layout, sort):,}" for sort in layout.sorts if plan.whole[sort]]
    return ", ".join(parts)


def _groups(layout: Layout, sort: str) -> int:
    return layout.ranks // layout.size_of(sort)


def _not_seen(layout: Layout, plan: Plan) -> str:
    others = [f"{_groups(layout, sort) - plan.whole[sort]:,} {sort} groups" for sort in layout.sorts]
    return fill(
        f"Not seen whole: {', '.join(others)}. If a rank there is late, you see that the traced ranks wait, but not "
        "why. If they wait long, trace another group.",
        78,
    )


def _condition(ranks: tuple[int, ...]) -> str:
    """A Python condition that is true on these ranks."""
    steps = {second - first for first, second in pairwise(ranks)}
    if len(steps) <= 1:
        step = f", {steps.pop()}" if steps - {1} else ""
        return f'if int(os.environ["RANK"]) in range({ranks[0]}, {ranks[-1] + 1}{step}):'
    parts = ", ".join(f"*range({first}, {last + 1})" if last > first else str(first) for first, last in _runs(ranks))
    return f'if int(os.environ["RANK"]) in {{{parts}}}:'


def _wrapped(text: str) -> list[str]:
    return fill(text, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False).splitlines()


def _ranges(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(ranks))


def _runs(ranks: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last number of each run of successive numbers."""
    breaks = [place for place, (before, after) in enumerate(pairwise(ranks), 1) if after != before + 1]
    return [(ranks[first], ranks[last - 1]) for first, last in pairwise([0, *breaks, len(ranks)])]
