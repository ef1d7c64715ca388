"""How an analysis ends: the exit code, and what is said of errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.places.redaction import hide_secrets
from ..core.process import start_no_blas_threads
from ..errors import AnalysisError
from .bugs import BUG, report_of
from .output import accept_any_text, end_phases, print_message

_INTERRUPTED = 130


def guarded(run: Callable[[], int], given: Sequence[str], *, verbose: bool) -> int:
    """Run a command, given as these words; the exit code: what it returns, 1 the input is at fault, 70 we are.

    `verbose` shows the traceback of an error of ours.
    """
    start_no_blas_threads()
    try:
        accept_any_text()
        return run()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except AnalysisError as err:
        print_message(hide_secrets(str(err), list(given)))  # a URL given where only paths are taken is in it as it is
        return 1
    except MemoryError:
        print_message("out of memory; read fewer runs or files at once, or use fewer --workers")
        return 1
    except KeyboardInterrupt:  # before, or after, the command
        return _INTERRUPTED
    except Exception as err:  # noqa: BLE001 - whatever it is, it is ours, and the user is to report it
        print_message(report_of(err, given, verbose=verbose))
        return BUG
    finally:
        end_phases()
