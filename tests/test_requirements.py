"""What `make` installs exists for the oldest Python that the project says it runs on."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text()
(OLDEST,) = re.findall(r'^requires-python = ">=([0-9.]+)"$', PROJECT, re.MULTILINE)
LOCKED = ("requirements-s3.txt", "requirements-trainers.txt")
PINS = [
    Requirement(text)
    for file in ("requirements.txt", "requirements-hta.txt", *LOCKED)
    for line in (ROOT / file).read_text().splitlines()
    if (text := line.partition("#")[0].partition("\\")[0].strip()) and not text.startswith("--hash")
]
LOCK = "".join((ROOT / name).read_text() for name in ("requirements.lock", *LOCKED))
DOCS = (ROOT / "requirements-docs.txt").read_text()
# Of these, the build is for the machine.
UNLOCKED = {"torch", "torchvision", "traceinsight"}


def is_for_the_oldest(pin: Requirement) -> bool:
    return pin.marker is None or pin.marker.evaluate({"python_version": OLDEST, "python_full_version": f"{OLDEST}.0"})


@pytest.mark.parametrize("pin", [pin for pin in PINS if is_for_the_oldest(pin)], ids=str)
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
    pins = {pin.name for pin in PINS} | set(re.findall(r"^([\w.-]+)==", DOCS, re.MULTILINE))
    (groups,) = re.findall(r"^\[dependency-groups\]\n(.*?)^\[", PROJECT, re.MULTILINE | re.DOTALL)
    names = re.findall(r'"([\w.-]+)(?:\[\w+\])?>=', groups)
    assert len(names) > 8
    assert [name for name in names if name not in pins] == []


def test_all_that_is_locked_has_hashes() -> None:
    locked = re.split(r"^(?=\S)", LOCK + DOCS, flags=re.MULTILINE)[1:]
    assert len(locked) > len(PINS)
    assert [entry for entry in locked if "--hash=sha256:" not in entry] == []
