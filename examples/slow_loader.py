"""A training in which one rank's data come late: what `traces/slow-loader-w2` was captured of.

torchrun --nproc-per-node 2 -m commtrace run --active 3 --run-name slow-loader-w2 examples/slow_loader.py

A small language model under DistributedDataParallel, on CPUs. Rank 1 reads its samples from slow storage, which a pause
stands for; each rank loads in its own process, as a DataLoader without workers does.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS, BATCH, TOKENS, WORDS, WIDTH = 30, 8, 64, 1_000, 192
SLOW_RANK, READ_S = 1, 0.008


class Stored(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences that a rank reads one by one, from slow storage on `SLOW_RANK`."""

    def __init__(self, rank: int) -> None:
        self.read_s = READ_S if rank == SLOW_RANK else 0.0

    def __len__(self) -> int:
        return STEPS * BATCH * dist.get_world_size()

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.read_s)
        tokens = torch.randint(WORDS, (TOKENS + 1,), generator=torch.Generator().manual_seed(number))
        return tokens[:-1], tokens[1:]


def main() -> None:
    """Train for some steps on this rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, WORDS))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Stored(dist.get_rank())
    for tokens, following in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
