"""What options of several commands share: lower bounds, names of runs, and how files hold them. Knows no torch."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_least(options: object, least: Mapping[str, int]) -> None:
    """Raise UsageError for the first option below its lower bound; None stands for an option that was not given."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {bound}, found {value}")


def check_run_name(name: str | None) -> None:
    """Raise UsageError if it is not a plain name of one folder."""
    if name is not None and (Path(name).name != name or name == ".."):
        raise UsageError(f"--run-name {name}: expected one folder name; give the folder above it as --out")


def run_dir(out: Path, run_name: str | None, subject: str) -> Path:
    """The directory of a run that starts now; without a name it is named after its subject and the time."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return out / (run_name or f"{subject}-{stamp}")


def as_json(options: "DataclassInstance") -> dict[str, Any]:
    """Every option, as files hold them."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
