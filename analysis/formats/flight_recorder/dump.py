"""One dump of the flight recorder -> what one rank issued, by process group. Only this module knows a dump's keys.

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

from ...core.disk import open_plain
from ...core.markers import COALESCED, GLOO_MARK
from ...core.nccl_tests import collective_name, dtype_name, elements
from ...core.small_files import MOST_BYTES, RANK_LIMIT, NotJson, json_of
from ...errors import DamagedTrace, NotATrace, UnreadableFile
from ...recording.compression import BrokenPacking, all_bytes
from .entry import is_pickle
from .opcodes import primitives

_KEYS = frozenset({"entries", "pg_config", "pg_status", "nccl_comm_state"})
_MOST_SIZES, _MOST_FRAMES, _MOST_ENTRIES = 10_000, 1_000, 1_000_000
_LAST_ENTRIES = 64  # among these, which are in the order of issue, is the last time
_MOST_CALLS = 1 << 48
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
    """A process group, as one rank knows it: ranks are as a text of the file, empty where that does not say them."""

    name: str
    about: str
    ranks: str

    @property
    def is_world(self) -> bool:
        """Whether it is the one that all ranks are in."""
        return self.about == _WORLD or (self.name == "0" and not self.ranks)


@dataclass(frozen=True)
class Call:
    """One call as a rank recorded it; `elems` are those it handed in."""

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
    """A send or receive that is not done, in ranks of its group."""

    call: Call
    source: int
    target: int


@dataclass(frozen=True)
class Status:
    """Numbers of the last call of a group that was issued, started and done; sends and receives count as well."""

    issued: int
    started: int | None
    done: int | None


@dataclass
class GroupLog:
    """What a rank recorded of one group: its collectives by number, and sends and receives that are not done.

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
    """What one file holds. It does not say which rank it is of."""

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

    @property
    def is_whole(self) -> bool:
        """Whether every call since the start is in it."""
        return not self.only_active and self.first_record == 0


def dump_content(path: Path) -> dict[str, Any]:
    """What a dump holds, as it is in the file. Raises UnreadableFile, NotATrace, DamagedTrace, UnsafePickle."""
    try:
        descriptor, _ = open_plain(path)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            data = all_bytes(path, file)
    except OSError as err:
        raise UnreadableFile(f"{path}: cannot be read: {err.strerror}") from err
    except BrokenPacking as err:
        raise DamagedTrace(f"{path}: {err}; copy it again") from err
    if not data:
        raise DamagedTrace(f"{path}: is empty; the process that dumped it ended before it could")
    found = primitives(data, str(path)) if is_pickle(data) else _of_json(path, data)
    if not isinstance(found, dict) or not _KEYS & found.keys():
        raise NotATrace(f"{path}: is not a dump of the flight recorder: it has no entries, pg_config or pg_status")
    return found


def _of_json(path: Path, data: bytes) -> Any:
    if data.lstrip(_JSON_BLANKS)[:1] != b"{":
        raise NotATrace(f"{path}: is not a dump of the flight recorder: it is neither a pickle nor JSON")
    if len(data) > MOST_BYTES:
        raise DamagedTrace(f"{path}: is larger than {MOST_BYTES >> 20} MiB; dump fewer entries (TORCH_FR_BUFFER_SIZE)")
    try:
        return json_of(data)
    except NotJson as err:
        raise DamagedTrace(f"{path}: is not a whole dump: {err}; copy it again") from err


def read_dump(path: Path) -> Dump:
    """What one rank recorded. Raises TraceError."""
    content = dump_content(path)
    try:
        return dump_of(content)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as err:
        what = f"{type(err).__name__}: {err}"
        raise DamagedTrace(f"{path}: an entry is not as torch writes it ({what[:200]}); dump it again") from err


