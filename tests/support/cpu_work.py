"""Operators of a trace as torch's profiler writes them, for tests of what they compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from commtrace.analysis.metrics.compute.flops import counted_once, counts, flops, handing_over
from commtrace.analysis.metrics.compute.operators import ProfiledOperator


def operator(name: str, *inputs: tuple[Any, str, str]) -> ProfiledOperator:
    """An operator from its arguments: dimensions, type and value of each."""
    dims, types, values = ([item[place] for item in inputs] for place in range(3))
    return ProfiledOperator(name, dims, types, values)


def tensor(*shape: int, of: str = "float") -> tuple[list[int], str, str]:
    return list(shape), of, ""


def scalar(value: object) -> tuple[list[int], str, str]:
    return [], "Scalar", str(value)


def listed(*values: object) -> tuple[list[int], str, str]:
    return [], "ScalarList", str(list(values))


def several(*shapes: list[int]) -> tuple[list[list[int]], str, str]:
    """A list of tensors."""
    return list(shapes), "TensorList", ""


NONE: tuple[list[int], str, str] = ([], "", "")


def recorded(event: dict[str, Any]) -> ProfiledOperator:
    """The operator of one event of category cpu_op."""
    args = event.get("args", {})
    return ProfiledOperator(event["name"], args.get("Input Dims"), args.get("Input type"), args.get("Concrete Inputs"))


def counted(events: Iterable[dict[str, Any]]) -> list[ProfiledOperator]:
    """The operators whose FLOPs add up: with a formula, and within no other one of their thread."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["pid"], event["tid"]].append(event)
    result = []
    for thread in threads.values():
        starts = [round(event["ts"] * 1000) for event in thread]
        ends = [start + round(event["dur"] * 1000) for start, event in zip(starts, thread, strict=True)]
        names = [event["name"] for event in thread]
        chosen = np.array([counts(name) for name in names], dtype=bool)
        chosen &= ~handing_over(names, starts, ends, chosen)
        outer = counted_once(starts, ends, chosen)
        result += [recorded(event) for event, kept in zip(thread, outer, strict=True) if kept]
    return result


def flops_by_name(operators: Iterable[ProfiledOperator]) -> dict[str, int]:
    """FLOPs of each name; an operator without a number is an error."""
    result: dict[str, int] = defaultdict(int)
    for one in operators:
        value, reason = flops(one)
        assert value is not None, reason
        result[one.name] += value
    return dict(result)
