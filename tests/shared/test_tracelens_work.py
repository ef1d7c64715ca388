"""FLOPs and bytes against those that TraceLens gives for the same operators of five real traces."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from math import prod

import pytest
from beside_checkout import EXPECTED, needs_shared

from commtrace.analysis.metrics.compute.flops import counts, flops
from commtrace.analysis.metrics.compute.moved_bytes import moved_bytes, moves
from commtrace.analysis.metrics.compute.operators import ProfiledOperator

pytestmark = needs_shared
MIB = 1 << 20
SETS = ("tracelens-bert-h100", "tracelens-falcon-mi300", "tracelens-qwen-h100", "tracelens-sglang", "tracelens-vllm")


def rows(traces: str, table: str) -> Iterator[tuple[ProfiledOperator, float | None, float | None]]:
    """Operators of a table of TraceLens with its GFLOP and MiB, where it has them."""
    path = EXPECTED / "tracelens" / traces / f"{table}.csv"
    if not path.exists():  # it writes none for a kind of operator that did not run
        return
    suffix = "" if table == "unified_perf_summary" else "_first"
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            columns = [row[f"{name}{suffix}"] for name in ("Input Dims", "Input type", "Concrete Inputs")]
            if all(columns):
                dims, types, values = map(ast.literal_eval, columns)
                numbers = [row[f"{name}{suffix}"] for name in ("GFLOPS", "Data Moved (MB)")]
                gflop, mib = (float(number) if number else None for number in numbers)
                yield ProfiledOperator(row["name"], dims, types, values), gflop, mib


def flops_as_tracelens(one: ProfiledOperator) -> int:
    """torch's number, with what TraceLens counts otherwise."""
    value, reason = flops(one)
    assert value is not None, reason
    if one.name == "aten::addmm":  # it adds one operation per element of the output for the bias
        m, n = one.shape(1, "first")[0], one.shape(2, "second")[1]
        return value + m * n
    if one.name == "aten::_scaled_dot_product_flash_attention" and one.flag(
        4, "causal"
    ):  # it counts what is not masked
        assert value % 2 == 0
        return value // 2
    return value


def bytes_as_tracelens(one: ProfiledOperator) -> int | None:
    """Bytes, with what TraceLens counts otherwise; None where a trace does not tell the type of the output."""
    value, reason = moved_bytes(one)
    if value is None:
        assert reason.endswith("the type of the output is not recorded"), reason
        return None
    x = one.tensor(0, "input")
    if one.name == "aten::layer_norm":  # it counts six vectors as long as a row, where weight and bias are two
        return value + 4 * one.tensor(2, "weight").size_bytes
    if one.name == "aten::convolution":  # it leaves out the bias
        return value - one.tensor(2, "bias").size_bytes
    if one.name == "aten::mean":  # it counts one element of output, though one dimension of several is reduced
        return value - x.size_bytes // x.shape[-1] + 4
    return value


@pytest.mark.parametrize("table", ["GEMM", "CONV_fwd", "SDPA_fwd", "unified_perf_summary"])
def test_flops_are_those_of_tracelens(table: str) -> None:
    seen = set()
    for traces in SETS:
        for one, gflop, _ in rows(traces, table):
            if counts(one.name) and gflop is not None:
                seen.add(one.name)
                assert flops_as_tracelens(one) == round(gflop * 1e9), (traces, one)
    assert seen == {
        "GEMM": {"aten::mm", "aten::addmm", "aten::bmm", "aiter::gemm_a16w16"},
        "CONV_fwd": {"aten::convolution"},
        "SDPA_fwd": {"aten::_scaled_dot_product_flash_attention"},
    }.get(
        table,
        {
            *("aten::mm", "aten::addmm", "aten::bmm", "aiter::gemm_a16w16", "aten::convolution"),
            "aten::_scaled_dot_product_flash_attention",
        },
    )


def test_bytes_are_those_of_tracelens() -> None:
    seen, untold = set(), set()
    for traces in SETS:
        for one, _, mib in rows(traces, "unified_perf_summary"):
            if moves(one.name) and mib is not None:
                value = bytes_as_tracelens(one)
                if value is None:
                    untold.add(one.name)
                else:
                    seen.add(one.name)
                    assert value == round(mib * MIB), (traces, one)
    assert seen == {
        *("aten::mm", "aten::addmm", "aten::bmm", "aiter::gemm_a16w16", "aten::convolution"),
        *("aten::_scaled_dot_product_flash_attention", "aten::layer_norm", "aten::mean", "aten::copy_"),
        *("aten::add", "aten::add_", "aten::mul", "aten::neg", "aten::pow", "aten::rsqrt", "aten::silu"),
    }
    assert untold == {"aten::cumsum"}  # of integers; the sums are of type int64, where TraceLens keeps int32


def test_what_tracelens_knows_and_a_trace_does_not_tell() -> None:
    """It takes lengths of requests from annotations, and shapes inside fused experts from names of kernels."""
    unknown = {}
    for traces in SETS:
        for one, gflop, _ in rows(traces, "unified_perf_summary"):
            if gflop and not counts(one.name) and not moves(one.name):
                unknown[one.name] = flops(one).reason
    packed = {name for name, reason in unknown.items() if reason.startswith("sequences are packed")}
    assert packed == {"aiter::mha_batch_prefill", "vllm::unified_attention_with_output"}
    assert {name for name in unknown if "moe" in name} == {
        "pseudo_op::moe_triton_unfused_up",
        "pseudo_op::moe_triton_unfused_down",
    }


@pytest.mark.parametrize("traces", SETS)
def test_a_product_inside_that_of_a_library_is_the_same(traces: str) -> None:
    """TraceLens lists both; here the inner one counts, since only that is torch's."""
    outer = {}
    for one, gflop, _ in rows(traces, "GEMM"):
        if one.name == "vllm::rocm_unquantized_gemm":
            m, k = one.shape(0, "input")
            outer[m, one.shape(1, "weight")[0], k] = gflop
    assert bool(outer) == (traces == "tracelens-vllm")
    inner = {}
    for one, gflop, _ in rows(traces, "GEMM"):
        if one.name in ("aten::addmm", "aten::mm"):
            first = 1 if one.name == "aten::addmm" else 0
            (m, k), (_, n) = one.shape(first, "first"), one.shape(first + 1, "second")
            assert flops(one).value == 2 * prod((m, n, k))
            inner[m, n, k] = gflop
    assert {shape: inner.get(shape) for shape in outer} == outer