def dump_of(content: dict[str, Any]) -> Dump:
    """What is in a dump, by group. Raises what a wrong type leads to."""
    entries = content.get("entries") or []
    if not isinstance(entries, list) or len(entries) > _MOST_ENTRIES:
        raise ValueError("entries are not a list, or are more than a million")
    logs = _Logs(_ranks_by_name(content.get("pg_config") or {}))
    for entry in entries:
        logs.add(entry)
    logs.close()
    of_groups = content.get("pg_status") or {}
    states = {int(number): _status(state) for number, state in of_groups.items() if str(number).isdecimal()}
    groups = dict(logs.groups)
    for number, name in logs.numbers.items():
        groups[name].status = states.pop(number, None)
        if _is_only_active(entries):
            groups[name].transfers = _without_batches(groups[name])
    last = entries[-1] if entries else None
    return Dump(
        version=str(content.get("version", "")),
        groups=groups,
        unplaced=states,
        numbers=logs.numbers,
        whats=list(logs.whats),
        kinds=logs.kinds,
        last=None if last is None else _call(last, logs.kind_of(last)),
        last_group=None if last is None else logs.name_of(last),
        first_record=None if last is None else int(entries[0].get("record_id", 0)),
        records=len(entries),
        only_active=_is_only_active(entries),
        has_frames=any("frames" in entry for entry in entries[:1]),
        newest_ns=max(map(_time, entries[-_LAST_ENTRIES:]), default=None),
    )


class _Logs:
    """The groups of a dump, filled by one entry after another."""

    def __init__(self, ranks: dict[str, dict[str, str]]) -> None:
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
        """One entry, in the order of the dump."""
        name = self.name_of(entry)
        log = self.groups.get(name)
        if log is None:
            log = self.groups[name] = GroupLog()
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
        what = self._what(kind, entry)
        if log.seqs and log.seqs[-1] == seq:  # a call within one that is coalesced: the last entry has its state
            log.whats[-1], log.done[-1], log.started[-1] = what, is_done, is_started
            if log.waiting is not None and log.waiting.seq == seq:
                log.waiting = None if is_done else _call(entry, kind)
        else:
            log.seqs.append(seq)
            log.whats.append(what)
            log.done.append(is_done)
            log.started.append(is_started)
            if is_done:
                log.waiting = None  # those of a group are done one after another
            elif log.waiting is None:
                log.waiting = _call(entry, kind)
        log.last = entry  # type: ignore[assignment]  # until `close`

    def close(self) -> None:
        """All entries were added."""
        for log in self.groups.values():
            if isinstance(log.last, dict):
                log.only_retired = str(log.last["profiling_name"]).startswith(GLOO_MARK)
                log.last = _call(log.last, self.kind_of(log.last))
        for name, entries in self._open.items():
            self.groups[name].transfers, self.groups[name].issued = _transfers(entries, self.kind_of)

    def name_of(self, entry: dict[str, Any]) -> GroupName:
        """The group of an entry."""
        given = entry.get("process_group", entry.get("pg_name", str(entry.get("pg_id", ""))))
        key = (given, "") if isinstance(given, str) else (str(given[0]), str(given[1]))
        found = self._names.get(key)
        if found is None:
            abouts = self._ranks.get(key[0], {})
            about = key[1] or next(iter(abouts), "")
            found = self._names[key] = GroupName(key[0], about, abouts.get(about, next(iter(abouts.values()), "")))
        return found

    def kind_of(self, entry: dict[str, Any]) -> str:
        """What was called, without the backend, in torch's words: `all_reduce`, `coalesced`."""
        full = entry["profiling_name"]
        found = self.kinds.get(full)
        if found is None:
            plain = str(full).partition(":")[2] or str(full)
            found = self.kinds[full] = collective_name(plain) or plain
        return found

    def _what(self, kind: str, entry: dict[str, Any]) -> int:
        """A number for what all ranks of a collective must agree on."""
        given, got = entry.get("input_sizes") or [], entry.get("output_sizes") or []
        sizes = given if kind in _AGREE_ON_INPUT else got if kind in _AGREE_ON_OUTPUT else []
        dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or []
        key = (kind, dtypes[0] if dtypes else None, str(sizes) if sum(map(len, sizes)) < _MOST_SIZES else "")
        found = self._whats.get(key)
        if found is None:
            text = " ".join(filter(None, (kind, dtype_name(key[1]) or key[1], _elements_text(sizes))))
            found = self._whats[key] = self.whats.setdefault(text, len(self.whats))
        return found


