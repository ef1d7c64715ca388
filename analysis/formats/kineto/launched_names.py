"""The kernels that calls of the runtime launch, by what the calls say: on ROCm each names its kernel."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec


class _Args(msgspec.Struct):
    correlation: int | None = None
    kernel: str | None = None


class _Event(msgspec.Struct):
    args: _Args | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the name in the file


def launched_names(path: Path) -> dict[int, str]:
    """The name of the kernel by the correlation of the call that launches it; none where calls do not name them.

    Raises OSError.
    """
    content = path.read_bytes()
    try:
        unpacked = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        events = msgspec.json.decode(unpacked, type=_File, strict=False).traceEvents
    except (msgspec.MsgspecError, EOFError, gzip.BadGzipFile):
        return {}
    of_calls = (one.args for one in events if one.args is not None)
    return {
        args.correlation: args.kernel for args in of_calls if args.correlation is not None and args.kernel is not None
    }
