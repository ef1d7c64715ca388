"""FLOPs from a trace against those that torch counts while the same model runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from cpu_work import counted, flops_by_name, recorded
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import (
    FlopCounterMode,
    conv_backward_flop,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from commtrace.analysis.metrics.compute.flops import ATTENTION_BACKWARD, ATTENTION_FORWARD, counts, flops

Run = Callable[[], object]


def _forward(query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **more: object) -> int:
    return sdpa_flop_count(query, key, value)


def _backward(
    grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **more: object
) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _convolution(*given: Any, out_shape: Any) -> int:
    """As torch 2.13, but groups divide the gradient of the weight as well: each channel meets those of its group."""
    *others, groups, mask = given
    by_torch = cast("Any", conv_backward_flop).__wrapped__  # of shapes, as they come here
    of_weight = by_torch(*others, groups, [False, True, False], out_shape) if mask[1] else 0
    rest = by_torch(*others, groups, [mask[0], False, False], out_shape)
    return int(rest + of_weight // groups)


ON_CPU = {
    torch.ops.aten.convolution_backward: _convolution,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}
"""torch registers attention of GPUs only; that of CPUs computes the same."""


def traced(run: Run, folder: Path) -> list[dict]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    path = folder / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return json.load(stream)["traceEvents"]


def by_torch(run: Run) -> dict[str, int]:
    with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter:
        run()
    table = counter.get_flop_counts().get("Global", {})
    assert sum(table.values()) == counter.get_total_flops()
    return {f"aten::{operator.__name__}": value for operator, value in table.items()}


class Block(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.second = nn.Conv2d(2 * channels, 2 * channels, 3, padding=2, dilation=2, groups=2)
        self.shortcut = nn.Conv2d(channels, 2 * channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.shortcut(x))


def resnet() -> Run:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(2), Block(8, 1), Block(16, 2), head)
    images = torch.randn(3, 3, 33, 29)
    return lambda: model(images).square().mean().backward()


def decoder() -> Run:
    """Transposed convolutions of one and three dimensions, one with groups."""
    line = nn.Sequential(nn.ConvTranspose1d(4, 6, 5, 3, padding=1, output_padding=2, groups=2), nn.Conv1d(6, 3, 4))
    room = nn.ConvTranspose3d(2, 3, 2, stride=2)
    signal, volume = torch.randn(2, 4, 11, requires_grad=True), torch.randn(1, 2, 3, 4, 5)
    return lambda: (line(signal).sum() + room(volume).sum()).backward()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads, causal
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width * kv_heads // heads)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = self.norm(x)
        query = self.query(normed).view(batch, length, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(normed).view(batch, length, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=self.heads != self.kv_heads
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Attention(32, 4, kv_heads, causal=True) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embedding.weight.T


def gpt(kv_heads: int = 4) -> Run:
    model, tokens = Gpt(kv_heads), torch.randint(50, (3, 17))
    return lambda: functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


def vit() -> Run:
    patches = nn.Conv2d(3, 24, 4, 4)
    layer, head = Attention(24, 3, 3, causal=False), nn.Linear(24, 5)
    images = torch.randn(2, 3, 16, 16)
    return lambda: head(layer(patches(images).flatten(2).transpose(1, 2)).mean(1)).sum().backward()


def experts() -> Run:
    """Experts as a batch of matrices for all tokens, and one by one for those that are routed to them."""
    gate = nn.Linear(16, 4)
    up, down = (nn.Parameter(torch.randn(4, *shape)) for shape in ((16, 40), (40, 16)))
    tokens = torch.randn(4, 9, 16)

    def run() -> None:
        flat = tokens.flatten(0, 1)
        chosen = gate(flat).argmax(-1)
        apart = [flat[chosen == number] @ up[number] @ down[number] for number in range(4)]
        together = torch.baddbmm(tokens, torch.relu(torch.bmm(tokens, up)), down)
        (torch.cat(apart).sum() + together.sum() + gate(flat).sum()).backward()

    return run


def inference() -> Run:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 7)).eval()
    images = torch.randn(2, 3, 8, 8)

    def run() -> None:
        with torch.inference_mode():
            model(images)

    return run


def batched() -> Run:
    """Functions of one example for many: torch records the call for one, and within it what computes all of them."""
    sizes = torch.randint(2, 9, (4,)).tolist()
    several, matrices, shared = torch.randn(*sizes[:3]), torch.randn(sizes[0], *sizes[2:]), torch.randn(*sizes[2:])
    convolution, images = nn.Conv2d(3, 4, 3), torch.randn(3, 2, 3, 8, 7)

    def run() -> None:
        torch.vmap(torch.mm)(several, matrices)
        torch.vmap(torch.mm, in_dims=(0, None))(several, shared)
        torch.vmap(torch.vmap(torch.mm, in_dims=(0, None)), in_dims=(None, 0))(several, matrices)
        torch.vmap(convolution)(images)

    return run


@pytest.mark.slow_cases("resnet", "gpt")
@pytest.mark.parametrize("model", [resnet, decoder, gpt, vit, experts, inference, batched])
def test_a_trace_has_the_flops_that_torch_counts(model: Callable[[], Run], tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = model()
    run()  # gradients exist from here on, so that both runs do the same
    expected = by_torch(run)
    assert flops_by_name(counted(traced(run, tmp_path))) == expected
    assert sum(expected.values()) > 0


@pytest.mark.slow
def test_attention_on_a_cpu_is_one_operator_and_with_plain_matrices_several(tmp_path: Path) -> None:
    run = gpt()
    fused = flops_by_name(counted(traced(run, tmp_path)))
    with sdpa_kernel(SDPBackend.MATH):
        plain, expected = flops_by_name(counted(traced(run, tmp_path))), by_torch(run)
    assert plain == expected
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in fused
    assert "aten::bmm" in plain
    assert "aten::bmm" not in fused
    # Backward, the fused operator computes the scores anew: one product of six more.
    scores = 2 * 3 * 4 * 17 * 17 * 8
    assert sum(fused.values()) == sum(plain.values()) + 2 * scores


@pytest.mark.slow
def test_query_heads_that_share_a_key_count_each(tmp_path: Path) -> None:
    with sdpa_kernel(SDPBackend.MATH):  # the one that takes fewer heads of keys on a CPU
        run = gpt(kv_heads=2)
        assert flops_by_name(counted(traced(run, tmp_path))) == by_torch(run)


@pytest.mark.slow
def test_a_recurrent_layer_counts_as_its_cells_one_by_one(tmp_path: Path) -> None:
    """torch counts nothing for the layer: it has no formula."""
    length, batch, features, hidden = torch.randint(2, 9, (4,)).tolist()
    layers, x = nn.LSTM(features, hidden, num_layers=2, bidirectional=True), torch.randn(length, batch, features)
    cells = [nn.LSTMCell(width, hidden) for width in (features, features, 2 * hidden, 2 * hidden)]

    def one_by_one() -> None:
        for cell in cells:
            for _ in range(length):
                cell(torch.randn(batch, cell.input_size))

    with torch.inference_mode():
        of_layers = flops_by_name(counted(traced(lambda: layers(x), tmp_path)))
        of_cells = by_torch(one_by_one)
    assert list(of_layers) == ["aten::mkldnn_rnn_layer"]
    assert sum(of_layers.values()) == sum(of_cells.values())


@pytest.fixture
def four_ranks() -> Iterator[DeviceMesh]:
    """A mesh of four ranks, of which only this one exists."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def test_a_rank_counts_its_part_of_a_dtensor(tmp_path: Path, four_ranks: DeviceMesh) -> None:
    """torch records the operator with the matrices of all ranks, and within it the one of this rank."""
    tokens = DTensor.from_local(torch.randn(12, 16), four_ranks, [Replicate()], run_check=False)
    weight = DTensor.from_local(torch.randn(16, 8), four_ranks, [Shard(1)], run_check=False)
    tokens @ weight  # at first, it looks for the placement of the result by a call on matrices without data
    assert flops_by_name(counted(traced(lambda: tokens @ weight, tmp_path))) == {"aten::mm": 2 * 12 * 16 * 8}


