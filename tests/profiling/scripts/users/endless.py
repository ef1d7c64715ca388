"""Trains until somebody stops it; says when it has made some steps, and when it cleans up."""

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
step = 0
try:
    while True:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        step += 1
        if step == 8:
            print("going", flush=True)
finally:
    print("cleaned up", flush=True)
