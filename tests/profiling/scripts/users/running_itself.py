"""Two ranks, of which the script starts the second one itself, as Lightning does: `running_itself.py PORT [FLAG]`.

The command and the variables are those of `_basic_subprocess_cmd` and `_call_children_scripts` in Lightning's
fabric/strategies/launchers/subprocess_script.py (2.6.6); FLAG is one more option of Python.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def start_others() -> "subprocess.Popen[bytes]":
    import __main__

    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    if __main__.__spec__ is None:
        command = [sys.executable, *sys.argv[2:], str(Path(sys.argv[0]).absolute()), *sys.argv[1:]]
    else:
        command = [sys.executable, *sys.argv[2:], "-m", __main__.__spec__.name, *sys.argv[1:]]
    return subprocess.Popen(command, env=os.environ.copy() | {"LOCAL_RANK": "1"}, cwd=None)


def main() -> None:
    helper = subprocess.run([sys.executable, "-c", "print('a helper')"], capture_output=True, text=True, check=True)
    other = None if "LOCAL_RANK" in os.environ else start_others()
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(14):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's thread has to let go of it
    dist.destroy_process_group()
    print(f"rank {rank} ends after {helper.stdout}", end="")
    if other is not None:
        print(f"the other one ended with {other.wait()}")


main()
