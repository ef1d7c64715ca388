"""Kernel times by operator and shapes beside those of TraceLens, which were made independently."""

from __future__ import annotations

import ast
from typing import Any

import pandas as pd
import pytest
from beside_checkout import EXPECTED, TRACES, needs_shared

from commtrace import analyse

pytestmark = needs_shared
_US_NS = 1_000
_ROUNDED_NS = 10
"""Of a sum of times with three decimals of a us."""

# The operator around the launch is named here, and its caller there.
CALLERS = {"aten::native_layer_norm": "aten::layer_norm"}
# A kernel that aten::cumsum launches through aten::copy_ belongs to the innermost of them here, and to the outer there.
LAUNCHED_BY_ANOTHER = {"tracelens-sglang": {"aten::copy_", "aten::cumsum"}}


@pytest.mark.slow_cases("tracelens-sglang")
@pytest.mark.parametrize(
    "name", ["tracelens-qwen-h100", "tracelens-bert-h100", "tracelens-falcon-mi300", "tracelens-sglang"]
)
def test_every_operator_took_as_long(name: str) -> None:
    """Not of tracelens-vllm: there the operators of graphs come from a second file, of when they were captured."""
    expected = pd.read_csv(EXPECTED / "tracelens" / name / "unified_perf_summary.csv")
    theirs = _sums(
        (*_innermost(_plain(row["name"]), _shapes(row["Input Dims"])), float(row["Kernel Time (µs)_sum"]) * _US_NS)
        for _, row in expected.iterrows()
        if not row["name"].endswith("(Synthetic Op)")  # kernels that no operator launched
    )
    shapes = analyse(TRACES / name, details=True, cache=False, whole=True).shapes
    named = shapes["operator"].replace(CALLERS).map(_plain)
    ours = _sums(zip(named, shapes["inputs"].fillna(""), shapes["total_ns"], strict=True))
    assert ours.keys() == theirs.keys()
    other = LAUNCHED_BY_ANOTHER.get(name, set())
    wrong = {
        key: (ours[key], theirs[key])
        for key in ours
        if key[0] not in other and abs(ours[key] - theirs[key]) > _ROUNDED_NS
    }
    assert not wrong
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()), abs=len(shapes) * _ROUNDED_NS)


def _innermost(operator: str, shapes: str) -> tuple[str, str]:
    """AITER multiplies with a transposed weight, here by `aten::mm`, which is named for its shapes."""
    if operator != "aiter::gemm_a16w16":
        return operator, shapes
    first, weight = shapes.split(" ")
    return "aten::mm", f"{first} {'x'.join(reversed(weight.split('x')))}"


def _plain(operator: str) -> str:
    """Kernels of Triton that SGLang marks are numbered."""
    return operator.rstrip("_0123456789") if operator.startswith("sglang_profiler::") else operator


def _sums(rows: Any) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = {}
    for operator, inputs, took_ns in rows:
        sums[operator, inputs] = sums.get((operator, inputs), 0.0) + took_ns
    return sums


def _shapes(text: object) -> str:
    """`((8, 16), (16,), ())` as in the table `shapes`."""

    def shape(dims: Any) -> str:
        if not isinstance(dims, tuple) or not dims:
            return ""
        if all(isinstance(size, int) for size in dims):
            return "x".join(map(str, dims))
        return f"[{' '.join(filter(None, map(shape, dims)))}]"

    return " ".join(filter(None, map(shape, ast.literal_eval(text)))) if isinstance(text, str) else ""
