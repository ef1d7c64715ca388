"""Trains on a CPU with a CUDA allocator that is played, which runs out of memory long after the traced steps."""

import torch
from allocator import MIB, Allocator, OutOfMemory, called, snapshot

from commtrace.profiling.sessions import memory_record
from commtrace.profiling.sessions.memory_record import MemoryRecord
from commtrace.profiling.sessions.session import Session

STEPS = 30
PLAYED = Allocator(capacity=100 * MIB)


def begin(session: Session) -> None:
    session._memory = MemoryRecord(session.run_dir, 0, torch.device("cuda", 0))
    session._memory.start()


def play() -> None:
    """Let the played allocator stand for that of CUDA."""
    memory_record.record_allocations = lambda most_entries: None
    memory_record.allocator_snapshot = lambda: snapshot(PLAYED)
    torch.cuda.reset_peak_memory_stats = lambda device: None
    torch.cuda.max_memory_allocated = lambda device: PLAYED.total[0]
    torch.cuda.max_memory_reserved = torch.cuda.memory_reserved = lambda device: PLAYED.total[2]
    torch.cuda.mem_get_info = lambda device: (1 << 30, 2 << 30)
    Session._begin_memory = begin


def main() -> None:
    play()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        PLAYED.malloc(3 * MIB, frames=called("main", step))
    try:
        PLAYED.malloc(500 * MIB)
    except OutOfMemory:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 500.00 MiB.") from None


main()
