"""An interpreter that has torch imported already and becomes, by fork, each Python that a test would start.

Importing torch takes seconds of a core, for a launcher and for each of its ranks. `run` is `subprocess.run` of this
Python without them: the server below forks, and what it forks goes on as a Python that has just begun, with arguments,
environment, folder, output and signals of its own, but with the modules of `PRELOADED`. What that starts in turn with
`subprocess.Popen([sys.executable, ...])` is forked too. What tests ask about starting itself, about signals to it or
about the order of imports, they ask a real one.
"""

from __future__ import annotations

import array
import atexit
import importlib
import json
import logging
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

# Not one that belongs to this project.
PRELOADED = (
    "torch", "torch.distributed", "torch.distributed.launcher.api", "torch.distributed.fsdp",
    "torch.distributed.pipelining", "torch.distributed.elastic.multiprocessing.errors", "torch.nn.parallel",
    "torch.profiler", "torch.utils.data", "numpy", "typer", "rich.console",
)  # fmt: skip
_OWN = ("profiling", "analysis", "commtrace", "commtrace_profiling")
_FOLDERS = "PYTHONPATH"
_HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


# --- the client ------------------------------------------------------------------------------------------------------


def run(
    arguments: Sequence[str], *, cwd: Path, env: dict[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python arguments`, to its end. Raises subprocess.TimeoutExpired."""
    if _HAS_GPU:  # CUDA cannot be used in a process forked from one that asked for it
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:  # noqa: PTH123
        code = _server().asked(
            {"arguments": list(arguments), "cwd": str(cwd), "env": env}, (nothing, out, err), timeout
        )
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess([sys.executable, *arguments], code, *texts)


class _Server:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=env | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def asked(self, request: dict[str, Any], streams: tuple[IO[bytes], ...], timeout: float) -> int:
        """The exit code of what the server forks."""
        numbers = array.array("i", [stream.fileno() for stream in streams])
        content = json.dumps(request).encode()
        self._socket.settimeout(timeout)
        self._socket.sendmsg([len(content).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        self._socket.sendall(content)
        pid = int.from_bytes(_received(self._socket, 8), "little")
        try:
            return int.from_bytes(_received(self._socket, 8), "little", signed=True)
        except TimeoutError as err:
            os.kill(pid, signal.SIGKILL)
            _received(self._socket, 8)
            raise subprocess.TimeoutExpired(request["arguments"], timeout) from err


@cache
def _server() -> _Server:
    return _Server()


def _received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# --- the server ------------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork for each request, one after the other, until nobody asks any more."""
    for name in PRELOADED:
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").is_dir() else 1
    assert threads == 1, f"{threads} threads, of which a fork has one"
    while True:
        try:
            size, streams, *_ = socket.recv_fds(connection, 8, 3)
            request = json.loads(_received(connection, int.from_bytes(size, "little")))
        except (EOFError, ConnectionError, json.JSONDecodeError):
            return
        pid = os.fork()
        if not pid:
            _become(request["arguments"], request["cwd"], request["env"], streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(pid.to_bytes(8, "little"))
        _, status = os.waitpid(pid, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))


def _become(arguments: Sequence[str], cwd: str | None, env: dict[str, str] | None, streams: Sequence[int]) -> NoReturn:
    """Go on as `python arguments` would begin, with `streams` as its standard input, output and error; and end."""
    code = 1
    try:
        _take_streams(streams)
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        _forget()
        code = _ran(arguments)
    finally:
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _take_streams(streams: Sequence[int]) -> None:
    _OF_THE_PARENT.extend((sys.stdin, sys.stdout, sys.stderr))
    given = [os.dup(stream) for stream in streams]
    for number, stream in enumerate(given):
        os.dup2(stream, number)
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]


# Kept, so that nobody writes what is in their buffers a second time.
_OF_THE_PARENT: list[object] = []


def _forget() -> None:
    """Handlers, functions at exit, and modules of this project and of tests, which a new Python would not have."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]


def _ran(arguments: Sequence[str]) -> int:
    """The exit code of a module, a script, or code; that of a signal is negative."""
    own = str(Path(__file__).parent)
    folders = [folder for folder in os.environ.get(_FOLDERS, "").split(os.pathsep) if folder]
    base = [folder for folder in sys.path if folder not in (own, *_BASE_FOLDERS)]
    kind, first, rest = _kind(arguments)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [first if kind == "script" else kind, *rest]
    sys.orig_argv = [sys.executable, *arguments]
    begin = str(Path(first).resolve().parent) if kind == "script" else "" if kind == "-c" else str(Path.cwd())
    sys.path[:] = [begin, *folders, *base]
    importlib.invalidate_caches()
    try:
        if kind == "-m":
            runpy._run_module_as_main(first)  # type: ignore[attr-defined]
        else:
            text = first if kind == "-c" else Path(first).read_text(encoding="utf-8")
            if kind == "script":
                main.__dict__["__file__"] = first
            exec(compile(text, "<string>" if kind == "-c" else first, "exec"), main.__dict__)
    except SystemExit as err:
        if err.code is None or isinstance(err.code, int):
            return (err.code or 0) & 0xFF
        print(err.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - whatever it is, it ends the program
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


_BASE_FOLDERS: list[str] = []


def _kind(arguments: Sequence[str]) -> tuple[str, str, list[str]]:
    """Module, code or script; which; and its arguments."""
    first, *rest = arguments
    if first == "-u":
        return _kind(rest)
    if first in ("-m", "-c"):
        return first, rest[0], rest[1:]
    assert not first.startswith("-"), f"{first}: start a real Python for it"
    return "script", first, rest


# --- what the forked ones start --------------------------------------------------------------------------------------

_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _forked(self: Any, args: Any, *rest: Any) -> None:
    """As Popen does it, but for this very Python, without exec."""
    (executable, preexec_fn, close_fds, pass_fds, cwd, env, _, _, shell,
     p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _, _, _, _, _, new_session) = rest[:21]  # fmt: skip
    listed = [os.fsdecode(one) for one in args] if isinstance(args, (list, tuple)) else []
    is_own = listed[:1] == [sys.executable] and executable is None and not (shell or preexec_fn or pass_fds)
    # What is run by its path is the analysis beside a training: that has threads, and kernels of its own to wait for.
    if not is_own or not close_fds or len(listed) < 2 or not listed[1].startswith("-"):
        _execute(self, args, *rest)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    self.pid = os.fork()
    if not self.pid:
        if new_session:
            os.setsid()
        streams = [own if own >= 0 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        texts = None if env is None else {os.fsdecode(key): os.fsdecode(value) for key, value in env.items()}
        _become(listed[1:], None if cwd is None else os.fsdecode(cwd), texts, streams)
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


if __name__ == "__main__":
    # The program itself must not be what `import warm_python` finds, nor its folder stand in front.
    _BASE_FOLDERS += [folder for folder in os.environ.get(_FOLDERS, "").split(os.pathsep) if folder]
    subprocess.Popen._execute_child = _forked  # type: ignore[attr-defined]
    serve(socket.socket(fileno=int(sys.argv[1])))
