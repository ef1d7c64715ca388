"""Constraints for pip: of everything that pyproject.toml asks for, the oldest version that it admits."""

import re
from pathlib import Path

try:
    import tomllib  # type: ignore[import-not-found, unused-ignore]
except ModuleNotFoundError:  # Python 3.10, in an environment that holds only pip
    from pip._vendor import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

if __name__ == "__main__":
    extras = [asked for extra in PROJECT["optional-dependencies"].values() for asked in extra]
    for asked in [*PROJECT["dependencies"], *extras]:
        ((name, bound, marker),) = re.findall(r"^([\w.-]+)>=([\w.]+)(;.*)?$", asked.replace(" ", ""))
        print(f"{name}=={bound}{marker.replace('python_version', ' python_version ')}")
