"""Tells all that a script can know of how it was started, and ends as its argument says. Needs no torch."""

import argparse
import os
import pickle
import sys
import threading
from pathlib import Path


class Thing:
    pass


def fail(error: BaseException) -> None:
    try:
        raise KeyError("the cause")
    except KeyError as cause:
        raise error from cause


def show() -> None:
    main = sys.modules["__main__"]
    spec = __spec__ and (__spec__.name, __spec__.origin, __spec__.parent)
    print(__name__, __file__, __package__, spec, type(__loader__).__name__, sorted(vars(main)), sep="\n")
    print(sys.argv, sys.path, vars(main) is globals(), __builtins__, threading.current_thread().name, sep="\n")
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, [name for name in sys.modules if "torch" in name])
    print(Path.cwd(), sys.stdin.read().split())


def main() -> object:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="mine")
    parser.add_argument("--ending")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    print(args)
    if args.ending == "hook":
        sys.excepthook = lambda kind, error, trace: print("hook", kind, trace.tb_frame.f_code.co_name)
    endings = {
        "raise": lambda: fail(ValueError("bad luck")),
        "hook": lambda: fail(ValueError("bad luck")),
        "interrupt": lambda: fail(KeyboardInterrupt()),
        "exit3": lambda: sys.exit(3),
        "text": lambda: sys.exit("these were its last words"),
        "none": lambda: sys.exit(None),
        "chdir": lambda: os.chdir("/"),
        "os_exit": lambda: os._exit(5),
    }
    return endings.get(args.ending, lambda: None)()


if __name__ == "__main__":
    show()
    main()
