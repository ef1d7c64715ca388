"""A stand-in for NCCL: opens the file that NCCL_DEBUG_FILE names when it is first used, and writes to it to the end."""

import os
import sys

import torch

name = os.environ["NCCL_DEBUG_FILE"].replace("%h", "node").replace("%p", str(os.getpid()))
with open(name, "w", buffering=1, encoding="utf-8") as log:  # noqa: PTH123
    log.write("NCCL INFO Bootstrap\n")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8 if sys.argv[1] == "step" else 0):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    log.write("the end\n")
print(os.environ["NCCL_DEBUG"])
