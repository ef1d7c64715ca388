"""Trains, and forks while it does: `forking.py STEP...`; each child leaves by sys.exit, with its step as its code."""

import os
import sys

import torch

import analysis
import profiling

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(12):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if str(step) not in sys.argv[1:]:
        continue
    child = os.fork()
    if not child:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        print(f"child {step} ends")
        sys.exit(step)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(profiling.MINE, analysis.MINE, sep="\n")
