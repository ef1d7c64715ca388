"""Inputs of `comms` have results that every dtype holds exactly, and what differs from them is seen."""

import itertools
from functools import reduce
from operator import add, mul
from typing import get_args

import pytest
import torch
from samples import a_sample

from commtrace.profiling.comms import patterns
from commtrace.profiling.comms.config import DtypeName, OpName

DTYPES = [getattr(torch, name) for name in get_args(DtypeName)]
RANKS = [1, 2, 3, 7, 16, 72]
MANY = list(itertools.product([300], DTYPES))
FILLED = list(itertools.product([1, 250, 251, 252, 2_500_000], [0, 1, 250, 251, 1000], DTYPES))


@pytest.mark.parametrize(("ranks", "dtype"), [*itertools.product(RANKS, DTYPES), *a_sample(MANY, 2)], ids=str)
def test_every_reduction_is_exact_in_any_order(dtype, ranks) -> None:
    for op, combine in (("sum", add), ("prod", mul), ("min", torch.minimum), ("max", torch.maximum)):
        inputs = [patterns.period(op, rank, ranks, 1, dtype) for rank in range(ranks)]
        exact = patterns.reduced(op, ranks, 1, dtype)
        assert torch.equal(reduce(combine, inputs), exact)
        # Nothing is negative, so what the whole fits in, every part does.
        assert min(int(values.min()) for values in inputs) >= 0
        assert torch.equal(exact.to(dtype).double(), exact.double())
        assert exact.unique().numel() > 1, "a constant would not show a shift"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", [None, "min", "max"])
def test_other_inputs_are_exact_too(dtype, op) -> None:
    values = patterns.period(op, 3, 8, 1, dtype)
    assert torch.equal(values.to(dtype).double(), values.double())


@pytest.mark.parametrize("op", [None, *get_args(OpName)])
def test_ranks_and_repetitions_have_other_inputs(op) -> None:
    periods = [patterns.period(op, rank, 4, repetition, torch.float32) for rank, repetition in ((0, 0), (1, 0), (0, 1))]
    for one, other in itertools.combinations(periods, 2):
        assert (one != other).float().mean() > 0.2


@pytest.mark.parametrize(("elements", "first", "dtype"), a_sample(FILLED, 60), ids=str)
def test_what_is_filled_is_found_right(elements, first, dtype) -> None:
    values = patterns.period(None, 2, 4, 0, dtype)
    target = torch.zeros(elements, dtype=dtype)
    patterns.fill(target, values, first)
    assert patterns.count_wrong(target, values, first) == 0
    for index in {0, elements - 1}:
        assert int(target[index].double()) == int(values[(first + index) % patterns.PERIOD])


def test_each_wrong_element_counts() -> None:
    values = patterns.period(None, 0, 2, 0, torch.float32)
    target = torch.zeros(3_000_000)
    patterns.fill(target, values)
    wrong = [0, 1, 251, 1_500_000, 2_999_999]
    target[wrong] += 1
    target[7] = float("nan")
    assert patterns.count_wrong(target, values) == len(wrong) + 1


@pytest.mark.parametrize("shift", [1, 2, 64, 256, 4096, 1 << 20])
def test_a_shift_is_seen(shift) -> None:
    values = patterns.period(None, 0, 2, 0, torch.int32)
    target = torch.zeros(10_000, dtype=torch.int32)
    patterns.fill(target, values, shift)
    assert patterns.count_wrong(target, values) > 9_900


def test_an_average_over_three_may_be_rounded_but_not_wrong() -> None:
    ranks, dtype = 3, torch.float32
    tolerance = patterns.average_tolerance(ranks, dtype)
    expected = patterns.reduced("avg", ranks, 0, dtype)
    inputs = [patterns.period("avg", rank, ranks, 0, dtype).to(dtype) for rank in range(ranks)]
    scaled = sum(values * torch.tensor(1 / ranks) for values in inputs)  # as NCCL does it
    assert patterns.count_wrong(scaled, expected, tolerance=tolerance) == 0
    scaled[5] += 0.25
    assert patterns.count_wrong(scaled, expected, tolerance=tolerance) == 1
    assert patterns.average_tolerance(4, dtype) == patterns.average_tolerance(3, torch.int32) == 0
