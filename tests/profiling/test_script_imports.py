"""Being told of an import, and changing what others own for a while."""

import importlib
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from commtrace.profiling.base.patches import Patches
from commtrace.profiling.script.on_import import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that has not been imported."""
    (tmp_path / "lately.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield "lately"
    sys.modules.pop("lately", None)
    assert sys.meta_path == finders


def test_it_is_told_after_the_import_and_once(module) -> None:
    told = []
    after_import(module, lambda: told.append(sys.modules[module].value))
    assert told == []
    importlib.import_module(module)
    importlib.reload(sys.modules[module])
    assert told == [1]


def test_asking_for_a_module_is_not_importing_it(module) -> None:
    told = []
    after_import(module, lambda: told.append(1))
    assert importlib.util.find_spec(module) is not None
    assert told == []
    importlib.import_module(module)
    assert told == [1]


def test_several_can_wait_for_one_module(module) -> None:
    told = []
    for name in ("a", "b"):
        after_import(module, lambda name=name: told.append(name))
    importlib.import_module(module)
    assert sorted(told) == ["a", "b"]
    assert "exec_module" not in vars(sys.modules[module].__loader__)


def test_an_import_that_fails_is_waited_for_again(module, tmp_path) -> None:
    told = []
    after_import(module, lambda: told.append(1))
    (tmp_path / "lately.py").write_text("raise ValueError")
    with pytest.raises(ValueError):  # noqa: PT011
        importlib.import_module(module)
    assert told == []
    (tmp_path / "lately.py").write_text("value = 22")
    importlib.import_module(module)
    assert told == [1]


def test_what_is_there_already_is_told_at_once() -> None:
    told = []
    after_import("sys", lambda: told.append(1))
    assert told == [1]


def test_patches_are_undone_but_not_those_of_others() -> None:
    owner = SimpleNamespace(one=lambda: 1, two=lambda: 2)
    original = owner.one
    patches = Patches()
    for name in ("one", "two", "three"):
        patches.wrap(owner, name, lambda original: original() + 10)
    assert (owner.one(), owner.two(), hasattr(owner, "three")) == (11, 12, False)
    theirs = owner.two = lambda: 5
    patches.undo()
    patches.undo()
    assert owner.one is original
    assert owner.two is theirs
