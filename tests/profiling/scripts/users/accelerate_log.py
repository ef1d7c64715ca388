"""A loop of one's own with accelerate, captured and logged as docs/logs.md says: `accelerate_log.py RUN_DIR`."""

import json
import sys
import time
from pathlib import Path

import torchvision_here  # isort: skip  # noqa: F401
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import commtrace

if __name__ == "__main__":
    out = Path(sys.argv[1])
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=".")
    accelerator.init_trackers("mine")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with commtrace.capture(out, analyse=True) as session:
        for (rows,) in loader:
            optimizer.zero_grad()
            accelerator.backward(model(rows).square().mean())
            optimizer.step()
            session.step()
    if accelerator.is_main_process:
        found = json.loads((session.run_dir / "scalars.json").read_text())
        accelerator.log(found["scalars"], step=session.steps_done)
    time.sleep(0.2)  # gloo's thread has to let go of the model: else torch 2.13 may wait for it with Python's lock
    accelerator.end_training()
