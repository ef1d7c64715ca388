"""What uneven experts cost, by layer, step and rank, and by layer over all steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from ...core.schema import Row, records
from ..prices import UnevenExperts
from .passes import sum_if_known

_IN_TURNS = "two batches take turns, so compute between dispatch and combine is not of one alone"
_NO_ROWS = "no sizes are recorded"
_EVEN = "parts are equal, or the list of them is too long to be recorded"
_NO_FORWARD = "its forward pass was not traced"
_NEARLY_ALWAYS, _MOSTLY, _HOT = 0.9, 0.75, 1.1
"""Of the steps, in which a hot rank is the slowest of its group; of the cost, if that is in fewer; and of the mean,
what it has at least."""
_NOT_SPLIT = "waiting is not known, see `collectives`"


def rows_of_experts(passes: pd.DataFrame, window_ns: Mapping[tuple[int, int], int]) -> Iterator[Row]:
    """Yield a row per layer, step and rank. `window_ns` is how long a step is on a rank."""
    of_rows: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    together: dict[int, list[Row]] = defaultdict(list)
    for each in records(passes):
        of_rows[-1 if each["step"] is None else each["step"], each["layer"], each["rank"]].append(each)
        together[each["dispatch_id"]].append(each)
    shares = {number: _imbalance(own) for number, own in together.items()}
    costs = {number: _cost(own) for number, own in together.items()}
    for (_, layer, rank), own in sorted(of_rows.items()):
        step = own[0]["step"]
        forward = [each for each in own if not each["is_backward"]]
        window = window_ns.get((rank, step))
        uneven = [shares[each["dispatch_id"]] for each in forward]
        waits = {name: sum_if_known(each[name] for each in own) for name in ("wait_dispatch_ns", "wait_combine_ns")}
        yield {
            "layer": layer,
            "step": step,
            "rank": rank,
            "process_group": own[0]["process_group"],
            "pg_ranks": own[0]["pg_ranks"],
            "passes": len(own),
            **{name: sum_if_known(each[name] for each in forward) for name in ("sent_tokens", "received_tokens")},
            "imbalance_factor": _quotient(uneven),
            "expert_ns": sum_if_known(each["expert_ns"] for each in own),
            "cost_ns": _rounded(sum_if_known(costs[each["dispatch_id"]] for each in own)),
            **waits,
            **{
                name.replace("_ns", "_frac"): None if ns is None or not window else ns / window
                for name, ns in waits.items()
            },
            "note": _note(own, forward, shares),
        }


def _imbalance(own: Sequence[Row]) -> tuple[float, float] | None:
    """The most that a rank gets in an exchange, and the mean; None if that is not known of all."""
    column = "received_tokens" if all(each["received_tokens"] is not None for each in own) else "received_elems"
    got = [each[column] for each in own]
    if None in got or own[0]["missing"] is not None:
        return None
    return float(max(got)), fmean(got)


def _cost(own: Sequence[Row]) -> float | None:
    """How much longer the slowest rank of a pass takes than the mean, in ns; None if that is not known of all."""
    took = [each["expert_ns"] for each in own]
    if None in took or own[0]["missing"] is not None:
        return None
    return float(max(took)) - fmean(took)


def _quotient(uneven: Sequence[tuple[float, float] | None]) -> float | None:
    """Largest over mean, the passes together: each waits for the one that has most in it."""
    known = [each for each in uneven if each is not None]
    most, mean = (float(sum(each[part] for each in known)) for part in (0, 1))
    return most / mean if len(known) == len(uneven) and mean else None


def _note(own: Sequence[Row], forward: Sequence[Row], shares: Mapping[int, object]) -> str | None:
    missing = next((each["missing"] for each in own if each["missing"] is not None), None)
    because = [f"not seen on {missing}"] if missing is not None else []
    if not forward:
        because.append(_NO_FORWARD)
    elif any(each["received_tokens"] is None for each in forward):
        even = all(shares[each["dispatch_id"]] is not None for each in forward)
        because.append(_EVEN if even else _NO_ROWS)
    if any(each["expert_ns"] is None for each in own):
        because.append(_IN_TURNS)
    if missing is None and any(each["wait_dispatch_ns"] is None or each["wait_combine_ns"] is None for each in own):
        because.append(_NOT_SPLIT)
    return "; ".join(because) or None


def rows_of_layers(experts: pd.DataFrame, counted: Collection[int]) -> Iterator[Row]:
    """Yield a row per layer, over the steps that count. `experts` is the table of this name."""
    of_layers: dict[int, list[Row]] = defaultdict(list)
    for row in records(experts):
        if not counted or row["step"] is None or row["step"] in counted:
            of_layers[row["layer"]].append(row)
    for layer, own in sorted(of_layers.items()):
        yield {"layer": layer, **_layer(own)}


def _layer(own: Sequence[Row]) -> dict[str, Any]:
    """One layer over its steps, each group of ranks by itself; costs are means over steps and groups."""
    steps = {row["step"] for row in own}
    of_groups: dict[Any, list[Row]] = defaultdict(list)
    for row in own:
        of_groups[row["process_group"], row["pg_ranks"]].append(row)
    groups = [_group(rows) for rows in of_groups.values()]
    dearest = max(groups, key=lambda group: group["cost_ns"] or 0.0)
    factors = [row["imbalance_factor"] for row in own if row["imbalance_factor"] is not None]
    return {
        "steps": len(steps),
        "imbalance_factor": fmean(factors) if factors else None,
        "imbalance_most_factor": max(factors, default=None),
        "hot_rank": dearest["hot_rank"],
        "hot_frac": dearest["hot_frac"],
        "hot_factor": dearest["hot_factor"],
        **{name: _rounded(_mean(group[name] for group in groups)) for name in ("cost_ns", "persistent_cost_ns")},
        **{
            name: _rounded(_mean(row[name] for row in own))
            for name in ("expert_ns", "wait_dispatch_ns", "wait_combine_ns")
        },
        "note": next((row["note"] for row in own if row["note"] is not None), None),
    }


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    """Who of a group is slowest, how often, and which part of the cost is that the same ranks always are."""
    unknown = {"hot_rank": None, "hot_frac": None, "hot_factor": None, "cost_ns": None, "persistent_cost_ns": None}
    times: dict[int, list[float]] = defaultdict(list)
    of_steps: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row["cost_ns"] is None or row["expert_ns"] is None:
            return unknown
        times[row["rank"]].append(row["expert_ns"])
        of_steps[row["step"]].append(row)
    means = {rank: fmean(own) for rank, own in times.items()}
    usual = fmean(means.values())
    slowest = Counter(max(own, key=lambda row: row["expert_ns"])["rank"] for own in of_steps.values())
    hot, often = max(slowest.items(), key=lambda each: (each[1], means[each[0]]))
    if max(means.values()) == min(means.values()):
        hot_of: dict[str, Any] = {"hot_rank": None, "hot_frac": None, "hot_factor": None}
    else:
        hot_of = {
            "hot_rank": hot,
            "hot_frac": often / len(of_steps),
            "hot_factor": means[hot] / usual if usual else None,
        }
    cost = fmean(own[0]["cost_ns"] for own in of_steps.values())
    return {**hot_of, "cost_ns": cost, "persistent_cost_ns": min(max(means.values()) - usual, cost)}


def uneven_experts(experts: pd.DataFrame, counted: Collection[int]) -> UnevenExperts | None:
    """Whose experts are busiest, all layers together, over the steps that count; None where they are even.

    A rank is hot that is the slowest of its group in nearly every step, or whose experts alone are most of the cost,
    and has more to do. Where tokens are known, only these tell: experts that take longer for as many are those of a
    slow rank. `experts` is the table of this name.
    """
    times: dict[Any, dict[Any, dict[int, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    tokens: dict[int, float] = defaultdict(float)
    factors: list[float] = []
    rows = [
        row
        for row in records(experts)
        if row["cost_ns"] is not None and (not counted or row["step"] is None or row["step"] in counted)
    ]
    of_tokens = all(row["received_tokens"] is not None for row in rows)
    for row in rows:
        times[row["process_group"], row["pg_ranks"]][row["step"]][row["rank"]] += row["expert_ns"]
        tokens[row["rank"]] += row["received_tokens"] or 0
        factors += [] if row["imbalance_factor"] is None else [row["imbalance_factor"]]
    if not rows:
        return None
    if len(factors) == len(rows):
        factor = fmean(factors)
    else:
        every = [list(of_step.values()) for of_group in times.values() for of_step in of_group.values()]
        usual = sum(map(fmean, every))
        factor, of_tokens = (sum(map(max, every)) / usual if usual else 1.0), False
    if factor < _HOT:
        return None
    of_layers: dict[Any, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        of_layers[row["process_group"], row["pg_ranks"]][row["layer"]].append(row)
    hot = [
        each
        for group, of_group in times.items()
        if (each := _hot(of_group, tokens if of_tokens else None, _is_persistent(of_layers[group].values())))
    ]
    if not hot:
        return UnevenExperts((), factor, of_tokens)
    ranks, more, always = zip(*hot, strict=True)
    return UnevenExperts(tuple(sorted(ranks)), fmean(more), of_tokens, all(always))


def _hot(
    of_steps: Mapping[Any, Mapping[int, float]], tokens: Mapping[int, float] | None, persistent: bool
) -> tuple[int, float, bool] | None:
    """The rank of a group that is slowest, how many times the mean it has, and if in nearly every step; else None.

    `of_steps` is expert time by step and rank. It has more `tokens`, or takes more time where these are not known. In
    a loop it may be so in the long steps alone: then the cost is `persistent`, and no other's excess is like its own.
    """
    [(rank, often)] = Counter(max(of, key=of.__getitem__) for of in of_steps.values()).most_common(1)
    ranks = {each for of in of_steps.values() for each in of}
    has = {each: tokens[each] if tokens else sum(of.get(each, 0.0) for of in of_steps.values()) for each in ranks}
    usual = fmean(has.values())
    always = often >= _NEARLY_ALWAYS * len(of_steps)
    if not always:
        took = {each: sum(of.get(each, 0.0) for of in of_steps.values()) for each in ranks}
        rank = max(took, key=took.__getitem__)
        own, *others = sorted((ns - fmean(took.values()) for ns in took.values()), reverse=True)
        if not persistent or (others and others[0] > (1 - _MOSTLY) * own):
            return None
    return (rank, has[rank] / usual, always) if has[rank] >= _HOT * usual > 0 else None


def _is_persistent(of_layers: Iterable[Sequence[Row]]) -> bool:
    """Whether layers of a group would cost most of what they do if each rank took its mean in every step."""
    found = [_group(rows) for rows in of_layers]
    cost, persistent = (sum(each[name] or 0.0 for each in found) for name in ("cost_ns", "persistent_cost_ns"))
    return bool(persistent >= _MOSTLY * cost > 0)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known or not known else fmean(value for value in known if value is not None)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
