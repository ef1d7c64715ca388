"""Trains a small layer with known buffers in each step, then asks for more than the device has: `memory.py STEPS`."""

import sys

import torch

_LARGE_BYTES = 64 << 20  # blocks of whole 2 MiB have no rest


def main() -> None:
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(256, 256).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(int(sys.argv[1])):
        held = [torch.empty(_LARGE_BYTES, dtype=torch.uint8, device=where) for _ in range(1 + step % 3)]
        optimizer.zero_grad()
        model(torch.ones(64, 256, device=where)).sum().backward()
        optimizer.step()
        del held
    if where.type == "cuda":
        torch.cuda.synchronize()
        torch.empty(2 * torch.cuda.get_device_properties(where).total_memory, dtype=torch.uint8, device=where)


if __name__ == "__main__":
    main()
