"""Trains a small GPT in bfloat16 under DDP, and prints the FLOPs of a step: `gpt.py [--compile] [--steps N]`.

torch counts the FLOPs, in a step of its own before the others; those of a trace have to be the same.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if together:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    sizes = (50304, 1024, 1024, 16, 12) if on_gpu else (256, 64, 64, 4, 2)
    bare = GPT(*sizes).to(where)
    model: nn.Module = DistributedDataParallel(bare) if together else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    batch = torch.randint(sizes[0], (8 if on_gpu else 2, sizes[1] + 1), device=where)

    def loss_of(model: nn.Module) -> Tensor:
        with torch.autocast(where.type, torch.bfloat16):
            logits = model(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    with FlopCounterMode(display=False) as counter:
        loss_of(bare).backward()
    optimizer.zero_grad()
    if int(os.environ.get("RANK", "0")) == 0:
        print("flops", counter.get_total_flops(), flush=True)
    if options.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    for _ in range(options.steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    if on_gpu:
        torch.cuda.synchronize()
    if together:
        dist.barrier()
        dist.destroy_process_group()


main()