def _elements_text(sizes: list[Any]) -> str:
    count = elements(sizes) if sizes else None
    return "" if count is None else f"{count:,} elements"


def _ranks_by_name(config: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Name of a group -> its description -> its ranks, for those that have ranks."""
    found: dict[str, dict[str, str]] = {}
    for key, group in config.items():
        ranks = group.get("ranks", "")
        text = ranks if isinstance(ranks, str) else ",".join(map(str, ranks))
        if _RANKS.search(text):
            found.setdefault(str(group.get("name", key)), {})[str(group.get("desc", ""))] = text
    return found


def listed_ranks(text: str, name: str = "a dump") -> tuple[int, ...]:
    """The ranks of a group, in its order. `name` begins what the error says. Raises DamagedTrace."""
    found = tuple(map(int, _RANKS.findall(text)))
    if any(rank >= RANK_LIMIT for rank in found) or len(set(found)) != len(found):
        raise DamagedTrace(f"{name}: a process group has ranks {text[:80]!r}; expected numbers, each of them once")
    return found


def _status(state: dict[str, Any]) -> Status:
    issued, started, done = (
        int(state.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")
    )
    return Status(issued, None if started < 0 else started, None if done < 0 else done)


def _progress(entry: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a call is done, and whether it has started, as far as its rank saw."""
    state = entry.get("state")
    if state == "completed":
        return True, True
    if entry.get("retired") and entry["profiling_name"].startswith(GLOO_MARK):
        return True, True
    return False, state == "started"


def _is_only_active(entries: list[dict[str, Any]]) -> bool:
    """Whether what is done was left out: records are numbered, and some between the first and the last are missing."""
    if not entries or "record_id" not in entries[0]:
        return True
    first, last = entries[0]["record_id"], entries[-1]["record_id"]
    return bool(last - first + 1 != len(entries)) or (first > 0 and not any(map(_is_done, entries)))


def _is_done(entry: dict[str, Any]) -> bool:
    return _progress(entry)[0]


def _time(entry: dict[str, Any]) -> int:
    """The last time that an entry tells."""
    keys = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    return max(int(entry.get(key) or 0) for key in keys)


def _call(entry: dict[str, Any], kind: str) -> Call:
    frames = entry.get("frames") or []
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id", entry.get("seq_id"))
    timeout = entry.get("timeout_ms")
    return Call(
        kind=kind,
        seq=int(number or 0),
        record=int(entry.get("record_id", 0)),
        created_ns=int(entry.get("time_created_ns") or 0),
        state="retired" if entry.get("retired") and entry.get("state") != "completed" else str(entry.get("state")),
        elems=elements(entry.get("input_sizes") or []),
        timeout_ms=None if timeout is None else int(timeout),
        frames=tuple((str(f["name"]), str(f["filename"]), int(f["line"])) for f in frames[:_MOST_FRAMES]),
    )


def _without_batches(log: GroupLog) -> list[Transfer]:
    """Transfers of a dump from which what closed a batch was left out, as it was done: then its calls were, too."""
    done = log.status.done if log.status is not None else None
    alike = Counter(transfer.call.seq for transfer in log.transfers)
    return [one for one in log.transfers if done is None or one.call.seq > done or alike[one.call.seq] < 2]


def _transfers(
    entries: Iterable[tuple[dict[str, Any], bool]], kind_of: Callable[[dict[str, Any]], str]
) -> tuple[list[Transfer], dict[tuple[str, int, int], int]]:
    """Sends and receives of a group that are not done, and how many of each were issued.

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
            transfers.append(Transfer(_call(entry, kind_of(entry)), *pair))
    return transfers, issued
