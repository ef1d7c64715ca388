"""Read one dump of the flight recorder: the calls of one rank by process group. Only this module knows its keys.

torch 2.4 to 2.13 write the same with few differences: sequence numbers of sends and receives have been apart since 2.4,
stacks can be left out, of JSON all numbers of states are texts, and gloo says neither who is in a group nor when a call
was done. Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....common.nccl_tests import collective_name, dtype_name, elements
from ....contract.limits import RANK_LIMIT
from ...core.budget import Budget
from ...core.markers import COALESCED, GLOO_MARK
from ...core.small_files import MOST_BYTES
from ...errors import DamagedTrace, NotATrace
from ...recording.plain_content import budget_of, is_pickle, plain_bytes, plain_content, scalar_text, whole_number
from ..others import SNAPSHOT, foreign_file

_KEYS = frozenset({"entries", "pg_config", "pg_status", "nccl_comm_state"})
_MOST_SIZES, _MOST_FRAMES, _MOST_ENTRIES = 10_000, 1_000, 1_000_000
_LAST_ENTRIES = 64  # among these, which are in the order of issue, is the last time
_MOST_CALLS = 1 << 48
_MOST_DIMENSIONS = 64
_CALL_BYTES, _FRAME_BYTES, _RECORD_BYTES, _RANK_BYTES = 600, 100, 40, 16  # as they are kept
_PEERS = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})$")
_RANKS = re.compile(r"\d{1,7}")
# Ranks may hand in, or get back, different numbers of elements: which side has to agree, if any.
_AGREE_ON_INPUT = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "gather"})
_AGREE_ON_OUTPUT = frozenset({"scatter", "all_gather"})
_WORLD = "default_pg"
_JSON_BLANKS = b" \t\r\n"

Frame = tuple[str, str, int]
"""Function, file and line."""


@dataclass(frozen=True)
class GroupName:
    """A process group as one rank names it; `ranks` is the file's text, empty where the file has none."""

    name: str
    about: str
    ranks: str

    @property
    def is_world(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.about == _WORLD or (self.name == "0" and not self.ranks)


@dataclass(frozen=True)
class Call:
    """A call as its rank recorded it; `elems` are its input elements."""

    kind: str
    seq: int
    record: int
    created_ns: int
    state: str
    elems: int | None
    timeout_ms: int | None
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Transfer:
    """A send or receive that has not finished, with ranks of its group."""

    call: Call
    source: int
    target: int


@dataclass(frozen=True)
class Status:
    """Numbers of the last issued, started and finished call of a group, sends and receives included."""

    issued: int
    started: int | None
    done: int | None


@dataclass
class GroupLog:
    """The record of one rank and group: collectives by number, and unfinished sends and receives.

    `whats` count through `Dump.whats`.
    """

    seqs: array[int] = field(default_factory=lambda: array("q"))
    whats: array[int] = field(default_factory=lambda: array("q"))
    done: bytearray = field(default_factory=bytearray)
    started: bytearray = field(default_factory=bytearray)
    only_retired: bool = False
    """Whether "done" is known only as "no longer waited for", which is true of what failed, too."""
    waiting: Call | None = None
    """The first collective that is not done."""
    last: Call | None = None
    """The collective issued last."""
    transfers: list[Transfer] = field(default_factory=list)
    issued: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """How many sends, or receives, were issued from one rank of the group to another."""
    status: Status | None = None


@dataclass
class Dump:
    """The content of one file, which does not say its rank."""

    version: str
    groups: dict[GroupName, GroupLog]
    unplaced: dict[int, Status]
    """The states of groups of which no call is in the dump, by the rank's own number of the group."""
    numbers: dict[int, GroupName]
    whats: list[str]
    kinds: dict[str, str]
    """What was called, in torch's words, by its name in the dump."""
    last: Call | None
    last_group: GroupName | None
    first_record: int | None
    records: int
    only_active: bool
    has_frames: bool
    newest_ns: int | None
    kept_bytes: int = 0
    """The memory that it takes, at most."""

    @property
    def is_whole(self) -> bool:
        """Whether the dump has every call since the start."""
        return not self.only_active and self.first_record == 0


def dump_content(path: Path, budget: Budget) -> dict[str, Any]:
    """The content of a dump as it is in the file.

    Raises UnreadableFile, NotATrace, DamagedTrace, UnsafePickle, TooLarge.
    """
    data = plain_bytes(path, budget)
    if foreign_file(data) is SNAPSHOT:
        raise NotATrace(f"{path}: {SNAPSHOT}; `commtrace hang` reads dumps of the flight recorder")
    if not is_pickle(data):
        _check_json(path, data)
    content = plain_content(path, data, budget)
    if not isinstance(content, dict) or not _KEYS & content.keys():
        raise NotATrace(f"{path}: is not a dump of the flight recorder: it has no entries, pg_config or pg_status")
    return content


def _check_json(path: Path, data: bytes) -> None:
    if data.lstrip(_JSON_BLANKS)[:1] != b"{":
        raise NotATrace(f"{path}: is not a dump of the flight recorder: it is neither a pickle nor JSON")
    if len(data) > MOST_BYTES:
        raise DamagedTrace(f"{path}: is larger than {MOST_BYTES >> 20} MiB; dump fewer entries (TORCH_FR_BUFFER_SIZE)")


def read_dump(path: Path, limit_bytes: int | None = None) -> Dump:
    """Read what one rank recorded. Raises TraceError; TooLarge if it needs more memory than `limit_bytes`."""
    budget = budget_of(path, limit_bytes)
    content = dump_content(path, budget)
    try:
        return dump_of(content, str(path), budget)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as err:
        what = f"{type(err).__name__}: {err}"
        raise DamagedTrace(f"{path}: an entry is not as torch writes it ({what[:200]}); dump it again") from err


def dump_of(content: dict[str, Any], name: str, budget: Budget) -> Dump:
    """Sort the content of a dump by group. `name` begins errors. Raises TraceError, and errors of wrong types."""
    entries = content.get("entries") or []
    if not isinstance(entries, list) or len(entries) > _MOST_ENTRIES:
        raise ValueError("entries are not a list, or are more than a million")
    taking = Taking(f"{name}: what it holds", budget)
    taking.keep(len(entries) * _RECORD_BYTES)
    logs = _Logs(_ranks_by_name(content.get("pg_config") or {}, taking), taking)
    for entry in entries:
        logs.add(entry)
    logs.close()
    of_groups = content.get("pg_status") or {}
    states = {int(number): _status(state) for number, state in of_groups.items() if str(number).isdecimal()}
    groups = dict(logs.groups)
    for number, group in logs.numbers.items():
        groups[group].status = states.pop(number, None)
        if _is_only_active(entries):
            groups[group].transfers = _without_batches(groups[group])
    last = entries[-1] if entries else None
    return Dump(
        version=scalar_text(content.get("version", "")),
        groups=groups,
        unplaced=states,
        numbers=logs.numbers,
        whats=list(logs.whats),
        kinds=logs.kinds,
        last=None if last is None else _call(last, logs.kind_of(last), taking),
        last_group=None if last is None else logs.name_of(last),
        first_record=None if last is None else whole_number(entries[0].get("record_id", 0)),
        records=len(entries),
        only_active=_is_only_active(entries),
        has_frames=any("frames" in entry for entry in entries[:1]),
        newest_ns=max(map(_time, entries[-_LAST_ENTRIES:]), default=None),
        kept_bytes=taking.kept_bytes,
    )


@dataclass
class Taking:
    """Take memory from the budget while a dump is read.

    A pickle may refer to one list from many places, so what is read again and again is counted each time.
    """

    what: str
    budget: Budget
    kept_bytes: int = 0

    def keep(self, size: int) -> None:
        """Count `size` more bytes as kept. Raises TooLarge."""
        self.budget.draw(self.what, size)
        self.kept_bytes += size

    def shapes(self, given: Any) -> list[list[int]]:
        """The shapes of tensors. Raises TypeError unless they are lists of numbers; DamagedTrace."""
        if not given:
            return []
        self.budget.work(self.what, len(given))
        for shape in given:
            if type(shape) is not list or len(shape) > _MOST_DIMENSIONS or any(type(size) is not int for size in shape):
                raise TypeError("the size of a tensor is not a list of numbers")
        return list(given)


class _Logs:
    """The groups of a dump, filled entry by entry."""

    def __init__(self, ranks: dict[str, dict[str, str]], taking: Taking) -> None:
        self._taking = taking
        self.groups: dict[GroupName, GroupLog] = {
            GroupName(name, about, text): GroupLog() for name, abouts in ranks.items() for about, text in abouts.items()
        }
        self.numbers: dict[int, GroupName] = {}
        self.whats: dict[str, int] = {}
        self._ranks = ranks
        self._names: dict[tuple[str, str], GroupName] = {}
        self.kinds: dict[str, str] = {}
        self._whats: dict[tuple[Any, ...], int] = {}
        self._open: dict[GroupName, list[tuple[dict[str, Any], bool]]] = {}

    def add(self, entry: dict[str, Any]) -> None:
        """Add one entry, in the order of the dump."""
        name = self.name_of(entry)
        log = self.groups.get(name)
        if log is None:
            log = self.groups[name] = GroupLog()
        if not isinstance(entry.get("pg_id"), int | str | None):
            raise TypeError("the number of a group is no number")
        number = entry.get("pg_id")
        if number is not None and number not in self.numbers:
            self.numbers[number] = name
        is_done, is_started = _progress(entry)
        if entry.get("is_p2p"):
            self._open.setdefault(name, []).append((entry, is_done))
            return
        kind = self.kind_of(entry)
        seq: int = entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]
        if not 0 <= seq < _MOST_CALLS:
            raise ValueError(f"a collective has number {seq}")
        what = self._shared_properties(kind, entry)
        if log.seqs and log.seqs[-1] == seq:  # a call within one that is coalesced: the last entry has its state
            log.whats[-1], log.done[-1], log.started[-1] = what, is_done, is_started
            if log.waiting is not None and log.waiting.seq == seq:
                log.waiting = None if is_done else _call(entry, kind, self._taking)
        else:
            log.seqs.append(seq)
            log.whats.append(what)
            log.done.append(is_done)
            log.started.append(is_started)
            if is_done:
                log.waiting = None  # those of a group are done one after another
            elif log.waiting is None:
                log.waiting = _call(entry, kind, self._taking)
        log.last = entry  # type: ignore[assignment]  # until `close`

    def close(self) -> None:
        """Finish after all entries are added."""
        for log in self.groups.values():
            if isinstance(log.last, dict):
                log.only_retired = str(log.last["profiling_name"]).startswith(GLOO_MARK)
                log.last = _call(log.last, self.kind_of(log.last), self._taking)
        for name, entries in self._open.items():
            self.groups[name].transfers, self.groups[name].issued = _transfers(entries, self.kind_of, self._taking)

    def name_of(self, entry: dict[str, Any]) -> GroupName:
        """The process group of an entry."""
        given = entry.get("process_group")
        if given is None:
            given = entry.get("pg_name", entry.get("pg_id", ""))
        key = (
            (scalar_text(given[0]), scalar_text(given[1]))
            if isinstance(given, list | tuple)
            else (scalar_text(given), "")
        )
        group = self._names.get(key)
        if group is None:
            abouts = self._ranks.get(key[0], {})
            about = key[1] or next(iter(abouts), "")
            group = self._names[key] = GroupName(key[0], about, abouts.get(about, next(iter(abouts.values()), "")))
        return group

    def kind_of(self, entry: dict[str, Any]) -> str:
        """The operation without the backend, in torch's words: `all_reduce`, `coalesced`."""
        full = entry["profiling_name"]
        kind = self.kinds.get(full)
        if kind is None:
            plain = scalar_text(full).partition(":")[2] or scalar_text(full)
            kind = self.kinds[full] = collective_name(plain) or plain
        return kind

    def _shared_properties(self, kind: str, entry: dict[str, Any]) -> int:
        """A number for the properties that all ranks of a collective must share."""
        which = "input_sizes" if kind in _AGREE_ON_INPUT else "output_sizes" if kind in _AGREE_ON_OUTPUT else ""
        sizes = self._taking.shapes(entry.get(which))
        dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or []
        dtype = None if not dtypes or dtypes[0] is None else scalar_text(dtypes[0])
        key = (kind, dtype, str(sizes) if sum(map(len, sizes)) < _MOST_SIZES else "")
        number = self._whats.get(key)
        if number is None:
            text = " ".join(filter(None, (kind, dtype_name(key[1]) or key[1], _elements_text(sizes))))
            number = self._whats[key] = self.whats.setdefault(text, len(self.whats))
        return number


