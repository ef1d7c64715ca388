"""Collectives as torch calls them: buffers, inputs, the call, and the expected result.

Sizes follow nccl-tests (src/*.cu, GetCollByteCount): the size is the whole array. Collectives that divide an array
round each rank's share down to a multiple of 16 bytes, if it has that many; then `count` is the share, else the array.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from . import patterns
from .config import CollectiveName

_ALIGNED_BYTES = 16
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}
# torch 2.13 renames both, and warns about the old names.
_ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_REDUCE_SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"


@dataclass(frozen=True)
class Case:
    """One collective, dtype, reduction (None without one) and count, on `rank` of `ranks`."""

    collective: CollectiveName
    dtype: torch.dtype
    op: str | None
    count: int
    rank: int
    ranks: int
    root: int
    device: torch.device

    @property
    def whole(self) -> int:
        """Number of elements of the whole array."""
        return self.count * (self.ranks if COLLECTIVES[self.collective].shared_out else 1)

    @property
    def size_bytes(self) -> int:
        """Size in bytes as nccl-tests counts it."""
        return self.whole * self.dtype.itemsize

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    def input(self, repetition: int, rank: int | None = None) -> Tensor:
        """One period of a rank's input, by default this rank's."""
        rank = self.rank if rank is None else rank
        return patterns.period(self.op, rank, self.ranks, repetition, self.dtype)


@dataclass(frozen=True)
class Buffers:
    """Input and output of a call: the same tensor if torch works in place."""

    given: Tensor
    got: Tensor


# From a case and its buffers to one call; and to the number of wrong elements in what this rank got.
_Call = Callable[[Case, Buffers], Callable[[], object]]
_Check = Callable[[Case, Tensor, int], int]


@dataclass(frozen=True)
class Collective:
    """How to call one collective. `shared_out`: each rank has or gets a share of the array, `count` elements."""

    call: _Call
    check: _Check
    given: Callable[[Case], int]
    got: Callable[[Case], int]
    shared_out: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    least_ranks: int = 1


def count_for(collective: CollectiveName, size_bytes: int, itemsize: int, ranks: int) -> int:
    """Elements of an array of at most `size_bytes`; 0 if it would hold none, or fewer than one per rank."""
    count = size_bytes // itemsize
    if not COLLECTIVES[collective].shared_out:
        return count
    share, aligned = count // ranks, max(1, _ALIGNED_BYTES // itemsize)
    return share // aligned * aligned or share


def buffers(case: Case) -> Buffers:
    """Allocate the memory for the calls of a case."""
    kind = COLLECTIVES[case.collective]
    given = torch.zeros(kind.given(case), dtype=case.dtype, device=case.device)
    if kind.in_place:
        return Buffers(given, given)
    return Buffers(given, torch.zeros(kind.got(case), dtype=case.dtype, device=case.device))


def prepare(case: Case, held: Buffers, repetition: int) -> None:
    """Write this rank's input. The output is overwritten first, so that no earlier result passes as right."""
    held.got.zero_()
    if case.collective == "broadcast" and not case.is_root:
        return
    patterns.fill(held.given, case.input(repetition))


def call_of(case: Case, held: Buffers) -> Callable[[], object]:
    """A function that makes one call of the collective; on CUDA the call is only enqueued."""
    return COLLECTIVES[case.collective].call(case, held)


def wrong_elements(case: Case, held: Buffers, repetition: int) -> int:
    """Number of elements of this rank's result that differ from the result for `repetition`."""
    return COLLECTIVES[case.collective].check(case, held.got, repetition)


def _share(case: Case) -> int:
    return case.count


def _whole(case: Case) -> int:
    return case.whole


def _whole_on_root(case: Case) -> int:
    return case.whole if case.is_root else 0


def _reduced(case: Case, got: Tensor, repetition: int, first: int = 0) -> int:
    assert case.op is not None
    expected = patterns.reduced(case.op, case.ranks, repetition, case.dtype)
    tolerance = patterns.average_tolerance(case.ranks, case.dtype) if case.op == "avg" else 0.0
    return patterns.count_wrong(got, expected, first, tolerance=tolerance)


def _reduced_share(case: Case, got: Tensor, repetition: int) -> int:
    return _reduced(case, got, repetition, first=case.rank * case.count)


def _reduced_on_root(case: Case, got: Tensor, repetition: int) -> int:
    return _reduced(case, got, repetition) if case.is_root else 0


