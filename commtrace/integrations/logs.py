"""Where trainings are logged: TensorBoard, W&B, MLflow. None of them is imported unless the training has done so."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..profiling.trainer import Findings, TrainingLog

_SUMMARY, _REPORT, _HEADLINE = "commtrace/summary", "commtrace/report", "commtrace/headline"
_PAGE_FILE = "commtrace-report.html"


class TensorBoardLog:
    """A `SummaryWriter`, also one that was closed: it begins a new file. The page is a file beside those."""

    name = "TensorBoard"

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, findings: Findings) -> None:
        """Write scalars, the summary as text, and a copy of the page. Raises OSError."""
        for name, value in findings.scalars.items():
            self._writer.add_scalar(name, value, findings.step)
        indented = "".join(f"    {line}\n" for line in findings.summary.splitlines())  # Markdown shows that as it is
        self._writer.add_text(_SUMMARY, indented, findings.step)
        self._writer.flush()
        if findings.page is not None:
            shutil.copyfile(findings.page, Path(self._writer.log_dir) / _PAGE_FILE)


class WandbLog:
    """A run of W&B, online or not. Its charts have the steps of the training in `axis`."""

    name = "W&B"

    def __init__(self, run: Any, axis: str) -> None:
        self.run = run
        self._axis = axis

    def add(self, findings: Findings) -> None:
        """Log scalars and the page at once, and the headline in the summary of the run."""
        import wandb

        page = {} if findings.page is None else {_REPORT: wandb.Html(str(findings.page), inject=False)}
        self.run.log({**findings.scalars, **page, self._axis: findings.step})
        self.run.summary[_HEADLINE] = findings.headline


class MlflowLog:
    """A run of MLflow, also one that has ended."""

    name = "MLflow"

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def add(self, findings: Findings) -> None:
        """Log scalars as metrics, the headline as a tag, and the page as an artifact."""
        for name, value in findings.scalars.items():
            self._client.log_metric(self.run_id, name, value, step=findings.step)
        self._client.set_tag(self.run_id, _HEADLINE.replace("/", "."), findings.headline)
        if findings.page is not None:
            self._client.log_artifact(self.run_id, str(findings.page), "commtrace")


def active_runs(axis: str) -> Iterator[TrainingLog]:
    """Yield the runs of W&B and MLflow that are active in this process."""
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    run = getattr(wandb, "run", None)
    if run is not None:
        yield WandbLog(run, axis)
    active = mlflow.active_run() if mlflow is not None else None
    if mlflow is not None and active is not None:
        yield MlflowLog(mlflow.MlflowClient(mlflow.get_tracking_uri()), active.info.run_id)


def without_twins(logs: Iterable[TrainingLog]) -> list[TrainingLog]:
    """The logs, each once: a run of W&B or MLflow may be active, and be a logger of the trainer as well."""
    found: dict[object, TrainingLog] = {}
    for log in logs:
        found.setdefault(_identity(log), log)
    return list(found.values())


def _identity(log: TrainingLog) -> object:
    if isinstance(log, WandbLog):
        return "wandb", log.run.id
    return ("mlflow", log.run_id) if isinstance(log, MlflowLog) else id(log)
