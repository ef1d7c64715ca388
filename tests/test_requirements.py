"""What `make` installs exists for the oldest Python that the project says it runs on."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text()
(OLDEST,) = re.findall(r'^requires-python = ">=([0-9.]+)"$', PROJECT, re.MULTILINE)
(GROUPS,) = re.findall(r"^\[dependency-groups\]\n(.*?)^\[", PROJECT, re.MULTILINE | re.DOTALL)
LOCK = (ROOT / "requirements.lock").read_text()
LOCKS = "".join([LOCK, *(path.read_text() for path in sorted((ROOT / ".ci").glob("*.lock")))])
NAMED = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
PINS = [Requirement(text) for text in NAMED if text]
# Of these, the build is for the machine.
UNLOCKED = {"torch", "torchvision"}


def locked_in(text: str) -> list[Requirement]:
    return [Requirement(line.partition(" \\")[0]) for line in re.findall(r"^\w.*", text, re.MULTILINE)]


def is_for_the_oldest(pin: Requirement) -> bool:
    return pin.marker is None or pin.marker.evaluate({"python_version": OLDEST, "python_full_version": f"{OLDEST}.0"})


@pytest.mark.parametrize("pin", [pin for pin in [*PINS, *locked_in(LOCK)] if is_for_the_oldest(pin)], ids=str)
def test_every_pin_admits_the_oldest_python(pin: Requirement) -> None:
    try:
        found = metadata(pin.name)
    except PackageNotFoundError:
        pytest.skip("is not for this Python")
    if not pin.specifier.contains(found["Version"]):
        pytest.skip(f"{found['Version']} is installed, for this Python")
    wanted = Requirement(f"python{found.get('Requires-Python', '')}").specifier
    assert wanted.contains(OLDEST), f"needs Python {wanted}"


def test_the_pins_are_exact() -> None:
    assert len(PINS) > 10
    assert [str(pin) for pin in PINS if {s.operator for s in pin.specifier} != {"=="}] == []


@pytest.mark.parametrize("pin", [pin for pin in PINS if pin.name not in UNLOCKED], ids=str)
def test_every_pin_is_locked(pin: Requirement) -> None:
    assert re.search(rf"^{re.escape(pin.name)}{re.escape(str(pin.specifier))}\b", LOCK, re.MULTILINE | re.IGNORECASE)


def test_every_dependency_group_is_pinned() -> None:
    asked = [Requirement(text) for text in re.findall(r'"([^"]+[=>]=[^"]+)"', GROUPS)]
    assert len(asked) > 18
    have = [(pin.name, next(iter(pin.specifier)).version) for pin in locked_in(LOCKS)]
    met = {str(one) for one in asked for name, version in have if one.name == name and version in one.specifier}
    assert {*map(str, asked)} - met == set()


def test_all_that_is_locked_has_hashes() -> None:
    locked = re.split(r"^(?=\w)", LOCKS, flags=re.MULTILINE)[1:]
    assert len(locked) > 200
    assert [entry for entry in locked if "--hash=sha256:" not in entry] == []
