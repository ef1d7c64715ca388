"""Inputs with exactly known results, and the count of wrong elements.

Element i of rank r's input is a small integer that repeats with a period of 251, a prime: a shift by whole blocks, the
usual error, changes nearly every element. Results of a reduction stay so small that every dtype holds them and all
their partial results exactly, whatever the order of the ranks. So the expected result is computed from one period in
integers, and any difference is an error. The exception is `avg` over a number of ranks that is no power of two:
NCCL multiplies by a rounded 1/n, and a few units in the last place are allowed.
"""

import torch
from torch import Tensor

PERIOD = 251
_BLOCK_PERIODS = 4096  # about a million elements are filled or compared at once
# Integers up to here are exact in each dtype, and so are their sums up to here.
_EXACT = {
    torch.int8: 127,
    torch.uint8: 255,
    torch.bfloat16: 256,
    torch.float16: 2048,
    torch.float8_e4m3fn: 16,
    torch.float8_e5m2: 8,
}
_EXACT_OTHERWISE = 1 << 20
_STRIDE, _REPETITION_STRIDE, _RANK_STRIDE, _TURN_STRIDE, _AMOUNT_STRIDE = 31, 97, 17, 13, 7  # neighbours differ


def period(op: str | None, rank: int, ranks: int, repetition: int, dtype: torch.dtype) -> Tensor:
    """One period of the input of `rank` as int64; `op` is the reduction that uses it, None for none.

    `repetition` makes another input of the same kind, so that a result left over from before is wrong. Inputs and
    results differ between neighbours: a constant would hide misplaced elements.
    """
    exact = _EXACT.get(dtype, _EXACT_OTHERWISE)
    place = (torch.arange(PERIOD) * _STRIDE + repetition * _REPETITION_STRIDE) % PERIOD
    turn = (rank + place * _TURN_STRIDE) % ranks  # at every place the ranks in another order
    amount = place * _AMOUNT_STRIDE % PERIOD
    if op == "prod":  # 2 on as many ranks as keep the product exact, 1 on the others
        return 1 + (turn < place % (min(ranks, exact.bit_length() - 1) + 1)).long()
    if op in ("sum", "avg"):  # the same on as many ranks as keep the sum exact, 0 on the others
        most = min(ranks, exact)
        return (turn < 1 + place % most) * (1 + amount % min(exact // most, PERIOD - 1))
    if op in ("min", "max"):
        half = min(exact, PERIOD) // 2
        return amount % half + turn % half
    return (place + rank * _RANK_STRIDE) % min(exact, PERIOD)


def reduced(op: str, ranks: int, repetition: int, dtype: torch.dtype) -> Tensor:
    """One period of the result of `op` over all ranks: int64, or float64 for averages of floating-point inputs."""
    inputs = torch.stack([period(op, rank, ranks, repetition, dtype) for rank in range(ranks)])
    if op == "sum":
        return inputs.sum(0)
    if op == "prod":
        return inputs.prod(0)
    if op == "avg":
        total = inputs.sum(0)
        return total.double() / ranks if dtype.is_floating_point else total // ranks
    return inputs.amin(0) if op == "min" else inputs.amax(0)


def fill(target: Tensor, values: Tensor, first: int = 0) -> None:
    """Write elements `first`, `first + 1`, ... of the sequence with period `values` into the flat `target`."""
    block = _block(target, values, first, dtype=target.dtype)
    for part in torch.split(target, len(block)):
        part.copy_(block[: len(part)])


def count_wrong(got: Tensor, values: Tensor, first: int = 0, *, tolerance: float = 0.0) -> int:
    """Number of elements of the flat `got` that differ from elements `first`, ... of the periodic `values`.

    `tolerance` is a fraction of what is expected; NaN is always wrong.
    """
    block = _block(got, values, first, dtype=torch.float64 if tolerance else got.dtype)
    wrong = torch.zeros((), dtype=torch.int64, device=got.device)
    for part in torch.split(got, len(block)):
        expected = block[: len(part)]
        if tolerance:
            wrong += (~((part.double() - expected).abs() <= tolerance * expected)).sum()
        else:
            wrong += (_bits(part) != _bits(expected)).sum()
    return int(wrong)


def average_tolerance(ranks: int, dtype: torch.dtype) -> float:
    """Tolerance of an average, as a fraction: a unit in the last place per rank; 0 if 1/n is exact.

    No input is negative, so rounding errors are fractions of the result.
    """
    exact = not dtype.is_floating_point or ranks & (ranks - 1) == 0
    return 0.0 if exact else ranks * torch.finfo(dtype).eps


def _ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _block(like: Tensor, values: Tensor, first: int, *, dtype: torch.dtype) -> Tensor:
    """Whole periods from element `first` on: as many as one comparison takes, or as `like` needs."""
    repeats = max(1, min(_BLOCK_PERIODS, _ceiling(like.numel(), PERIOD)))
    return values.roll(-(first % PERIOD)).to(dtype).repeat(repeats).to(like.device)


def _bits(values: Tensor) -> Tensor:
    """Integer bits of float8, which cannot be compared: small integers have one representation, 0 is not negative."""
    return values.view(torch.uint8) if values.element_size() == 1 else values
