"""A stranger on the store of a run with `--analyse`: `python tests/attacks/store_peers.py --tries 200 --seed 0`.

Each try has three ranks hand files over to a fourth, through a store on which a stranger writes hostile messages: huge
numbers, other types, other ranks, other folders, thousands of files, megabytes of rubbish, once or again and again.
Rank 0 may lose ranks to that, whose messages a stranger can overwrite, but says which; it ends in time, with little
memory and no thread left behind, and has no file that no rank of the run wrote. Every other try has no secret, where a
stranger's files are not to be told from a rank's, and only names, numbers and sizes are bounded.

With --whole, a try is `train` or `run`, whose exit code stays 0; some seconds each.
"""

import hmac
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from attacking import ROOT, run_attack
from capturing import SCRIPTS, environment
from ports import store_of
from process_tree import mark, marked
from torch.distributed import PrefixStore, TCPStore

from commtrace.profiling.ranks.process_group import Identity
from commtrace.profiling.sessions.afterwards.hand_over import Allowance, HandOver, HandOverError, Parcel

KEY, RANKS, SECONDS = "commtrace/hand_over/1", 4, 0.6
MOST = Allowance(bytes=3_000_000, files=4)
# A message of the store is 8 MiB at most, a chunk of a file 1 MiB.
MOST_MEMORY = 64_000_000
LATE_S = 1.5
WHOLE = (
    ("train", "--device", "cpu", "--batch-size", "1", "--wait", "1", "--active", "1"),
    ("run", str(SCRIPTS / "users" / "ddp.py"), "finish"),
)
WHOLE_MEMORY_KB = 300_000  # that rank 0 takes more than rank 1


def hostile(chance: random.Random, folder: str = "") -> tuple[str, bytes]:
    """The name of a message and its content, as a stranger may write them who knows what rank 0 announced."""
    rank = chance.choice((1, 1, 2, 3, 7))
    number = chance.choice((0, 1, -1, 10**7, 2 * 10**7, 2**63, 10**400, 1.5, "1", None, True, [1]))
    name = chance.choice((f"host{rank}_{rank}.0000.pt.trace.ctrace", f"h_{rank}.meta.json", "../x", "run.json", "", 3))
    file = {"name": name, "size": number, "sha256": sha256(b"").hexdigest()}
    files = chance.choice(([], [file], [file] * 10_000, file, "files", None, [[name, number]], many(rank)))
    label = {"folder": folder, "files": files, "reason": chance.choice((None, "\x1b[2J\n" * 9, 3)), "shared": True}
    old = {"rank": rank, "files": [[name, number]], "chunks": number, "reason": None, "shared": False}
    texts = [json.dumps(label), json.dumps(old), json.dumps(old).replace(str(number), "1e400"), "[" * 100_000, "x", ""]
    texts += ["9" * 5000, '{"rank": NaN}', "\0" * 7_000_000]
    slot = chance.choice(("arrived/{}", "{}/0", "{}/0/0", "arrivals", "folder", "closed")).format(rank)
    body = chance.choice(texts).encode()
    sealed = hmac.digest(b"", f"{KEY}\0{slot}\0".encode() + body, "sha256")  # as where a run has no secret
    return slot, chance.choice((b"", bytes(32), sealed, sealed)) + body


def many(rank: int) -> list[dict[str, object]]:
    """Thousands of empty files in the name of a rank."""
    empty = sha256(b"").hexdigest()
    return [{"name": f"h_{rank}.{n:05d}.pt.trace.ctrace", "size": 0, "sha256": empty} for n in range(10_000)]


def attack(folder: Path, tries: int, seed: int, *, whole: bool) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for number in range(tries):
        own = folder / str(number)
        own.mkdir()
        if whole:
            what, faults = attacked_command(own, WHOLE[number % 2], chance)
        else:
            what, faults = attacked_hand_over(own, chance, b"secret" if number % 2 else b"")
        counts[what] += 1
        wrong += [f"try {number}, {what}: {fault}" for fault in faults]
    return counts, wrong


