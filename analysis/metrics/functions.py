"""In which functions of the user's code a thread was, where stacks were recorded, and how people call these."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..core import markers
from ..core.intervals import Spans, covered, intersect, spans, subtract, total

_INSTALLED = re.compile(r"[\\/](?:(?:site|dist)-packages|python3(?:\.\d+)?)[\\/]")
_LIBRARIES = frozenset((
    *sys.stdlib_module_names, "commtrace",
    "torch", "torchvision", "torchaudio", "torchdata", "torchrec", "torchmetrics", "functorch", "triton", "torchgen",
    "transformers", "datasets", "tokenizers", "accelerate", "peft", "trl", "huggingface_hub", "safetensors", "timm",
    "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "ignite", "composer", "deepspeed",
    "apex", "flash_attn", "xformers", "fbgemm_gpu", "einops", "webdataset", "streaming", "albumentations", "monai",
    "numpy", "scipy", "pandas", "pyarrow", "PIL", "cv2", "skimage", "sklearn", "matplotlib", "h5py", "zarr", "numba",
    "fsspec", "s3fs", "gcsfs", "boto3", "botocore", "aiohttp", "requests", "urllib3", "ray", "dask", "tqdm",
    "hydra", "omegaconf", "wandb", "mlflow", "tensorboard", "tensorboardX", "pytest", "_pytest", "pluggy",
))  # fmt: skip
"""The first folder, or the file, of code that its user did not write; what else is installed counts as the user's."""
_MOST_OF_IT = 0.5
"""Of some time: a function that holds less is not named."""


def in_functions(calls: pd.DataFrame, times: Spans, first_step_ns: int) -> dict[str, int]:
    """How long a thread was in each function of the user's code during these times, with all that it called, in ns.

    `calls` are those of the thread, of which short ones are not known. Functions that were called before the first step
    and last to the end are around all that happens. So only the innermost of these counts, and only where it runs for
    long without a call that is known.
    """
    if not len(calls) or not len(times.starts):
        return {}
    starts = calls["start_ns"].to_numpy(dtype=np.int64)
    ends = starts + calls["dur_ns"].to_numpy(dtype=np.int64)
    is_near = covered(times, starts, ends) > 0
    is_around = is_near & (starts < first_step_ns) & (ends > times.starts[-1])
    within = is_near & ~is_around
    names, took = calls["name"].to_numpy(), {}
    for name in filter(is_of_user, dict.fromkeys(names[within].tolist())):
        own = within & (names == name)  # one that calls itself counts once
        took[function_in_words(name)] = total(intersect(times, spans(starts[own], ends[own])))
    if is_around.any():
        innermost = np.flatnonzero(is_around)[[starts[is_around].argmax()]]
        left = intersect(times, spans(starts[innermost], ends[innermost]))
        left = subtract(left, spans(starts[within], ends[within]))
        lasted = (left.ends - left.starts)[left.ends - left.starts >= 1_000 * markers.LONG_CALL_US]
        name = names[innermost[0]]
        if is_of_user(name):
            took[function_in_words(name, is_around=True)] = int(lasted.sum())
    return took


def is_of_user(call: str) -> bool:
    """Whether it is a call of a function that is neither of Python nor of a known library."""
    found = markers.FUNCTION.match(call)
    return found is not None and is_users_file(found["path"])


def is_users_file(path: str) -> bool:
    """Whether a file of Python is neither of Python itself nor of a known library."""
    if _INSTALLED.search(path):
        return False
    return re.split(r"[\\/]", path, maxsplit=1)[0].removesuffix(".py") not in _LIBRARIES


def first_step_ns(marks: pd.DataFrame) -> int:
    """When the first of these marked steps began; before all times if there is none."""
    return int(marks["start_ns"].min()) if len(marks) else np.iinfo(np.int64).min


def function_in_words(call: str, *, is_around: bool = False) -> str:
    """`load_batch (train.py:31)` for `train.py(31): load_batch`.

    The line of one that is around whole steps is the one where it stood when the capture began: it is left out.
    """
    found = markers.FUNCTION.match(call)
    if found is None:
        return call
    path = found["path"].replace("\\", "/")
    path = path.rpartition("/")[2] if path.startswith("/") or ":" in path else path
    line = "" if is_around else f":{found['line']}"
    return f"{found['function']} ({path}{line})"


def quoted(function: str) -> str:
    """``load_batch` (train.py:31)` for `load_batch (train.py:31)`."""
    name, _, place = function.rpartition(" (")
    return f"`{name}` ({place}" if name else f"`{function}`"


def holding_most(took: Mapping[str, float], whole_ns: float) -> str | None:
    """The innermost function that holds most of some time; None if none does."""
    return min((name for name in took if took[name] >= _MOST_OF_IT * whole_ns > 0), key=took.__getitem__, default=None)
