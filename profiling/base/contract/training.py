"""training.json: loss and accuracy after every epoch of `train --epochs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .fields import Doc, People, Record
from .rank import EpochPhase
from .run import SCHEMA_VERSION


@dataclass(frozen=True)
class Score:
    """Of some images, all ranks together.

    Those of training are of the batches as they were trained on, before each one's update.
    """

    loss: Annotated[
        float | None, Doc("mean cross entropy; null where it is not finite: the training has diverged", unit="nats")
    ]
    accuracy: Annotated[float, Doc("fraction that was classified correctly", unit="0..1")]
    samples: Annotated[int, Doc("how many images")]


@dataclass(frozen=True)
class TrainedEpoch:
    """One epoch. Times are the largest of any rank; testing is not in them."""

    epoch: Annotated[int, Doc("its number, from 0")]
    phase: Annotated[EpochPhase, Doc("`warmup` while the learning rate rises")]
    batch_size: Annotated[int, Doc("samples of a step, as --batch-size counts them")]
    global_batch_size: Annotated[int, Doc("samples of a step, all ranks together")]
    steps: Annotated[int, Doc("its steps")]
    full_steps: Annotated[int, Doc("steps of the whole data set")]
    first_lr: Annotated[float, People("learning rate of its first step")]
    last_lr: Annotated[float, Doc("learning rate of its last step")]
    train: Annotated[Score, Doc("of the images that it was trained on")]
    test: Annotated[Score, Doc("of the test images, after the epoch")]
    dur_ns: Annotated[int, People("how long it took")]
    data_ns: Annotated[int, Doc("waiting for data")]
    step_ns: Annotated[int, Doc("everything else")]


@dataclass(frozen=True, kw_only=True)
class TrainingFile(Record):
    """Replaced whole by rank 0 after every epoch, so a run that is stopped has all epochs that it finished."""

    schema_version: Annotated[int, Doc("version of this layout")] = SCHEMA_VERSION
    planned_epochs: Annotated[int, Doc("epochs that were asked for")]
    dataset_samples: Annotated[int, Doc("samples of the data set")]
    workers: Annotated[int, Doc("ranks, or the devices of dp")]
    optimizer: Annotated[str, Doc("`sgd` or `lars`")]
    lr_scaling: Annotated[str, Doc("`linear` where the learning rate follows the batch size, else `none`")]
    lr_reference_batch: Annotated[int, People("samples of a step that the learning rate is for, with `linear`")]
    base_lr: Annotated[float, People("learning rate before it is scaled")]
    full_lr: Annotated[float, People("learning rate after the warm-up")]
    warmup_steps: Annotated[int, People("steps of the warm-up")]
    epochs: Annotated[Sequence[TrainedEpoch], Doc("those that were finished")]