def _elements_text(sizes: list[Any]) -> str:
    count = elements(sizes) if sizes else None
    return "" if count is None else f"{count:,} elements"


def _ranks_by_name(config: dict[str, Any], taking: Taking) -> dict[str, dict[str, str]]:
    """Ranks by group name and description, for groups that list their ranks."""
    by_name: dict[str, dict[str, str]] = {}
    known: set[str] = set()
    for key, group in config.items():
        ranks = group.get("ranks", "")
        taking.budget.work(taking.what, len(ranks))
        text = ranks if isinstance(ranks, str) else ",".join(map(scalar_text, ranks))
        taking.keep(0 if text in known else _CALL_BYTES + _RANK_BYTES * len(text))
        known.add(text)
        if _RANKS.search(text):
            by_name.setdefault(scalar_text(group.get("name", key)), {})[scalar_text(group.get("desc", ""))] = text
    return by_name


def listed_ranks(text: str, name: str = "a dump") -> tuple[int, ...]:
    """Parse the ranks of a group, in its order. `name` begins the error. Raises DamagedTrace."""
    if text.count(",") > RANK_LIMIT:
        raise DamagedTrace(f"{name}: a process group has more than {RANK_LIMIT:,} ranks; dump it again")
    ranks = tuple(map(int, _RANKS.findall(text)))
    if any(rank >= RANK_LIMIT for rank in ranks) or len(set(ranks)) != len(ranks):
        raise DamagedTrace(f"{name}: a process group has ranks {text[:80]!r}; expected numbers, each of them once")
    return ranks


