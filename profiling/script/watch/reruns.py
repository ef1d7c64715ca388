"""Watch ranks that a script starts by running itself again, as Lightning does. Knows no torch.

See docs/design/0011-scripts-unmodified.md. While a script is watched, we look at what `subprocess.Popen` is given. The
same Python and the same script, with a variable in its environment that names another place in the job than this
process has, is another rank: it is started through us, with the arguments that it was to get. All else stays as it is.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....common.processes import calling
from ...base.console.notices import say
from ...base.patches import Patches
from ...ranks.places import LOCAL_PLACES, PLACES
from ..config import RunConfig, Target


class RerunWatch:
    """Watch processes that run the script again as other ranks; `taken` says whether there was one."""

    def __init__(self, config: RunConfig, command: Sequence[str], patches: Patches) -> None:
        self._config = config
        self._command = list(command)
        self._signature = inspect.signature(subprocess.Popen.__init__)
        self.taken = False
        patches.wrap(subprocess.Popen, "__init__", self._start)

    def _start(self, original: Any, *args: Any, **kwargs: Any) -> None:
        try:
            call = self._signature.bind(*args, **kwargs)
        except TypeError:
            original(*args, **kwargs)  # says better what is wrong
            return
        asked = call.arguments
        if not (asked.get("shell") or asked.get("executable")) and _is_of_other_rank(asked.get("env")):
            asked["args"] = self._watched(asked["args"], asked.get("cwd"))
        original(*call.args, **call.kwargs)

    def _watched(self, args: Any, cwd: Any) -> Any:
        """The command that runs the script through us; other commands are returned unchanged."""
        python, options, target = _parsed(args)
        if python != sys.executable or target is None or not _is_main(target, os.fsdecode(cwd or "")):
            return args
        is_first, self.taken = not self.taken, True
        if self._config.limits is not None:  # this process has a capture without others, since it began
            if is_first:
                say("the script starts other ranks itself, which --whole-run does not trace: start them with torchrun")
            return args
        given = replace(self._config, target=target).as_json(), self._command
        return [python, *options, *calling("profiling.script.run", "run_again", [json.dumps(each) for each in given])]


def _is_of_other_rank(env: Any) -> bool:
    return isinstance(env, Mapping) and any(
        env.get(name) not in (None, os.environ.get(name)) for name in (*PLACES, *LOCAL_PLACES)
    )


def _parsed(args: Any) -> tuple[str, Sequence[str], Target | None]:
    """Program, options and target of a Python command; no target if it has none."""
    if not isinstance(args, list | tuple) or not all(isinstance(word, str | bytes | os.PathLike) for word in args):
        return "", (), None
    program, *words = [os.fsdecode(word) for word in args] or [""]
    at = next((at for at, word in enumerate(words) if word == "-m" or not word.startswith("-")), len(words))
    is_module = words[at : at + 1] == ["-m"]
    named = words[at + is_module :]
    return program, words[:at], Target(named[0], tuple(named[1:]), is_module) if named else None


def _is_main(target: Target, cwd: str) -> bool:
    """Whether the target is the script that runs here."""
    main = sys.modules["__main__"]
    if target.is_module:
        return main.__spec__ is not None and main.__spec__.name == target.name
    file = getattr(main, "__file__", None)
    return file is not None and os.path.realpath(os.path.join(cwd, target.name)) == os.path.realpath(file)  # noqa: PTH118
