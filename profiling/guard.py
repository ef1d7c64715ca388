"""How a command that captures ends. Importable without torch."""

import sys
from collections.abc import Callable

from .errors import ProfilingError
from .ranks.exits import RunAfterParsing


def guarded(run: Callable[[], object]) -> int:
    """Run a command, and return its exit code: 0 done, 1 bad input, 2 bad usage, 128 + N stopped by signal N."""
    try:
        run()
    except RunAfterParsing as then:
        start = then.start
    except ProfilingError as err:
        return _failed(err)
    except SystemExit as err:
        return err.code if isinstance(err.code, int) else int(err.code is not None)
    else:
        return 0
    return start(_failed)


def _failed(error: ProfilingError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code
