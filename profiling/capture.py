"""`capture()`: profile a training loop of one's own. Importable without torch, which it needs when called."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.rank import Keep
from .base.console.notices import say
from .base.detail import Detail
from .base.keeping import Keeping
from .base.libraries import require
from .base.run_directory import create_numbered
from .base.schedule import WARMUP, window

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .sessions.session import Session


def capture(
    out: str | os.PathLike[str],
    *,
    from_step: int | None = None,
    wait: int | None = None,
    warmup: int = WARMUP,
    active: int | None = None,
    repeat: int = 1,
    with_stack: bool = False,
    profile_memory: bool = False,
    memory: bool = False,
    light: bool = False,
    sync_events: bool = False,
    kineto_buffer_mb: int | None = None,
    device: torch.device | str | None = None,
    model: nn.Module | None = None,
    batch_size: int | None = None,
    config: Mapping[str, Any] | None = None,
    keep: Keep = "trace",
    analyse: bool = False,
    analyse_max_seconds: float = Keeping.max_seconds,
    analyse_max_gb: float = Keeping.max_gb,
    history: str | Path | None = None,
) -> Session:
    """Capture a training loop into the run directory `out`; where that has files in it, into `out-2`, and so on.

        with commtrace.capture("traces/mine", model=model) as session:
            for images, labels in loader:
                ...                # one training step
                session.step()     # the step is over

    or, where the loop is in a function, as its decorator; `commtrace.step()` then ends a step:

        @commtrace.capture("traces/mine")
        def train():
            for images, labels in loader:
                ...
                commtrace.step()

    or, where there is no block, as in the cells of a notebook, as an object:

        session = commtrace.capture("traces/mine").start()
        train(on_step=session.step)
        session.stop()

    Which steps are traced is as for `commtrace run`: 10 to 14, counted from 0; earlier ones, from step 2 on, of a loop
    that ends before; and more where what steps do repeats after several of them. `from_step` is the first traced step,
    `active` how many are traced, after `warmup` that the profiler discards; `wait`, instead of `from_step`, is how many
    steps come before those. All of that happens `repeat` times. DDP rebuilds its buckets before its second iteration:
    there begin with step 2 or later, with FSDP and pipelines with 1. `device` is the current CUDA device where there is
    one. Nothing is recorded before the block is entered.

    Tensor shapes are recorded unless `light`, which costs least: with NCCL the sizes of collectives are known all the
    same, with gloo they are not. Source lines and Python's garbage collections (`with_stack`), allocations
    (`profile_memory`) and, on GPUs, CUDA's synchronisations (`sync_events`) are recorded on request. `kineto_buffer_mb`
    is the host memory in MiB that the profiler may take for what a GPU did; 2048 without it. `memory` records
    allocations too, and on GPUs peaks of each step and a snapshot of torch's allocator for `commtrace memory`: of the
    traced steps, or of running out of memory. `model` adds parameter
    counts, DDP's buckets and FSDP2's groups to the side files, `batch_size` is per rank, `config` is kept as it is.

    Each trace is packed beside the training where `keep` is "recording", which removes the trace, or "both". With
    `analyse`, rank 0 gathers the recordings of all ranks when the block ends, prints the summary on stderr, and writes
    it and a report into `out`: it waits for `analyse_max_seconds`, and takes `analyse_max_gb` from all of them. It adds
    the capture to those of this machine in the file `history`, from which `commtrace compare --history` learns.

    One line on stderr says at the end what was written, or why it is not all that was asked for. For blocks that end
    early, see `commtrace.profiling.sessions.session.Session`.

    Raises LibraryError without torch, and UsageError for options that cannot be; on entering, RunDirError when the
    directory cannot be made, and CaptureError when another profiler is running in this process.
    """
    given = locals() | {"model": None}
    require("torch")
    import torch

    from .ranks import process_group as parallel
    from .sessions.session import Session, SessionOptions
    from .sessions.side_files import Subject

    where = torch.device(device) if device is not None else parallel.current_device()
    held = weakref.ref(model) if model is not None else None
    subject = Subject(held, None, batch_size, config, sys.argv)
    keeping = Keeping(keep, analyse, analyse_max_seconds, analyse_max_gb, None if history is None else str(history))
    detail = Detail(with_stack, profile_memory, light, sync_events, kineto_buffer_mb, memory=memory)
    session = Session(
        Path(out),
        window(from_step, wait=wait, warmup=warmup, active=active, repeat=repeat),
        where,
        subject,
        SessionOptions(detail, keeping, create=create_numbered, tell=say),
    )
    session.again = lambda: capture(**given | {"model": held() if held is not None else None})
    weakref.finalize(session, _say_unless_used, session.uses, str(out))
    return session


def _say_unless_used(uses: list[str], out: str) -> None:
    """Say that nothing was recorded, if a session was made and forgotten."""
    if not uses:
        how = "with commtrace.capture(...) as session: ..."
        say(f"capture({out!r}) recorded nothing, because its block was not entered; write: {how}")
