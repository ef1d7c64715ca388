"""What the attacks share: the command line called within this process, and what must never come out of it."""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests/support")) if path not in sys.path]

from commtrace.cli import main as analysis_main  # noqa: E402

LIMIT_S = 20

Attack = Callable[..., tuple[Counter[str], list[str]]]
"""A folder to work in, how many tries, a seed, and own options by name -> what came out, and what went wrong."""


class TooLong(Exception):
    """Somebody waits, or reads without end."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """At most so long. Raises TooLong."""

    def ring(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def called(*arguments: object) -> tuple[int | str, str, str]:
    """Exit code, or what was raised instead; stdout, and stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with limited():
                code: int | str = analysis_main([str(argument) for argument in arguments])
        except Exception:  # noqa: BLE001 - whatever it is, it went wrong
            code = traceback.format_exc(limit=-3)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return code, texts[0], texts[1]


def complaint(code: int | str, out: str, err: str) -> str | None:
    """What is wrong with how a command ended; None where it did its work, or refused in one line."""
    if code not in (0, 1):
        return str(code) if isinstance(code, str) else f"exit code {code}: {err[:300]}"
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if code == 1 and not errors:
        return f"exit code 1 without a word: {err[:300]}"
    return f"a traceback: {err[-300:]}" if "Traceback" in out + err else None


_TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"NaN", b"-Infinity",
    b"null", b"true", b"1e999", b"-1", b"1.5", b"0", b"16777216", b"9223372036854775807", b"18446744073709551616",
    b"9" * 5000, b"\\ud800", b'"\\u0000"', b"[" * 3000, b'{"a":' * 600, b"[[]],", b'"x":', b"\xef\xbb\xbf", b"\n",
    b"{}",
]  # fmt: skip


def mutated(text: bytes, chance: random.Random) -> bytes:
    """The text with a few mistakes in it."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, size = chance.randrange(len(text) + 1), chance.choice((1, 1, 2, 8, 64, 1024))
        kind = chance.randrange(7)
        if kind == 0 and at < len(text):
            text = text[:at] + bytes([text[at] ^ 1 << chance.randrange(8)]) + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + text[at + size :]
        elif kind == 2:
            text = text[:at]
        elif kind == 3:
            text = text[:at] + text[chance.randrange(len(text) + 1) :][:size] + text[at:]
        else:
            text = text[:at] + chance.choice(_TOKENS) + text[at + chance.choice((0, 0, 1, size)) :]
    return text


def run_attack(attack: Attack, about: str | None, **options: object) -> int:
    """Attack as the command line says, and print one line, and what failed; 1 if anything did.

    `options` are those of this attack beside --tries and --seed, with their defaults; it is called with them.
    """
    import tempfile

    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    for name, default in options.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = {name: getattr(args, name) for name in options}
        counts, wrong = attack(Path(folder), args.tries, args.seed, **own)
    listed = ", ".join(f"{number:,} {what}" for what, number in counts.most_common())
    print(f"tried {sum(counts.values()):,}, failed {len(wrong):,} ({listed})")
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    return bool(wrong)
