"""CIFAR-10 in its own format on disk, with a few images: `tiny_cifar10.py ROOT ARGUMENTS OF PROFILING...` uses it.

torchvision knows the MD5 of every file of the real data set, and takes no other. So it is told the checksums of this
one; everything else, its reading of the files too, is as with the real one.
"""

import hashlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.cli import main
from commtrace.profiling.workloads.torchvision_import import torchvision


def write(root: Path, images_per_file: int, *, learnable: bool = False) -> None:
    """Five files of training images and one of test images, with random content, and the names of the classes.

    Learnable: every class has a colour, under noise.
    """
    kind = torchvision("datasets").CIFAR10
    folder = root / kind.base_folder
    folder.mkdir()
    random = np.random.default_rng(0)
    colours = random.integers(40, 216, (10, 3, 1))
    for number, (name, _) in enumerate([*kind.train_list, *kind.test_list]):
        content = {
            b"batch_label": f"batch {number}".encode(),
            "labels": random.integers(0, 10, images_per_file).tolist(),
            "data": random.integers(0, 256, (images_per_file, 3 * 32 * 32), dtype=np.uint8),
        }
        if learnable:
            noise = random.integers(-40, 40, (images_per_file, 3, 32 * 32))
            content["data"] = (colours[content["labels"]] + noise).reshape(images_per_file, -1).astype(np.uint8)
        (folder / name).write_bytes(pickle.dumps(content))
    names = {"label_names": [f"class {number}" for number in range(10)]}
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps(names))


def checksums(root: Path) -> dict[str, Any]:
    """The attributes of torchvision's CIFAR10 that hold checksums, with those of the files under `root`."""
    kind = torchvision("datasets").CIFAR10

    def md5(name: str) -> str:
        return hashlib.md5((root / kind.base_folder / name).read_bytes()).hexdigest()

    return {
        "train_list": [[name, md5(name)] for name, _ in kind.train_list],
        "test_list": [[name, md5(name)] for name, _ in kind.test_list],
        "meta": {**kind.meta, "md5": md5(kind.meta["filename"])},
    }


if __name__ == "__main__":
    for attribute, value in checksums(Path(sys.argv[1])).items():
        setattr(torchvision("datasets").CIFAR10, attribute, value)
    sys.exit(main(sys.argv[2:]))
