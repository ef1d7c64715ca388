import importlib
import sys
from pathlib import Path

import pytest
import torch
from capturing import fresh_python

from commtrace.profiling.errors import LibraryError
from commtrace.profiling.workloads.torchvision_import import torchvision

NEEDS_OPERATOR = """
import torch

@torch.library.register_fake("torchvision::{operator}")
def fake(x):
    return x
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch):
    """A torchvision of the test's own: its `__init__` and a module `models`."""
    for name in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def write(init: str) -> None:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text(init)
        (tmp_path / "torchvision" / "models.py").write_text("answer = 42")
        importlib.invalidate_caches()

    yield write
    for name in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)


def test_operators_that_do_not_exist_are_left_out(stand_in) -> None:
    stand_in(NEEDS_OPERATOR.format(operator="of_a_test") + NEEDS_OPERATOR.format(operator="of_a_test_too"))
    original = torch.library.register_fake
    with pytest.raises(RuntimeError, match="torchvision::of_a_test does not exist"):
        importlib.import_module("torchvision")
    assert torchvision("models").answer == 42
    assert torch.library.register_fake is original


def test_torchvision_that_loads_is_left_alone(stand_in) -> None:
    stand_in("import torch.library; seen = torch.library.register_fake")
    torchvision("models")
    assert sys.modules["torchvision"].seen is torch.library.register_fake


def test_other_failures_are_errors_that_name_both(stand_in) -> None:
    stand_in("raise RuntimeError('torchvision was built for another torch')")
    with pytest.raises(LibraryError, match=r"does not load beside torch .*built for another torch"):
        torchvision("models")


def test_missing_torchvision_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(LibraryError, match="torchvision is not installed, and this model needs it: pip install "):
        torchvision("models")


@pytest.mark.slow
def test_the_real_one_loads() -> None:
    pytest.importorskip("PIL")
    # In a process of its own: here a stand-in may have been imported before.
    code = """
from commtrace.profiling.workloads.torchvision_import import torchvision
print(torchvision("transforms").RandomCrop(32, padding=4))
"""
    done = fresh_python("-c", code)
    assert done.stdout.startswith("RandomCrop"), done.stderr
