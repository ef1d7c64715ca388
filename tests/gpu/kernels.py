"""Launches many short kernels in each step: `kernels.py KERNELS [STEPS]`. They may not fit the profiler's buffers."""

import sys

import torch

where = "cuda" if torch.cuda.is_available() else "cpu"
kernels, steps = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 6
layer = torch.nn.Linear(16, 16).to(where)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
inputs, sums = torch.ones(16, 16, device=where), torch.zeros(1, device=where)
for _ in range(steps):
    layer(inputs).sum().backward()
    with torch.no_grad():
        for _ in range(kernels):
            sums.add_(1.0)
    optimizer.step()
print(int(sums.item()))
