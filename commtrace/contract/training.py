"""training.json: loss and accuracy after every epoch of `train --epochs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from .limits import Count, Fraction, FromZero, Ranks
from .rank import EpochPhase
from .record import SCHEMA_VERSION, Needed, People, Record

TRAINING_FILE = "training.json"


@dataclass(frozen=True)
class Score:
    """Loss and accuracy on some images, over all ranks.

    On training images they are those of each batch before its update of the weights.
    """

    loss: Annotated[
        float | None, Needed("mean cross entropy; null if it is not finite because the training diverged", unit="nats")
    ]
    accuracy: Annotated[Fraction, Needed("fraction of images classified correctly", unit="0..1")]
    samples: Annotated[Count, Needed("number of images")]


@dataclass(frozen=True)
class TrainedEpoch:
    """One epoch. Times are the largest of any rank, without testing."""

    epoch: Annotated[FromZero, Needed("number of the epoch, from 0")]
    phase: Annotated[EpochPhase, Needed("`warmup` while the learning rate rises, else `timed`")]
    batch_size: Annotated[Count, Needed("batch size, as --batch-size counts it")]
    global_batch_size: Annotated[Count, Needed("samples per step over all ranks")]
    steps: Annotated[Count, Needed("number of steps")]
    full_steps: Annotated[Count, Needed("number of steps in the whole data set")]
    first_lr: Annotated[float, People("learning rate of the first step")]
    last_lr: Annotated[float, Needed("learning rate of the last step")]
    train: Annotated[Score, Needed("score on the training images")]
    test: Annotated[Score, Needed("score on the test images after the epoch")]
    dur_ns: Annotated[int, People("how long the epoch took")]
    data_ns: Annotated[FromZero, Needed("time waiting for data")]
    step_ns: Annotated[Count, Needed("the rest of the time")]


@dataclass(frozen=True, kw_only=True)
class TrainingFile(Record):
    """Replaced as a whole by rank 0 after every epoch, so a run that is stopped has every epoch it finished."""

    schema_version: Annotated[int, Needed("version of this layout")] = SCHEMA_VERSION
    planned_epochs: Annotated[Count, Needed("number of epochs that were asked for")]
    dataset_samples: Annotated[Count, Needed("samples in the data set")]
    workers: Annotated[Ranks, Needed("number of ranks, or of devices with dp")]
    optimizer: Annotated[str, Needed("`sgd` or `lars`")]
    lr_scaling: Annotated[str, Needed("`linear` if the learning rate is scaled with the batch size, else `none`")]
    lr_reference_batch: Annotated[int, People("with `linear`: the samples per step that `base_lr` is meant for")]
    base_lr: Annotated[float, People("learning rate before scaling")]
    full_lr: Annotated[float, People("learning rate after the warm-up")]
    warmup_steps: Annotated[int, People("number of steps in the warm-up")]
    epochs: Annotated[Sequence[TrainedEpoch], Meta(min_length=1), Needed("the epochs that were finished")]
