"""The tables of trainings. Conventions: `communication.py`."""

from __future__ import annotations

from ..schema import Schema

_RUN = {
    "run": ("string", "run directory; with its path where several have the same name"),
    "model": ("string", "name of the model"),
    "data": ("string", "data set"),
    "parallel": ("string", "single, dp, ddp, fsdp or pipeline"),
    "workers": ("int64", "ranks; for dp, which is one process, its devices"),
    "optimizer": ("string", "sgd or lars"),
    "lr_scaling": ("string", "how the learning rate follows the batch size: none or linear"),
}
_SCORES = {
    "train_loss": ("Float64", "mean cross entropy of the training images, each when it was trained on, in nats"),
    "train_accuracy_frac": ("Float64", "training images that were classified correctly / all of them"),
    "test_loss": ("Float64", "mean cross entropy of the test images, in nats"),
    "test_accuracy_frac": ("Float64", "test images that were classified correctly / all of them"),
}
_DATASET = ("int64", "training images of a whole epoch, all workers together")

TRAINING_EPOCHS = Schema("training_epochs", "training and epoch", {
    "training": ("int64", "number of the training, in order of the input"),
    **_RUN,
    "planned_epochs": ("int64", "epochs that were asked for"),
    "after_epochs": ("int64", "epochs trained, this one included"),
    "phase": ("string", "warmup or timed"),
    "batch_size_per_worker": ("int64", "as --batch-size: samples that each worker gets per step; for a pipeline, all"),
    "global_batch_size": ("int64", "samples of a step, all workers together"),
    "lr": ("Float64", "learning rate of its last step"),
    **_SCORES,
    "train_samples": ("int64", "training images seen, all workers together"),
    "test_samples": ("int64", "test images, all workers together"),
    "steps": ("int64", "steps that were trained"),
    "epoch_steps": ("int64", "steps of a whole epoch on a rank"),
    "step_ns": ("int64", "time of these steps without data loading and testing, of the slowest rank"),
    "data_ns": ("int64", "waiting for the data loader in these steps, of the slowest rank"),
    "dataset_samples": _DATASET,
})  # fmt: skip

TRAINING = Schema("training", "training", {
    "training": ("int64", "number of the training, in order of the input"),
    **_RUN,
    "batch_size_per_worker": ("int64", "as --batch-size, in the first epoch"),
    "global_batch_size": ("int64", "samples of a step in the first epoch, all workers together"),
    "lr": ("Float64", "learning rate of the last step of the compared epoch; NA if there is none"),
    "planned_epochs": ("int64", "epochs that were asked for"),
    "finished_epochs": ("int64", "epochs that were trained and tested"),
    "after_epochs": ("int64", "epochs after which trainings are compared: the same for all of them"),
    **_SCORES,
    "baseline": ("string", "the training that it is compared with"),
    "test_loss_difference": ("Float64", "test_loss - that of the baseline"),
    "test_accuracy_difference_frac": ("Float64", "test_accuracy_frac - that of the baseline"),
    "epoch_ns": ("Int64", "median time of a whole epoch after the first, without data loading and testing"),
    "data_ns": ("Int64", "median waiting for the data loader in a whole epoch after the first"),
    "speedup_over_baseline": ("Float64", "epoch_ns of the baseline / epoch_ns: assumes that both see the same images"),
    "note": ("string", "why values are NA, and what was assumed"),
})  # fmt: skip
