"""Trains with Hugging Face accelerate: `accelerated.py [{debug,notebook} PORT]`, which start two ranks themselves."""

import sys
import time

import torchvision_here  # isort: skip  # noqa: F401
import torch
from accelerate import Accelerator, debug_launcher, notebook_launcher
from torch.utils.data import DataLoader, TensorDataset


def train() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (rows,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(rows).square().mean())
        optimizer.step()
    time.sleep(0.2)  # gloo's thread has to let go of the model: else torch 2.13 may wait for it with Python's lock
    accelerator.end_training()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["debug", _]:
            debug_launcher(train, num_processes=2)
        case ["notebook", port]:
            notebook_launcher(train, num_processes=2, use_port=port)
        case _:
            train()
