"""What to install for what only some need: the extras of this project."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires


def not_installed(library: str, what: str, extra: str) -> str:
    """That this library, which `what` needs, is missing, and the line that installs it with all of its extra.

    The line names the libraries: an extra can only be asked for by name where this project came from an index.
    """
    return f"{library} is not installed, and {what} needs it: pip install {shlex.join(libraries_of(extra))}"


def libraries_of(extra: str) -> list[str]:
    """The requirements of an extra, as pip takes them; of a checkout that was never installed, the extra itself."""
    try:
        stated = [each.partition(";") for each in requires("commtrace") or ()]
    except PackageNotFoundError:
        return [f".[{extra}]"]
    found = [what.strip() for what, _, when in stated if re.search(rf"extra *== *['\"]{extra}['\"]", when)]
    return found or [f".[{extra}]"]  # it was installed before there was such an extra
