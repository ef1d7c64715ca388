"""Trains from DataLoaders whose workers are forked and spawned, and tells what is in these: `loaders.py`."""

import os
import sys

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if not any(name.partition(".")[0] == "profiling" for name in sys.modules):
            found = 0.0
        else:  # forked, and so with all that the parent had, but not at work
            found = float(len(optimizers._global_optimizer_post_hooks))
        return torch.tensor([float(index), found])


def main() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for context in ("fork", "spawn"):
        seen = []
        for batch in DataLoader(Numbers(), batch_size=1, num_workers=1, multiprocessing_context=context):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            seen += batch.tolist()
        print(context, sorted(seen), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
    main()
