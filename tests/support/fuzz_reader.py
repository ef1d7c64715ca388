"""Mutants of real traces against the reader: `python tests/support/fuzz_reader.py --seconds 600`.

Anything may come out but a traceback, a hang, much memory, or numbers that plain json does not see. Of what goes wrong,
hypothesis finds a small example; it is kept as a file, whose name is told.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import re
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from builders import LAYOUTS  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from oracle import Incomparable, oracle_tables, tables_of  # noqa: E402

from commtrace.analysis.errors import AnalysisError  # noqa: E402
from commtrace.analysis.formats.kineto.joining import Joining  # noqa: E402
from commtrace.analysis.formats.kineto.reader import joined_trace, read_kineto, read_part  # noqa: E402
from commtrace.analysis.recording.options import ReadOptions  # noqa: E402
from commtrace.analysis.recording.recording import RawTrace  # noqa: E402
from commtrace.analysis.recording.sizes import USUAL_SIZES, ReadSizes  # noqa: E402
from commtrace.analysis.results.analysis import Analysis  # noqa: E402
from commtrace.analysis.results.opening import load_run  # noqa: E402
from commtrace.analysis.run.file_tables import trace_file  # noqa: E402

SHARED = ROOT.parent / "shared" / "traces"
LIMIT_S = 20
LIMIT_MIB = 300
SEED_BYTES = 60_000
_OPENING = b"\n  {\n    "
_TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"NaN",
    b"-Infinity", b"null", b"true", b"1e999", b"-1", b"1.5", b"18446744073709551616", b'"ph"', b'"ph": "X", ',
    b"\\u0070",
    b"},\n  {\n    \"", b"  },", b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"stream":1}},', b"{},",
    b'"traceEvents": [', b"\xf0\x9f\x9a\x80", b"[" * 600, b'"cat": "kernel", ', b"\\ud83d", b"\x1f\x8b",
]  # fmt: skip
_ODD: list[Any] = [
    None, True, -1, 0, 1.5, 2**53, 2**63, 2**64 - 1, 2**70, 1 - 2**63, 1e300, "", "7", "1.25", "x", "ph", [], {}, [[]],
    [[2, 3]], [["a"]], {"ph": "X"}, "},\n  {", "\u0000", "é", "kernel", "nccl:all_reduce", "ProfilerStep#3",
    "record_param_comms", "c10d::allreduce_", "allreduce", "[0, 1]", 10**30,
]  # fmt: skip


class Seeds(tuple[bytes, ...]):
    """Documents, which nobody wants to see in a message."""

    def __repr__(self) -> str:
        return f"{len(self)} seeds"


def peak_mib() -> int:
    """The most this process has held since `forget_peak`; its ru_maxrss would begin with what the parent held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Let the peak begin anew: unpacking the seeds may take more than reading any mutant."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def seeds() -> Seeds:
    """Real traces, cut to a size at which thousands can be read: their ends, and some events in between."""
    files = sorted(SHARED.rglob("*.json.gz")) if SHARED.is_dir() else []
    files = [f for f in files if "rank0" in str(f) or "worker0" in str(f) or len(list(f.parent.iterdir())) < 8]
    for folder in ("traces", "tests/data"):
        files += sorted((ROOT / folder).rglob("*.pt.trace.json.gz"))[::4]
    return Seeds(_shortened(gzip.decompress(file.read_bytes())) for file in files)