def _status(state: dict[str, Any]) -> Status:
    issued, started, done = (
        whole_number(state.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")
    )
    return Status(issued, None if started < 0 else started, None if done < 0 else done)


def _progress(entry: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a call is finished, and whether it has started, as its rank recorded it."""
    state = entry.get("state")
    if state == "completed":
        return True, True
    if entry.get("retired") and entry["profiling_name"].startswith(GLOO_MARK):
        return True, True
    return False, state == "started"


def _is_only_active(entries: list[dict[str, Any]]) -> bool:
    """Whether finished calls were left out: numbers between the first and last record are missing."""
    if not entries or "record_id" not in entries[0]:
        return True
    first, last = entries[0]["record_id"], entries[-1]["record_id"]
    return bool(last - first + 1 != len(entries)) or (first > 0 and not any(map(_is_done, entries)))


def _is_done(entry: dict[str, Any]) -> bool:
    return _progress(entry)[0]


def _time(entry: dict[str, Any]) -> int:
    """The latest time in an entry."""
    keys = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    return max(whole_number(entry.get(key) or 0) for key in keys)


def _call(entry: dict[str, Any], kind: str, taking: Taking) -> Call:
    frames = (entry.get("frames") or [])[:_MOST_FRAMES]
    taking.budget.work(taking.what, len(frames))
    taking.keep(_CALL_BYTES + _FRAME_BYTES * len(frames))
    state = entry.get("state")
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id", entry.get("seq_id"))
    timeout = entry.get("timeout_ms")
    return Call(
        kind=kind,
        seq=whole_number(number or 0),
        record=whole_number(entry.get("record_id", 0)),
        created_ns=whole_number(entry.get("time_created_ns") or 0),
        state="retired" if entry.get("retired") and state != "completed" else scalar_text(state),
        elems=elements(taking.shapes(entry.get("input_sizes"))),
        timeout_ms=None if timeout is None else whole_number(timeout),
        frames=tuple((scalar_text(f["name"]), scalar_text(f["filename"]), whole_number(f["line"])) for f in frames),
    )


def _without_batches(log: GroupLog) -> list[Transfer]:
    """Drop transfers of batches that have finished: the dump leaves out the entry that closed them."""
    done = log.status.done if log.status is not None else None
    alike = Counter(transfer.call.seq for transfer in log.transfers)
    return [move for move in log.transfers if done is None or move.call.seq > done or alike[move.call.seq] < 2]


def _transfers(
    entries: Iterable[tuple[dict[str, Any], bool]], kind_of: Callable[[dict[str, Any]], str], taking: Taking
) -> tuple[list[Transfer], dict[tuple[str, int, int], int]]:
    """Unfinished sends and receives of a group, and how many of each were issued.

    Those of a batch have no state: the entry that closes the batch, of the same number, has that of all.
    """
    listed = list(entries)
    batches = {entry["p2p_seq_id"]: is_done for entry, is_done in listed if entry["profiling_name"] == COALESCED}
    transfers: list[Transfer] = []
    issued: dict[tuple[str, int, int], int] = {}
    for entry, is_done in listed:
        ends = _PEERS.search(entry["profiling_name"])
        if ends is None:
            continue
        a, b = int(ends[2]), int(ends[4])
        pair = (a, b) if ends[1] == "send" else (b, a)
        way = (ends[1], *pair)
        issued[way] = issued.get(way, 0) + 1
        if not is_done and not batches.get(entry["p2p_seq_id"], False):
            transfers.append(Transfer(_call(entry, kind_of(entry), taking), *pair))
    return transfers, issued
