"""Our command line in a process that ends with its parent: `python -m profiling.tied PARENT_PID train ...`.

Tied before anything is imported that takes time, torch above all.
"""

import sys

from .machine.tether import tie_to_parent

if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]))
    from .cli import main

    sys.exit(main(sys.argv[2:]))
