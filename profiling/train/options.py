"""Options of `train` in groups: its optimizer, and the epochs before the profiled steps."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from .config import DEFAULT_LR, ModelName, OptimizerConfig, OptimizerName
from .plan import LrScaling, TrainingPlan, parse_batch_size_schedule

_DEFAULTS = ", ".join(f"{name}: {lr}" for name, lr in DEFAULT_LR.items())


def _epochs(text: str, **settings: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Epochs before the profiled steps", **settings)


@dataclass(frozen=True)
class OptimizerOptions:
    """What trains the model."""

    optimizer: Annotated[
        OptimizerName,
        typer.Option(help="lars: SGD with a rate for each layer, of the library pytorch_optimizer; wants a larger lr"),
    ] = OptimizerConfig.name
    optimizer_lr: Annotated[
        float | None,
        typer.Option(help="learning rate; with --lr-scaling that of --lr-reference-batch", show_default=_DEFAULTS),
    ] = None
    optimizer_momentum: Annotated[float, typer.Option(help="its momentum")] = OptimizerConfig.momentum
    optimizer_weight_decay: Annotated[float, typer.Option(help="its weight decay")] = OptimizerConfig.weight_decay

    def config(self, model: ModelName) -> OptimizerConfig:
        """The settings, for a model that may have a learning rate of its own."""
        lr = DEFAULT_LR[model] if self.optimizer_lr is None else self.optimizer_lr
        return OptimizerConfig(lr, self.optimizer_momentum, self.optimizer_weight_decay, self.optimizer)


@dataclass(frozen=True)
class EpochOptions:
    """What comes before the steps that the profiler sees."""

    epochs: Annotated[
        int,
        _epochs("train for so many, and test after each: loss and accuracy in training.json and TensorBoard", min=0),
    ] = TrainingPlan.epochs
    warmup_epochs: Annotated[
        int,
        _epochs(
            "before the timed ones; the first of --epochs, over which --lr-scaling raises the rate step by step", min=0
        ),
    ] = 0
    timed_epochs: Annotated[int, _epochs("timed, with waiting for data apart from the rest; not tested", min=0)] = 0
    steps_per_epoch: Annotated[int, _epochs("bound of each of them; 0: the whole data set", min=0)] = 0
    test_samples: Annotated[
        int, _epochs("images that each of --epochs is tested on; 0: all, of synthetic ones a fifth of an epoch", min=0)
    ] = TrainingPlan.test_samples
    lr_scaling: Annotated[
        LrScaling,
        _epochs(
            "linear: the learning rate x samples of a step, all ranks together / --lr-reference-batch (Goyal et al. "
            "2017, arXiv:1706.02677)"
        ),
    ] = TrainingPlan.lr_scaling
    lr_reference_batch: Annotated[
        int, _epochs("samples of a step for which --optimizer-lr is meant; the paper's is 256", min=1)
    ] = TrainingPlan.lr_reference_batch
    batch_size_schedule: Annotated[
        str | None,
        _epochs(
            "as 3:256,6:512: from epoch 3 on, counted from 0, a --batch-size of 256, and so on; in place of a learning "
            "rate that decays (Smith et al. 2017, arXiv:1711.00489)",
            metavar="EPOCH:SIZE,...",
            show_default="none",
        ),
    ] = None

    def plan(self) -> TrainingPlan:
        """The training that is asked for. Raises UsageError."""
        text = self.batch_size_schedule
        schedule = () if text is None else parse_batch_size_schedule(text)
        return TrainingPlan(self.epochs, self.lr_scaling, self.lr_reference_batch, schedule, self.test_samples)