def _shortened(text: bytes) -> bytes:
    starts = [m.start() for m in re.compile(re.escape(_OPENING)).finditer(text, text.index(b'"traceEvents"'))]
    if len(text) <= SEED_BYTES or len(starts) < 100:
        if len(text) <= SEED_BYTES:
            return text
        document = json.loads(text)
        return json.dumps({**document, "traceEvents": document["traceEvents"][:: len(text) // SEED_BYTES + 1]}).encode()
    every = len(text) // SEED_BYTES + 1
    kept = [text[a:b] for a, b in zip(starts[::every], starts[1::every], strict=False) if text[:b].endswith(b",")]
    return text[: starts[0]] + b"".join(kept) + text[starts[-1] :]


# --- mutants ---------------------------------------------------------------------------------------------------------


def _spliced(text: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Some bytes of the text replaced by others."""
    at = draw(st.integers(0, max(0, len(text) - 1)))
    length = draw(st.sampled_from([0, 0, 1, 1, 2, 7, 40, 400]))
    kind = draw(st.sampled_from(["token", "token", "nothing", "again", "elsewhere", "byte", "cut"]))
    if kind == "cut":
        return text[:at]
    other = draw(st.integers(0, max(0, len(text) - 1))) if kind == "elsewhere" else at
    put: dict[str, Callable[[], bytes]] = {
        "token": lambda: draw(st.sampled_from(_TOKENS)),
        "nothing": lambda: b"",
        "again": lambda: text[at : at + length] * 2,
        "elsewhere": lambda: text[other : other + length],
        "byte": lambda: bytes([draw(st.integers(0, 255))]),
    }
    return text[:at] + put[kind]() + text[at + length :]


def _respaced(text: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Other blanks at a line's end: in valid JSON, no string holds one."""
    breaks = [m.span() for m in re.finditer(rb"\n *", text)]
    if not breaks:
        return text
    begin, end = breaks[draw(st.integers(0, len(breaks) - 1))]
    put: bytes = draw(st.sampled_from([b"", b" ", b"\n", b"\n ", b"\n  ", b"\n    ", b"\r\n  "]))
    return text[:begin] + put + text[end:]


def _restructured(document: Any, draw: Callable[[Any], Any]) -> Any:
    """Something about an event, or around the events, changed."""
    document = copy.deepcopy(document)
    events = document["traceEvents"]
    kind = draw(
        st.sampled_from(["value", "value", "value", "args", "args", "drop", "event", "order", "around", "list"])
    )
    if kind == "list":
        return {"traceEvents": events}
    if kind == "around":
        target = draw(st.sampled_from([document, document.get("distributedInfo") or document]))
    elif not events:
        return document
    else:
        at = draw(st.integers(0, len(events) - 1))
        target = events[at] if isinstance(events[at], dict) else {}
        if kind == "args" and isinstance(target.get("args"), dict):
            target = target["args"]
        if kind == "event":
            events[at] = copy.deepcopy(draw(st.sampled_from([*_ODD, *events[:50]])))
        if kind == "order":
            events[:] = events[at:] + events[:at]
    keys = sorted(set(target) - {"traceEvents"}) if isinstance(target, dict) else []
    if keys and kind in ("value", "args", "around"):
        target[draw(st.sampled_from(keys))] = copy.deepcopy(draw(st.sampled_from(_ODD)))
    elif keys and kind == "drop":
        del target[draw(st.sampled_from(keys))]
    return document


def _laid_out(document: Any, layout: str) -> bytes:
    try:
        return LAYOUTS[layout](document)
    except (TypeError, ValueError, AttributeError):  # Kineto's own layouts need times that are numbers
        return json.dumps(document, indent=2).encode()


def _packed(text: bytes, draw: Callable[[Any], Any]) -> bytes:
    at = draw(st.integers(0, len(text)))
    packed = gzip.compress(text[:at], 1, mtime=0) + gzip.compress(text[at:], 1, mtime=0)
    return _spliced(packed, draw) if draw(st.booleans()) else packed


@st.composite
def mutants(draw: st.DrawFn, texts: Seeds) -> bytes:
    text = texts[draw(st.integers(0, len(texts) - 1))]
    if draw(st.booleans()):
        document = json.loads(text)
        if isinstance(document, dict):
            for _ in range(draw(st.integers(1, 4))):
                document = _restructured(document, draw)
            text = _laid_out(document, draw(st.sampled_from(sorted(LAYOUTS))))
    change = draw(st.sampled_from([_spliced, _spliced, _respaced, _respaced, None]))
    for _ in range(draw(st.integers(1, 5)) if change else 0):
        text = change(text, draw)
    return _packed(text, draw) if draw(st.integers(0, 5)) == 0 else text


# --- what must hold --------------------------------------------------------------------------------------------------


class Finding(Exception):
    """What must not happen."""


def outcome(path: Path, *, keep_damaged: bool = False, sizes: ReadSizes = USUAL_SIZES) -> RawTrace | None:
    try:
        return read_kineto(path, ReadOptions(keep_going=keep_damaged, sizes=sizes))
    except AnalysisError:
        return None


def in_parts(path: Path, sizes: ReadSizes) -> RawTrace | None:
    options = ReadOptions(sizes=sizes)
    try:
        parts = Joining()
        for part in range(3):
            parts.add(read_part(path, options, part, 3))
        return joined_trace(path, parts, options)
    except AnalysisError:
        return None


def check(path: Path, mutant: bytes, chunk_bytes: int, counts: Counter[str]) -> None:
    """Read a mutant in every way. Raises Finding, and whatever a reader should not."""
    path.write_bytes(mutant)
    found, kept = outcome(path), outcome(path, keep_damaged=True)
    counts["mutants"] += 1
    if found is not None and (kept is None or kept.damage or kept.activities != found.activities):
        raise Finding("keeping what is left of a sound file changes it")
    if kept is not None:
        counts["kept in part"] += found is None
        run = load_run([path], keep_going=True)
        if kept.damage and not run.partial_ranks:
            raise Finding("a damaged file is not marked")
        if counts["mutants"] % 8 == 0:
            table = Analysis(run).breakdown
            if kept.damage and not table["partial"].all():
                raise Finding("a number of a damaged file is not marked")
    in_chunks = ReadSizes(chunk_bytes=chunk_bytes)
    divided = in_parts(path, in_chunks)
    counts["read in parts"] += divided is not None
    try:
        wanted = oracle_tables(_unpacked(mutant))
    except (ValueError, RecursionError, Incomparable, zlib.error, EOFError, OSError, AttributeError, TypeError):
        before = kept.activities["ts"] if kept else b""
        if divided is not None and not divided.activities["ts"].startswith(before):
            raise Finding("read in parts, what stands before the damage is something else") from None
        return
    if divided is not None and tables_of(trace_file(path, divided)) != wanted:
        raise Finding("read in parts it is not what plain json says")
    counts["valid"] += 1
    if found is None:
        counts["valid but refused"] += 1
        return
    for sizes in (USUAL_SIZES, in_chunks):
        again = outcome(path, sizes=sizes)
        told = tables_of(trace_file(path, again)) if again else {}
        wrong = [key for key, rows in wanted.items() if told.get(key) != rows]
        if wrong:
            raise Finding(f"with chunks of {sizes.chunk_bytes} bytes {wrong} are not those of plain json")


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _too_long(number: int, frame: object) -> None:
    raise Finding(f"reading takes more than {LIMIT_S} s")


def fuzz(seconds: float, mutants_wanted: int, first_seed: int, folder: Path) -> Counter[str]:
    """What became of so many mutants, or of those of so many seconds.

    Raises what went wrong, after keeping the mutant in `folder`.
    """
    texts, counts, until = seeds(), Counter[str](), time.monotonic() + seconds
    counts["seeds"] = len(texts)
    forget_peak()
    path = folder / "rank0.json"
    signal.signal(signal.SIGALRM, _too_long)

    def is_enough() -> bool:
        return time.monotonic() > until or counts["mutants"] >= mutants_wanted

    def one(mutant: bytes, chunk_bytes: int) -> None:
        if is_enough():
            return
        signal.alarm(LIMIT_S)
        try:
            check(path, mutant, chunk_bytes, counts)
        finally:
            signal.alarm(0)
        used_mib = peak_mib()
        if used_mib > LIMIT_MIB:
            raise Finding(f"reading takes {used_mib} MiB")

    rounds = 0
    while not is_enough():
        limits = settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck),
                          phases=(Phase.generate, Phase.shrink))  # fmt: skip
        test = given(mutant=mutants(texts), chunk_bytes=st.sampled_from([100, 3000]))(one)
        seed(first_seed + rounds)(limits(test))()
        rounds += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mutants", type=int, default=sys.maxsize, help="end after so many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-reader-"))
    try:
        counts = fuzz(options.seconds, options.mutants, options.seed, folder)
    except BaseException:
        print(f"the mutant is {folder / 'rank0.json'}", file=sys.stderr)
        raise
    used_mib = peak_mib()
    print(", ".join(f"{count} {what}" for what, count in counts.items()) + f"; at most {used_mib} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