def attacked_hand_over(folder: Path, chance: random.Random, secret: bytes) -> tuple[str, list[str]]:
    """What rank 0 was up against, and what is wrong with what it did."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def client() -> TCPStore:
        return TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=5))

    again = chance.random() < 0.3
    mark = sha256(str(folder).encode()).hexdigest()
    messages = [hostile(chance, mark) for _ in range(chance.choice((1, 3, 30)))]
    over = threading.Event()
    stranger = PrefixStore(KEY, client())
    (folder / "of0").mkdir()
    (folder / "of0" / "run.json").write_text(str(folder))
    taker = HandOver(client(), Identity(0, 0, RANKS, "host0"), KEY, secret)
    taker.announce(folder / "of0")
    write(stranger, [message for message in messages if again or message[0] != "folder"])
    contents = {rank: chance.randbytes(chance.choice((0, 10, 2_500_000))) for rank in range(1, RANKS)}
    until_s = time.monotonic() + SECONDS

    def is_over() -> bool:
        return time.monotonic() > until_s

    def give(rank: int) -> None:
        time.sleep(0.05 * rank)
        (folder / f"of{rank}").mkdir()
        parcel = Parcel([(name_of(rank), contents[rank]), (f"host{rank}_{rank}.meta.json", b"{}")])
        giver = HandOver(client(), Identity(rank, rank, RANKS, f"host{rank}"), KEY, secret)
        with suppress(HandOverError):
            giver.give(folder / f"of{rank}", lambda: parcel, MOST.bytes, is_over)

    def storm() -> None:
        while again and not over.is_set():
            write(stranger, messages)
            time.sleep(0.01)

    before = threading.active_count()
    threads = [threading.Thread(target=give, args=(rank,)) for rank in contents]
    threads.append(threading.Thread(target=storm))
    memory = memory_kb()
    for thread in threads:
        thread.start()
    taken = taker.take(folder / "of0", MOST, is_over)
    late_s = time.monotonic() - until_s
    over.set()
    for thread in threads:
        thread.join()
    time.sleep(0.05)
    faults = [f"ended {late_s:.1f} s late"] * (late_s > LATE_S)
    grown = 1024 * (memory_kb() - memory)
    faults += [f"took {grown:,} bytes"] * (grown > MOST_MEMORY + sum(map(len, contents.values())))
    faults += ["left a thread"] * (threading.active_count() > before)
    faults += folder_faults(folder, contents, taken.missing, trusted=bool(secret))
    lost = " (ranks lost)" if taken.missing else ""
    return ("a storm" if again else "messages") + (" with a secret" if secret else ", no secret") + lost, faults


def folder_faults(folder: Path, contents: dict[int, bytes], missing: dict[int, str], *, trusted: bool) -> list[str]:
    """What is wrong with what rank 0 has."""
    names = {path.name for path in (folder / "of0").iterdir()} - {"run.json"}
    ours = {name for rank in contents for name in (name_of(rank), f"host{rank}_{rank}.meta.json")}
    faults = [f"beside the folder: {path.name}" for path in folder.iterdir() if not re.fullmatch("of[0-9]", path.name)]
    if not trusted:
        shape = rf"[\w-]+_[1-{RANKS - 1}]\.([0-9]+\.pt\.trace\.ctrace|meta\.json)"
        faults += [f"file {name}" for name in names if not re.fullmatch(shape, name)]
        return faults + ["too many files"] * (len(names) > MOST.files * (RANKS - 1))
    faults += [f"file {name}" for name in names - ours]
    for rank, content in contents.items():
        path = folder / "of0" / name_of(rank)
        if rank not in missing and (not path.is_file() or path.read_bytes() != content):
            faults.append(f"rank {rank} is neither there nor missing")
    return faults + [f"unprintable: {why!r}" for why in missing.values() if not why.isprintable()]


def name_of(rank: int) -> str:
    return f"host{rank}_{rank}.0000.pt.trace.ctrace"


def write(store: PrefixStore, messages: list[tuple[str, bytes]]) -> None:
    with suppress(RuntimeError):
        for name, content in messages:
            store.set(name, content)


def memory_kb(pid: int | str = "self", what: str = "VmRSS") -> int:
    """Memory of a process; 0 if it has ended."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{what}:")), 0)
    return 0


def attacked_command(folder: Path, command: tuple[str, ...], chance: random.Random) -> tuple[str, list[str]]:
    """What was run, and what is wrong with how it ended."""
    name, *options = command
    arguments = (name, "--workers", "3", "--out", str(folder), "--run-name", "mine")
    arguments += ("--analyse", "--analyse-max-seconds", "6", *options)
    files = {"rank": 2, "files": [[file["name"], 0] for file in many(2)], "chunks": 0, "reason": None, "shared": False}
    messages = chance.choice((
        [("arrivals", b"20000000")],
        [("arrivals", b"2"), ("arrived/1", b'{"rank": 1, "files": [], "chunks": 1e400}')],
        [("arrivals", b"2"), ("arrived/2", json.dumps(files).encode())],
        [hostile(chance) for _ in range(30)],
    ))  # fmt: skip
    variable, peaks = mark(), dict[int, int]()
    with subprocess.Popen(
        [sys.executable, "-m", "commtrace", *arguments], cwd=ROOT, env=environment() | variable,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        stranger = threading.Thread(target=haunt, args=(variable, messages, peaks, lambda: process.poll() is not None))
        stranger.start()
        _, said = process.communicate()
        stranger.join()
    faults = [f"exit code {process.returncode}"] * bool(process.returncode)
    faults += [f"said: {line}" for line in said.splitlines() if "terminate called" in line or "Traceback" in line]
    faults += [f"rank 0 took {peaks.get(0, 0):,} kB"] * (peaks.get(0, 0) > peaks.get(1, 0) + WHOLE_MEMORY_KB)
    left = [path.name for path in (folder / "mine").glob("*") if re.search(r"^h_|^host\d", path.name)]
    faults += [f"{len(left)} files of a stranger"] * bool(left)
    faults += ["a rank is lost"] * (len(messages) < 30 and "process group did not answer" in said)
    faults += ["no summary"] * (not (folder / "mine" / "summary.txt").is_file())
    return name, faults


def haunt(
    variable: dict[str, str], messages: list[tuple[str, bytes]], peaks: dict[int, int], is_over: Callable[[], bool]
) -> None:
    """Write to the store of a run as long as it lives, and note the memory of its ranks."""
    store: PrefixStore | None = None
    while not is_over():
        for pid in marked(variable):
            rank = rank_of(pid)
            if rank is not None:
                peaks[rank] = max(peaks.get(rank, 0), memory_kb(pid, "VmHWM"))
            found = store_of(pid) if store is None else None
            if found is not None:
                with suppress(RuntimeError):
                    store = TCPStore("127.0.0.1", found[0], is_master=False, timeout=timedelta(seconds=2))
        if store is not None:
            for prefix in key_prefixes(store):
                write(PrefixStore(prefix, store), messages)
        time.sleep(0.2)


def key_prefixes(store: TCPStore) -> set[str]:
    """Where the ranks hand over, by a key that is there."""
    with suppress(RuntimeError):
        keys = store.list_keys()
        return {key[: key.index(KEY) + len(KEY)] for key in keys if KEY in key}
    return set()


def rank_of(pid: int) -> int | None:
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        return int(next(line for line in lines if line.startswith("RANK="))[5:])
    return None


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    sys.exit(run_attack(attack, __doc__, whole=False))
