"""The least that a step of serving takes: reading weights and cached keys and values."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from builders import MS, US, Trace

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.compute.least_bytes import Read, least_read
from commtrace.analysis.results.opening import analyse
from commtrace.cli import main

BF16 = "c10::BFloat16"


def inputs(*shapes: list[int], dtype: str = BF16) -> str:
    return json.dumps([list(shapes), [dtype] * len(shapes), [""] * len(shapes)])


@pytest.mark.parametrize(
    ("name", "shapes", "read"),
    [
        ("aten::mm", [[8, 64], [64, 32]], Read(64 * 32 * 2, None)),
        ("aten::addmm", [[32], [8, 64], [64, 32]], Read(64 * 32 * 2, None)),
        ("aten::bmm", [[8, 4, 64], [8, 64, 32]], Read(None, None)),
        ("aten::add", [[8, 64], [8, 64]], Read(None, None)),
        ("aten::_scaled_dot_product_flash_attention", [[2, 4, 1, 16], [2, 4, 99, 16], [2, 4, 99, 16]],
         Read(None, 2 * 2 * 4 * 99 * 16 * 2)),
    ],
)  # fmt: skip
def test_what_an_operator_must_read(name: str, shapes: list[list[int]], read: Read) -> None:
    assert least_read(name, inputs(*shapes)) == read


def decoding(rng: random.Random, steps: int, *, paged: bool = False) -> tuple[Trace, int]:
    """Decode steps of products that are drawn, and what their weights are in bytes."""
    trace, now = Trace(device_names=["NVIDIA H100 80GB HBM3"]), 0
    layers = [(rng.randint(1, 64) * 64, rng.randint(1, 64) * 64) for _ in range(rng.randint(2, 8))]
    for _ in range(steps):
        begin = now
        for rows, columns in layers:
            trace.event("cpu_op", "aten::mm", now, 20 * US, **{
                "Input Dims": [[4, rows], [rows, columns]], "Input type": [BF16] * 2, "Concrete Inputs": ["", ""],
            })  # fmt: skip
            trace.kernel("gemm", now + 10 * US, 100 * US, launch=now + 5 * US)
            now += 120 * US
        if paged:
            trace.op("vllm::unified_attention", now, 20 * US)
            trace.kernel("paged_attention_v2_kernel", now + 10 * US, 100 * US, launch=now + 5 * US)
            now += 120 * US
        trace.annotation("step[DECODE bs=4]", begin, now - begin)
    return trace, sum(rows * columns * 2 for rows, columns in layers)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_takes_at_least_what_reading_its_weights_takes(tmp_path: Path, seed: int, paged: bool) -> None:
    trace, weights = decoding(random.Random(seed), 4, paged=paged)
    trace.write(tmp_path)
    [row] = records(analyse(tmp_path, details=True).serving_floors)
    assert row["weights_bytes"] == weights
    assert row["floor_ns"] == pytest.approx(weights / 3.35e12 * 1e9, abs=1)
    assert row["floor_frac"] == pytest.approx(row["floor_ns"] / row["window_ns"])
    assert (row["cache_bytes"], row["note"] is None) == ((None, False) if paged else (0, True))


def inputs_of(*given: list[int] | None) -> dict[str, Any]:
    """Arguments of an operator: tensors of bfloat16, tables of integers where a shape begins with -1, None without."""
    return {
        "Input Dims": [[] if shape is None else shape[1:] if shape[:1] == [-1] else shape for shape in given],
        "Input type": ["" if shape is None else "int" if shape[:1] == [-1] else BF16 for shape in given],
        "Concrete Inputs": [""] * len(given),
    }


def paged_attention(rng: random.Random) -> tuple[str, dict[str, Any], int, int]:
    """A call of paged attention that is drawn, bytes of a token, and of the pages that it may read."""
    pages, page, heads, head, requests = rng.randint(90, 9000), rng.choice([1, 16]), rng.randint(1, 8), 64, 4
    each = rng.randint(2, 99)
    cache, token = [pages, page, heads, head], 2 * heads * head * 2
    may_read = min(requests * each, pages) * page * token
    name = rng.choice(
        ["_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd", "_C::paged_attention_v1", "aiter::mha_batch_prefill"]
    )
    query, table, some = [4, heads * 2, head], [-1, requests, each], [-1, requests + 1]
    if name == "_vllm_fa2_C::varlen_fwd":
        return name, inputs_of(query, cache, cache, None, some, some, some, None, table), token, may_read
    if name == "_vllm_fa3_C::fwd":
        return (
            name,
            inputs_of(query, cache, cache, *[None] * 4, some, *[None] * 3, some, None, None, table),
            token,
            may_read,
        )
    if name == "_C::paged_attention_v1":
        keys, values = [pages, heads, head // 8, page, 8], [pages, heads, head, page]
        return name, inputs_of(query, query, keys, values, None, None, table, some), token, may_read
    slots = [pages * page, heads, head]
    listed = min(requests * each * page, pages * page)
    return name, inputs_of(query, slots, slots, some, some, [-1, listed]), token, listed * token


@pytest.mark.parametrize("seed", range(12))
def test_of_a_cache_in_pages_it_is_known_how_much_is_read_at_least_and_at_most(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    trace, weights = Trace(device_names=["NVIDIA H100 80GB HBM3"]), 4096 * 1024 * 2
    now, least, most = 0, 0, 0
    requests, layers, is_decode = rng.randint(1, 4), rng.randint(1, 5), seed % 3 != 0
    by_writers = seed % 2 == 0
    trace.event("cpu_op", "aten::mm", 0, 20 * US, **inputs_of([4, 4096], [4096, 1024]))
    trace.kernel("gemm", 10 * US, 100 * US, launch=5 * US)
    for _ in range(layers):
        now += 200 * US
        name, given, token, may_read = paged_attention(rng)
        if by_writers:  # attention shows nothing, what puts new tokens into the cache does
            blocks, heads = rng.randint(90, 9000), rng.randint(1, 8)
            new, cache, token = [4, heads, 64], [blocks, 16, heads, 64], 2 * heads * 64 * 2
            trace.event("cpu_op", "_C_cache_ops::reshape_and_cache_flash", now, 10 * US,
                        **inputs_of(new, new, cache, cache, [-1, 4]))  # fmt: skip
            trace.kernel("reshape_and_cache_flash_kernel", now + 30 * US, 5 * US, launch=now + 5 * US)
            name, given, may_read = "vllm::unified_attention_with_output", inputs_of(new, new), blocks * 16 * token
        trace.event("cpu_op", name, now + 20 * US, 20 * US, **given)
        trace.kernel("flash_fwd_splitkv_kernel", now + 50 * US, 100 * US, launch=now + 25 * US)
        trace.kernel("flash_fwd_splitkv_combine_kernel", now + 150 * US, 10 * US, launch=now + 35 * US)
        least, most = least + token, most + may_read
    trace.annotation(f"step[DECODE bs={requests}]" if is_decode else "step[EXTEND bs=2 toks=4]", 0, now + 200 * US)
    trace.write(tmp_path)
    [row] = records(analyse(tmp_path, details=True).serving_floors)
    assert row["cache_most_bytes"] == most
    assert row["floor_most_ns"] == pytest.approx((weights + row["cache_most_bytes"]) / 3.35e12 * 1e9, abs=1)
    if not is_decode:
        assert row["cache_bytes"] is None
        assert row["floor_ns"] == pytest.approx(weights / 3.35e12 * 1e9, abs=1)
    else:
        assert row["cache_bytes"] == requests * least
        assert row["floor_ns"] == pytest.approx((weights + row["cache_bytes"]) / 3.35e12 * 1e9, abs=1)
    assert ("at least a token of each request" in row["note"]) == is_decode
    assert row["note"].endswith("at most all that its pages hold")


def test_without_shapes_nothing_is_known_and_a_note_says_why(tmp_path: Path) -> None:
    Trace().annotation("step[DECODE bs=4]", 0, 5 * MS).kernel("gemm", 0, 5 * MS).write(tmp_path)
    [row] = records(analyse(tmp_path, details=True).serving_floors)
    assert (row["weights_bytes"], row["floor_ns"], row["floor_frac"]) == (None, None, None)
    assert row["note"].startswith("no product with shapes is known")


def test_the_bandwidth_of_an_unknown_device_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, weights = decoding(random.Random(9), 2)
    trace.device_names = ["A device"]
    trace.write(tmp_path)
    for given, floor in (([], None), (["--peak", "memory=2"], weights / 2e12 * 1e9)):
        assert main(["serving", "--by", "floor", "--no-cache", "--format", "json", *given, str(tmp_path)]) == 0
        [row] = json.loads(capsys.readouterr().out)["rows"]
        assert row["floor_ns"] == (None if floor is None else pytest.approx(floor, abs=1))
