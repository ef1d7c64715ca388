"""TensorBoard scalars of a run, beside its traces, so that TensorBoard shows both as one run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...common.extras import not_installed
from ..base import run_directory as rundir
from ..base.libraries import installed

Add = Callable[[int, Mapping[str, float | None]], None]


def available() -> bool:
    """Whether TensorBoard is installed."""
    return installed("tensorboard")


def without_tensorboard() -> str:
    """What is said where it is not."""
    return not_installed("tensorboard", "scalars for TensorBoard", "tensorboard")


@contextmanager
def scalars(run_dir: Path, *, write: bool) -> Iterator[Add]:
    """Yield a function that adds values by name and number of epochs; each call is on disk when it returns.

    Without `write` it does nothing. What is None is left out. Raises RunDirError.
    """
    if not write:
        yield _nothing
        return
    from torch.utils.tensorboard import SummaryWriter  # which takes a second, and starts threads

    with rundir.explained(run_dir):
        writer = SummaryWriter(str(run_dir))

    def add(epochs: int, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, epochs)
        writer.flush()

    try:
        yield add
    finally:
        writer.close()


def _nothing(epochs: int, values: Mapping[str, float | None]) -> None:
    pass
