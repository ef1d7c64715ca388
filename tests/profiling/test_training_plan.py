from fractions import Fraction

import pytest

from commtrace.profiling.errors import OutOfDataError, UsageError
from commtrace.profiling.train.learning.lr_policy import linearly_scaled, warmed_up
from commtrace.profiling.train.plan import TrainingPlan, lr_policy, parse_batch_size_schedule, planned_epochs
from commtrace.profiling.workloads.data import epoch_steps


def plan(epochs: int = 90, **changes) -> TrainingPlan:
    return TrainingPlan(epochs, **{"lr_scaling": "linear", **changes})


def epochs_of(training: TrainingPlan, samples: int, workers: int, batch: int, warmup: int = 5, most: int = 0):
    return planned_epochs(training, warmup, most, batch, lambda size: epoch_steps(samples, workers, size))


@pytest.mark.parametrize(("global_batch", "lr"), [(256, 0.1), (8192, 3.2), (128, 0.05), (64, 0.025)])
def test_linear_scaling_is_the_papers(global_batch, lr) -> None:
    """Goyal et al., section 5.1: 0.1 for 256, hence 0.1 x 8192 / 256 = 3.2 for the minibatch of 8k."""
    assert linearly_scaled(0.1, global_batch, 256) == pytest.approx(lr, rel=1e-15)


def test_every_step_of_the_papers_large_minibatch() -> None:
    """8k images on 256 GPUs x 32, the 1,281,167 of ImageNet: 5 epochs from 0.1 by equal increments to 3.2."""
    epochs = epochs_of(plan(7), 1_281_167, 256, 32)
    policy = lr_policy(plan(7), 0.1, 256 * 32, epochs)
    assert (policy.warmup_steps, sum(one.steps for one in epochs)) == (5 * 156, 7 * 156)
    rate, increment = Fraction(1, 10), (Fraction(32, 10) - Fraction(1, 10)) / (5 * 156)
    for step in range(7 * 156):
        assert policy.lr(step) == pytest.approx(float(rate), rel=1e-13), step
        rate = min(rate + increment, Fraction(32, 10))
    assert [policy.lr(step) for step in (0, 780, 1091)] == [0.1, 3.2, 3.2]
    assert policy.lr(779) < 3.2, "reached after the warm-up, not in it"


def test_without_scaling_the_rate_is_what_was_given_at_every_step() -> None:
    flat = plan(4, lr_scaling="none")
    policy = lr_policy(flat, 0.3, 8192, epochs_of(flat, 1000, 2, 10, warmup=2))
    assert {policy.lr(step) for step in range(200)} == {0.3}


def test_without_warm_up_the_scaled_rate_holds_from_the_first_step() -> None:
    policy = lr_policy(plan(2), 0.1, 512, epochs_of(plan(2), 1000, 1, 10, warmup=0))
    assert [policy.lr(step) for step in (0, 1, 99)] == [0.2, 0.2, 0.2]


def test_a_smaller_batch_than_the_reference_needs_no_warming_up() -> None:
    assert [warmed_up(step, 0.1, 0.05, 10) for step in (0, 5, 10)] == [0.05, 0.05, 0.05]


def test_epochs_follow_the_schedule_and_so_do_their_steps() -> None:
    grown = plan(5, batch_size_schedule=((1, 20), (3, 50)))
    found = epochs_of(grown, 1000, 2, 10, warmup=2)
    assert [(one.epoch, one.phase, one.batch_size, one.first_step, one.steps) for one in found] == [
        (0, "warmup", 10, 0, 50),
        (1, "warmup", 20, 50, 25),
        (2, "timed", 20, 75, 25),
        (3, "timed", 50, 100, 10),
        (4, "timed", 50, 110, 10),
    ]
    bounded = epochs_of(grown, 1000, 2, 10, most=20)
    assert [(one.steps, one.full_steps) for one in bounded] == [(20, 50), (20, 25), (20, 25), (10, 10), (10, 10)]


def test_a_batch_that_grows_leaves_the_rate_alone() -> None:
    """It takes the place of a rate that decays; the rate was scaled to the first epoch's batch."""
    grown = plan(4, batch_size_schedule=((2, 100),))
    policy = lr_policy(grown, 0.1, 512, epochs_of(grown, 1000, 1, 10, warmup=0))
    assert {policy.lr(step) for step in range(220)} == {0.2}


def test_a_batch_that_the_data_set_cannot_fill_is_found_before_the_first_epoch() -> None:
    with pytest.raises(OutOfDataError, match="1000 images are fewer than one batch of 600 for each of 2 ranks"):
        epochs_of(plan(5, batch_size_schedule=((4, 600),)), 1000, 2, 10)


def test_a_schedule_is_read() -> None:
    assert parse_batch_size_schedule("3:256") == ((3, 256),)
    assert parse_batch_size_schedule(" 0:128, 3:256 ,6:512") == ((0, 128), (3, 256), (6, 512))


@pytest.mark.parametrize("text", ["", "3", "3:", ":256", "3=256", "-1:256", "3:2.5", "3:256,", "3:256;6:512", "٣:256"])
def test_what_is_no_schedule_is_refused(text) -> None:
    with pytest.raises(UsageError, match=r"expected EPOCH:SIZE,\.\.\. such as 3:256,6:512"):
        parse_batch_size_schedule(text)
