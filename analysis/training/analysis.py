"""Compare the run directories of trainings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from os import PathLike

import pandas as pd

from ..catalog import described
from ..core.places.place import path_named
from ..core.schema import records
from ..errors import NothingMeasured
from . import trainings as training_module
from .files import Trainings, load_trainings


@dataclass(frozen=True, repr=False)
class TrainingAnalysis:
    """The tables of one or more trainings. Columns: docs/tables.md.

    `baseline` is a name from the column `run`, None for the smallest batch. `after_epochs` says when they are compared.
    """

    trainings: Trainings
    baseline: str | None = None
    after_epochs: int | None = None

    def __repr__(self) -> str:
        count = self.trainings.epochs["training"].nunique()
        return f"<TrainingAnalysis: trainings {count}; see .summary()>"

    def _repr_html_(self) -> str:
        """The table of trainings as HTML, for notebooks."""
        return f"<pre>{escape(self.summary())}</pre>"

    @property
    def verdict(self) -> str:
        """A sentence on the most accurate training. Raises NothingMeasured."""
        return training_module.training_verdict(self.training)

    def summary(self) -> str:
        """The table of trainings, as text. Raises NothingMeasured."""
        from ..render import as_text

        return as_text("training", self.training)

    @property
    @described
    def training_epochs(self) -> pd.DataFrame:
        """One row per training and epoch."""
        return self.trainings.epochs

    @cached_property
    @described
    def training(self) -> pd.DataFrame:
        """One row per training, beside the baseline. Raises NothingMeasured."""
        table = training_module.training(
            self.trainings.epochs, baseline=self._baseline(), after_epochs=self.after_epochs
        )
        if table["test_accuracy_frac"].isna().all():
            most = int(table["finished_epochs"].max())
            raise NothingMeasured(f"no training has an epoch {self.after_epochs}; ask for --epoch {most} at most")
        return table

    def _baseline(self) -> int | None:
        if self.baseline is None:
            return None
        numbers = {row["run"]: row["training"] for row in records(self.trainings.epochs)}
        if self.baseline not in numbers:
            raise NothingMeasured(f"--baseline {self.baseline}: is none of the trainings: {', '.join(numbers)}")
        return int(numbers[self.baseline])


def analyse_training(
    *paths: str | PathLike[str],
    baseline: str | None = None,
    after_epochs: int | None = None,
    keep_going: bool = False,
) -> TrainingAnalysis:
    """Analyse the trainings at `paths`: run directories of `train --epochs`, or folders of them.

    Raises AnalysisError.
    """
    trainings = load_trainings([path_named(path) for path in paths], keep_going=keep_going)
    return TrainingAnalysis(trainings, baseline, after_epochs)