def _all_inputs(case: Case, got: Tensor, repetition: int) -> int:
    """Wrong elements, if the result must be the inputs of all ranks in order."""
    parts = enumerate(torch.split(got, case.count))
    return sum(patterns.count_wrong(part, case.input(repetition, rank)) for rank, part in parts)


def _all_inputs_on_root(case: Case, got: Tensor, repetition: int) -> int:
    return _all_inputs(case, got, repetition) if case.is_root else 0


def _my_share_of_all(case: Case, got: Tensor, repetition: int) -> int:
    """Wrong elements, if the result must be this rank's share of every rank's input."""
    first, parts = case.rank * case.count, enumerate(torch.split(got, case.count))
    return sum(patterns.count_wrong(part, case.input(repetition, rank), first) for rank, part in parts)


def _share_of_root(case: Case, got: Tensor, repetition: int) -> int:
    return patterns.count_wrong(got, case.input(repetition, case.root), case.rank * case.count)


def _input_of_root(case: Case, got: Tensor, repetition: int) -> int:
    return patterns.count_wrong(got, case.input(repetition, case.root))


def _input_of_previous(case: Case, got: Tensor, repetition: int) -> int:
    return patterns.count_wrong(got, case.input(repetition, (case.rank - 1) % case.ranks))


def _op(case: Case) -> dist.ReduceOp.RedOpType:
    return _OPS[case.op or "sum"]


def _all_reduce(case: Case, held: Buffers) -> Callable[[], object]:
    op = _op(case)
    return lambda: dist.all_reduce(held.got, op)


def _all_gather(case: Case, held: Buffers) -> Callable[[], object]:  # noqa: ARG001
    function = getattr(dist, _ALL_GATHER)
    return lambda: function(held.got, held.given)


def _reduce_scatter(case: Case, held: Buffers) -> Callable[[], object]:
    op, function = _op(case), getattr(dist, _REDUCE_SCATTER)
    return lambda: function(held.got, held.given, op)


def _all_to_all(case: Case, held: Buffers) -> Callable[[], object]:  # noqa: ARG001
    return lambda: dist.all_to_all_single(held.got, held.given)


def _broadcast(case: Case, held: Buffers) -> Callable[[], object]:
    return lambda: dist.broadcast(held.got, case.root)


def _reduce(case: Case, held: Buffers) -> Callable[[], object]:
    op = _op(case)
    return lambda: dist.reduce(held.got, case.root, op)


def _gather(case: Case, held: Buffers) -> Callable[[], object]:
    parts = list(torch.split(held.got, case.count)) if case.is_root else None
    return lambda: dist.gather(held.given, parts, case.root)


def _scatter(case: Case, held: Buffers) -> Callable[[], object]:
    parts = list(torch.split(held.given, case.count)) if case.is_root else None
    return lambda: dist.scatter(held.got, parts, case.root)


def _send_recv(case: Case, held: Buffers) -> Callable[[], object]:
    """Send to the next rank and receive from the previous one: the ring of nccl-tests' sendrecv."""
    following, previous = (case.rank + 1) % case.ranks, (case.rank - 1) % case.ranks

    def call() -> None:
        both = [
            dist.P2POp(dist.isend, held.given, following),
            dist.P2POp(dist.irecv, held.got, previous),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return call


COLLECTIVES: Mapping[CollectiveName, Collective] = {
    "all_reduce": Collective(_all_reduce, _reduced, _whole, _whole, reduces=True, in_place=True),
    "all_gather": Collective(_all_gather, _all_inputs, _share, _whole, shared_out=True),
    "reduce_scatter": Collective(_reduce_scatter, _reduced_share, _whole, _share, shared_out=True, reduces=True),
    "all_to_all": Collective(_all_to_all, _my_share_of_all, _whole, _whole, shared_out=True),
    "broadcast": Collective(_broadcast, _input_of_root, _whole, _whole, rooted=True, in_place=True),
    "reduce": Collective(_reduce, _reduced_on_root, _whole, _whole, reduces=True, rooted=True, in_place=True),
    "gather": Collective(_gather, _all_inputs_on_root, _share, _whole_on_root, shared_out=True, rooted=True),
    "scatter": Collective(_scatter, _share_of_root, _whole_on_root, _share, shared_out=True, rooted=True),
    "send_recv": Collective(_send_recv, _input_of_previous, _whole, _whole, least_ranks=2),
}