def test_a_grouped_product_counts_where_torch_does_it_group_by_group(tmp_path: Path) -> None:
    """torch counts nothing: it has no formula. The trace shows that a CPU multiplies group by group."""
    tokens, weights = torch.randn(16, 32, dtype=torch.bfloat16), torch.randn(4, 32, 64, dtype=torch.bfloat16)
    ends = torch.tensor([3, 3, 10, 16], dtype=torch.int32)
    events = traced(lambda: functional.grouped_mm(tokens, weights, offs=ends), tmp_path)
    grouped = next(event for event in events if event.get("name") == "aten::_grouped_mm")
    assert flops(recorded(grouped)).value is None
    assert flops_by_name(counted(events)) == {"aten::mm": 2 * 16 * 32 * 64}


def test_where_attention_says_whether_it_is_causal() -> None:
    arguments = {name: one for name, one in (ATTENTION_FORWARD | ATTENTION_BACKWARD).items() if name.startswith("aten")}
    assert len(arguments) > 10
    for name, one in arguments.items():
        schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
        assert schema.arguments[one.causal].name in ("is_causal", "custom_mask_type"), name


def test_every_registered_formula_is_here() -> None:
    names = {f"aten::{operator.__name__}" for operator in flop_registry if hasattr(operator, "overloads")}
    assert len(names) > 15
    assert {name for name in names if not counts(name)} == set()
