"""Mutants of logs against both ways of reading them: `python tests/support/fuzz_inspector.py --seconds 600`.

Anything may come out but a traceback, a hang, or two ways that count differently. The mutant that shows one is kept.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from inspector_logs import BEGIN_US, Comm, Log  # noqa: E402

from commtrace.analysis.errors import AnalysisError  # noqa: E402
from commtrace.analysis.results.opening import analyse  # noqa: E402
from commtrace.analysis.streaming.logs import LogsOverTime  # noqa: E402

VERSIONS = ("v4.0", "v4.1", "v4.2", "v4.3")
_LIMIT_S = 60
_ONE_NS = 1 << 62
_TOKENS = [
    b"{", b"}", b'"', b"\\", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b",", b":", b"nan", b"-inf", b"-1",
    b"1e999", b"[" * 600, b"null", b"true", b'{"header":{}}', b'"n_ranks":0', b'"rank":99999999999', b"\\ud83d",
    b"18446744073709551616", b"9007199254740993", b'{"coll_perf":{}}\n', b'{"dump_stats":{"coll_records":9}}\n', b"0",
]  # fmt: skip


def logs(chance: random.Random) -> list[bytes]:
    """The logs of a small job."""
    version, made = chance.choice(VERSIONS), []
    for rank in range(3):
        log = Log(pid=rank + 1)
        for sn in range(6):
            took = 300 if rank == sn % 3 else 400
            log.call(Comm("0xa", rank, 3), "all_reduce", sn, took, written_us=BEGIN_US + sn * 1000)
        for sn in range(4):
            log.call(Comm(f"0xb{rank // 2}", rank % 2, 2), "all_gather", sn, 50, written_us=BEGIN_US + sn * 1000)
        log.call(Comm("0xa", rank, 3), "send", 1, 20, peer=(rank + 1) % 3)
        made.append("".join(f"{line}\n" for line in log.lines(version, chance.randint(1, 8))).encode())
    return made


def mutant(text: bytes, chance: random.Random) -> bytes:
    """The log with some bytes gone, moved or put in."""
    found = bytearray(text)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        end = min(at + chance.choice([0, 1, 3, 40, 400]), len(found))
        what = chance.choice(["cut", "token", "again", "end"])
        if what == "token":
            found[at:end] = chance.choice(_TOKENS)
        elif what == "again":
            found[at:at] = found[chance.randrange(len(found) + 1) :][: chance.randint(1, 900)]
        else:
            del found[at : end if what == "cut" else chance.choice([end, len(found)])]
    return bytes(found)


def outcome(folder: Path) -> str:
    """What came of the logs of a folder. Raises AssertionError."""
    paths = sorted(folder.iterdir())
    streamed: LogsOverTime | None = LogsOverTime(paths, _ONE_NS, keep_going=True)
    try:
        assert streamed is not None
        streamed.read()
        table = streamed.table()
    except AnalysisError:
        streamed = None
    try:
        run = analyse(folder, keep_going=True, workers=1)
    except AnalysisError:
        return "refused" if streamed is None else "refused as a run"
    assert streamed is not None, "refused only by time"
    waits = run.participation["wait_ns"].dropna()
    assert (waits >= 0).all()
    # Of incomplete collectives, the run accepts those whose shortest call shows that nobody came later.
    whole = run.collectives[run.collectives["complete"].astype(bool) & (run.collectives["group_size"] > 1)]
    split = int((whole["transfer_ns"].fillna(0) > 0).sum())
    assert int(table["split_calls"].sum()) == split, f"{int(table['split_calls'].sum())} and {split} split"
    assert table["wait_frac"].dropna().between(0, 1).all()
    return "split" if split else "read"


def fuzz(seconds: float, most: int, seed: int) -> Counter[str]:
    """What came of so many mutants, or of as many as there is time for. Raises AssertionError."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while counts.total() < most and time.monotonic() < end:
        chance = random.Random(seed * 1_000_003 + counts.total())
        with tempfile.TemporaryDirectory(prefix="inspector-") as folder:
            texts = logs(chance)
            texts[0] = mutant(texts[0], chance)
            for number, text in enumerate(texts):
                (Path(folder) / f"node00-pid{number + 1}.log").write_bytes(text)
            signal.alarm(_LIMIT_S)
            try:
                counts[outcome(Path(folder))] += 1
            except BaseException:
                kept = Path(tempfile.mkdtemp(prefix="inspector-mutant-"))
                for number, text in enumerate(texts):
                    (kept / f"node00-pid{number + 1}.log").write_bytes(text)
                print(f"kept in {kept}", file=sys.stderr)
                raise
            signal.alarm(0)
    return counts


def main() -> int:
    """0 where nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mutants", type=int, default=1 << 30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(", ".join(f"{count} {what}" for what, count in fuzz(args.seconds, args.mutants, args.seed).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
