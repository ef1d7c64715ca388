"""Bytes derived from a trace against the tensors that torch read and made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpu_work import recorded
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from commtrace.analysis.metrics.compute.moved_bytes import moved_bytes

ATEN = torch.ops.aten
BRAIN, HALF, SINGLE, LONG = torch.bfloat16, torch.float16, torch.float32, torch.int64


def made(*shape: int, dtype: torch.dtype = SINGLE) -> Tensor:
    return torch.ones(shape, dtype=dtype)


Arguments = tuple[object, ...]
CASES: list[tuple[Callable[..., object], Arguments]] = [
    (ATEN.mm, (made(2, 3), made(3, 5))),
    (ATEN.addmm, (made(5), made(2, 3), made(3, 5))),
    (ATEN.bmm, (made(7, 2, 3, dtype=BRAIN), made(7, 3, 5, dtype=BRAIN))),
    (ATEN.baddbmm, (made(7, 1, 5), made(7, 2, 3), made(7, 3, 5))),
    (ATEN.convolution, (made(2, 4, 9, 8), made(6, 2, 3, 2), made(6), [2, 1], [1, 0], [2, 3], False, [0, 0], 2)),
    (ATEN.convolution, (made(2, 4, 9), made(4, 3, 5), None, [3], [2], [2], True, [1], 2)),
    (ATEN.convolution, (made(1, 2, 3, 4, 5), made(2, 3, 2, 2, 2), None, [2], [0], [1], True, [0], 1)),
    *((one, (made(2, 3, dtype=dtype),)) for dtype in (SINGLE, BRAIN) for one in (ATEN.exp, ATEN.silu, ATEN.abs)),
    (ATEN.neg, (made(2, 3, dtype=LONG),)),
    (ATEN.isnan, (made(2, 3),)),
    *(
        (one, (made(4, 1, 3, dtype=left), made(2, 1, dtype=right)))
        for left in (SINGLE, BRAIN, HALF)
        for right in (SINGLE, BRAIN, HALF, LONG)
        for one in (ATEN.add, ATEN.mul, ATEN.div, ATEN.maximum, ATEN.lt)
        if one is not ATEN.div or right is not LONG
    ),
    (ATEN.mul, (made(2, 3, dtype=LONG), made(3, dtype=torch.int32))),
    (ATEN.mul, (made(2, 3, dtype=LONG), made(3, dtype=torch.bool))),
    (ATEN.mul, (made(2, 3, dtype=BRAIN), made(dtype=SINGLE))),
    (ATEN.where, (made(2, 3, dtype=torch.bool), made(3, dtype=BRAIN), made(2, 1))),
    (ATEN.lerp, (made(2, 3), made(2, 3), made(3))),
    (ATEN.addcmul, (made(2, 3), made(3), made(2, 1))),
    (ATEN._softmax, (made(2, 3, dtype=BRAIN), -1, False)),
    (ATEN.sum, (made(2, 3, 4), [0, -1], True)),
    (ATEN.mean, (made(2, 3, 4, dtype=BRAIN), [1])),
    (ATEN.amax, (made(2, 3, 4), [0])),
    (ATEN.layer_norm, (made(2, 3), [3], made(3), made(3))),
    (ATEN.rms_norm, (made(2, 3), [3], made(3))),
    (ATEN.group_norm, (made(2, 4, 3), 2, made(4), made(4))),
]


@pytest.mark.parametrize(("call", "arguments"), CASES, ids=[str(call) for call, _ in CASES])
def test_bytes_are_those_of_the_tensors(call: Callable[..., object], arguments: Arguments, tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        out = call(*arguments)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    name = str(call).replace(".", "::")
    event = min((one for one in events if one.get("name") == name), key=lambda one: one["ts"])
    assert isinstance(out, Tensor)
    tensors = [*(one for one in arguments if isinstance(one, Tensor)), out]
    assert moved_bytes(recorded(event)) == (sum(one.numel() * one.element_size() for one in tensors), "")
