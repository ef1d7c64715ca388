"""Loss and accuracy: what is counted, and that every parallel mode counts the same."""

from collections import defaultdict

import pytest
import torch
from capturing import ROOT, SCRIPTS, python
from torch import nn

from commtrace.profiling.train.learning.scoring import Score, ScoredLoss, largest, total

CPU = torch.device("cpu")
OUTPUTS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
LABELS = torch.tensor([0, 0, 0])


def test_batches_weigh_by_their_samples() -> None:
    """Two of three are right in the first batch, one of one in the second; the mean is over four."""
    criterion = ScoredLoss()
    with criterion.counted(CPU) as counts:
        losses = [criterion(OUTPUTS, LABELS), criterion(OUTPUTS[:1], LABELS[:1])]
    found = total(counts)
    assert (found.accuracy, found.samples) == (0.75, 4)
    assert found.loss == pytest.approx((3 * losses[0].item() + losses[1].item()) / 4, rel=1e-7)
    assert losses[0].item() == pytest.approx(nn.functional.cross_entropy(OUTPUTS, LABELS).item())


def test_outside_of_the_block_nothing_is_counted() -> None:
    criterion = ScoredLoss()
    with criterion.counted(CPU) as counts:
        pass
    criterion(OUTPUTS, LABELS)
    assert counts.tolist() == [0, 0, 0]


def test_counting_leaves_the_gradient_alone() -> None:
    gradients = []
    for criterion in (nn.CrossEntropyLoss(), ScoredLoss()):
        outputs = OUTPUTS.clone().requires_grad_()
        if isinstance(criterion, ScoredLoss):
            with criterion.counted(CPU):
                criterion(outputs, LABELS).backward()
        else:
            criterion(outputs, LABELS).backward()
        gradients.append(outputs.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_none(value) -> None:
    assert total(torch.tensor([value, 1, 4], dtype=torch.float64)) == Score(None, 0.25, 4)


def test_alone_the_largest_is_ones_own() -> None:
    assert largest([2**53 + 1, -3], CPU) == [2**53 + 1, -3]


@pytest.fixture(scope="module")
def said() -> dict[str, list[list[float]]]:
    """What two ranks said of each mode, in order of rank."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = python(*launcher, SCRIPTS / "modes_tested.py", folders=(ROOT / "tests/support",))
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[float]]] = defaultdict(list)
    for name, rank, *values in sorted(line.split() for line in done.stdout.splitlines()):
        assert int(rank) == len(found[name])
        found[name].append([float(value) for value in values])
    return found


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pipeline"])
def test_ranks_together_say_of_a_model_what_one_process_says(said, mode) -> None:
    """All 203 images once, with rank 0's statistics; training loss over all ranks, and of a pipeline once."""
    (alone, again) = said["single"]
    assert alone == again
    for loss, accuracy, samples in said[mode]:
        assert (accuracy, samples) == (pytest.approx(alone[1], abs=1e-9), 203)
        assert loss == pytest.approx(alone[0], rel=1e-5)
    assert [samples for *_, samples in said[f"{mode}-trained"]] == [16 if mode == "pipeline" else 32] * 2


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_lars_on_shards_is_lars_on_the_whole(said, mode) -> None:
    assert max(apart for (apart,) in said[f"{mode}-lars"]) < 1e-5


def test_the_largest_of_all_ranks(said) -> None:
    assert said["largest"] == [[1, 7, 0], [1, 7, 0]]
