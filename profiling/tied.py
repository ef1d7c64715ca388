"""The command line in a process that ends with its parent, whose process id comes first: `PARENT_PID train ...`.

It is tied before slow imports, torch above all.
"""

from collections.abc import Sequence

from .machine.tether import tie_to_parent


def run_tied(arguments: Sequence[str]) -> int:
    """Run the command line that follows the parent's process id, and return the exit code."""
    tie_to_parent(int(arguments[0]))
    from ..cli import main

    return main(arguments[1:])
