"""Steps that may be none: a part of a training step that was taken for one, as where an optimizer steps often in each.

Measured is what whole steps have and these lack: a backward pass, which accumulates gradients, communication, or all
but a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import pandas as pd

from ...common.wording import listed, ranges_of

_SHORTER = 10
_WHOLE = ("long", "short")
_ADVICE = "they may be parts of steps: commtrace run has --steps-of and --step-on to say where a step ends"


def step_doubts(steps: pd.DataFrame, calls: pd.DataFrame, with_gradients: Set[int]) -> Iterator[str]:
    """Yield a sentence for each set of steps that lack the same; in steps `with_gradients`, a gradient became ready.

    Nothing is said of what all steps lack, as inference has no backward pass, nor of steps that are cut off, nor where
    steps repeat after several of them: then whole periods count.
    """
    if steps["period"].notna().any():
        return
    whole = steps[steps["left_out"].isna() | steps["left_out"].isin(_WHOLE)]
    lengths_ns = dict(zip(whole["step"].tolist(), whole["window_ns"].tolist(), strict=True))
    lacks: dict[int, list[str]] = {step: [] for step in lengths_ns}
    for has, what in ((with_gradients, "no backward pass"), (_with_calls(calls), "no communication")):
        if has & set(lacks):
            for step in set(lacks) - has:
                lacks[step].append(what)
    for reasons in dict.fromkeys(tuple(each) for each in lacks.values() if each):
        yield _sentence([step for step, each in lacks.items() if tuple(each) == reasons], reasons, lengths_ns)
    others = {step: ns for step, ns in lengths_ns.items() if not lacks[step]}
    short = [step for step, ns in others.items() if _SHORTER * ns <= max(others.values())]
    if short and 2 * len(short) <= len(others):  # else it is one long step, which is said elsewhere
        yield _sentence(short, (), lengths_ns)


def _sentence(found: Sequence[int], reasons: Sequence[str], lengths_ns: dict[int, int]) -> str:
    """`steps 3, 5 hold no backward pass, and take 0.6 to 0.7 ms, the others 154 to 178 ms`, and what to do."""
    several = len(found) > 1
    own = [lengths_ns[step] / 1e6 for step in found]
    others = [ns / 1e6 for step, ns in lengths_ns.items() if step not in found]
    hold = f" {'hold' if several else 'holds'} {listed(reasons)}" if reasons else ""
    took = f"{', and' if hold else ''} take{'' if several else 's'} {_between(own)} ms"
    return f"step{'s' if several else ''} {ranges_of(found)}{hold}{took}, the others {_between(others)} ms; {_ADVICE}"


def _between(lengths_ms: Sequence[float]) -> str:
    shortest, longest = f"{min(lengths_ms):,.1f}", f"{max(lengths_ms):,.1f}"
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _with_calls(calls: pd.DataFrame) -> set[int]:
    return set(calls["step"].dropna().tolist())
