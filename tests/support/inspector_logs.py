"""Logs as NCCL Inspector writes them, made in memory, or of what happened in a simulated world.

log = Log(rank=0, host="node00", pid=4000)
log.call(Comm("0xa", rank=0, size=2), "all_reduce", sn=0, size_bytes=1 << 20, dur_us=300, written_us=1_000_000)
log.write(folder, version="v4.3")

write_logs(simulate(PRESETS["straggler"]), folder, version="v4.0")
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from simulator import Simulated
from simulator.kineto import host_name, pid_of

WORDS = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "reduce": "Reduce", "all_to_all": "All2All", "send": "Send", "recv": "Recv",
}  # fmt: skip
_COUNTED = {"coll_records": "coll_perf", "p2p_records": "p2p_perf", "proxy_records": "proxy_trace"}
_PHASES = {"send": ("gpu_wait", "peer_wait", "wait"), "recv": ("wait", "flush_wait", "gpu_wait")}
_SHARES = ("AllGather", "ReduceScatter")
_LEAST_BYTES = 8192  # the Inspector leaves out what is smaller
BEGIN_US = 1_759_300_074_000_000


@dataclass(frozen=True)
class Comm:
    """A communicator, and a rank's place in it."""

    id: str
    rank: int
    size: int

    @property
    def header(self) -> dict[str, Any]:
        return {"id": self.id, "rank": self.rank, "n_ranks": self.size, "nnodes": 1}


@dataclass
class Log:
    """The log of one process under construction."""

    host: str = "node00"
    pid: int = 4000
    calls: list[tuple[Comm, int, dict[str, Any]]] = field(default_factory=list)

    def call(
        self, comm: Comm, kind: str, sn: int, dur_us: int, *, size_bytes: int = 1 << 20, written_us: int = BEGIN_US,
        source: str = "kernel_gpu", peer: int | None = None, **more: Any,
    ) -> Log:  # fmt: skip
        """A call that ended; `size_bytes` is S as nccl-tests defines it."""
        word = WORDS.get(kind, kind)
        share = size_bytes // comm.size if word in _SHARES else size_bytes
        per_s = size_bytes / max(dur_us, 1) / 1000
        name, said = ("p2p", {"p2p_peer": peer}) if peer is not None else ("coll", {})
        body = {
            name: word, f"{name}_sn": sn, **said, f"{name}_msg_size_bytes": share, f"{name}_exec_time_us": dur_us,
            f"{name}_timing_source": source, f"{name}_algobw_gbs": round(per_s, 6),
            f"{name}_busbw_gbs": round(per_s * _factor(word, comm.size), 6), **more,
        }  # fmt: skip
        self.calls.append((comm, written_us, {f"{name}_perf": body}))
        return self

    def step(
        self, comm: Comm, direction: str, sn: int, phases_us: tuple[int, int, int], *, size_bytes: int = 1 << 20,
        parent: str = "coll", written_us: int = BEGIN_US, **more: Any,
    ) -> Log:  # fmt: skip
        """A step of a proxy for the call of that number, with how long its three phases took."""
        names = [f"{direction}_{what}" for what in _PHASES[direction]]
        times = {"proxy_step_start_ts": BEGIN_US - 10}
        at = BEGIN_US
        for name, took in zip(names, phases_us, strict=True):
            times[f"{name}_ts"] = at
            at += took
        times["proxy_step_stop_ts"] = at
        body = {
            "record_type": "proxy_step", "parent_type": parent, "parent_sn": sn, "direction": direction,
            "rank": comm.rank, "channel_id": 0, "peer": 1 - comm.rank, "trans_size_bytes": size_bytes,
            "event_trace_ts": times, **more,
        }  # fmt: skip
        self.calls.append((comm, written_us, {"proxy_trace": body}))
        return self

    def lines(self, version: str, dump: int = 7) -> Iterator[str]:
        """Its lines; since v4.3 one with header and metadata before those of a communicator, `dump` calls at most."""
        for comm, own in groupby(self.calls, key=lambda call: call[0]):
            listed = list(own)
            for first in range(0, len(listed), dump):
                part = listed[first : first + dump]
                written_us = max(us for _, us, _ in part)
                context = {"header": comm.header, "metadata": self._metadata(version, written_us)}
                if version >= "v4.2":
                    numbers = {what: sum(key in body for _, _, body in part) for what, key in _COUNTED.items()}
                    stats = {what: number for what, number in numbers.items() if number or what != "proxy_records"}
                    yield _text(context | {"dump_stats": stats | {"coll_dropped_since_last_dump": 0}})
                for _, us, body in part:
                    own_context = {"header": comm.header, "metadata": self._metadata(version, us)}
                    yield _text(body if version >= "v4.3" else own_context | body)

    def _metadata(self, version: str, written_us: int) -> dict[str, Any]:
        return {
            "inspector_output_format_version": version, "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": written_us, "hostname": self.host, "pid": self.pid,
        }  # fmt: skip

    def write(self, folder: Path, version: str = "v4.0", dump: int = 7) -> Path:
        """The file, named as the Inspector names it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.host}-pid{self.pid}.log"
        path.write_text("".join(f"{line}\n" for line in self.lines(version, dump)), encoding="utf-8")
        return path


def _factor(word: str, size: int) -> float:
    return {"AllReduce": 2.0, **dict.fromkeys(_SHARES, 1.0)}.get(word, 0.0) * (size - 1) / size or 1.0


def _id(name: str) -> str:
    return f"0x{zlib.crc32(name.encode()):x}"


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"))


def write_logs(made: Simulated, folder: Path, version: str) -> list[Path]:
    """A log for each rank: its kernels as they are in the traces, but only how long they took, in whole us."""
    world, collectives = made.world, made.truth.collectives
    numbers = collectives.groupby(["pg_name", "pg_ranks", "op"], sort=False).cumcount().tolist()
    logs: dict[int, Log] = {}
    sent: dict[tuple[int, str], int] = {}
    for call in made.truth.calls.to_dict("records"):
        rank = call["rank"]
        log = logs.setdefault(rank, Log(host_name(world, rank), pid_of(world, rank)))
        for number in map(int, call["collectives"]):
            row = collectives.iloc[number].to_dict()
            ranks = [int(each) for each in row["pg_ranks"].split()]
            comm = Comm(_id(f"{row['pg_name']} {ranks}"), ranks.index(rank), len(ranks))
            took = {"dur_us": call["dur_ns"] // 1000, "written_us": (call["start_ns"] + call["dur_ns"]) // 1000 + 5}
            if row["op"] == "send_recv":
                (other,) = set(row["members"]) - {rank}
                sn = sent[rank, comm.id] = sent.get((rank, comm.id), 0) + 1
                log.call(comm, "send", sn, size_bytes=int(row["size_bytes"]), peer=ranks.index(other), **took)
            elif row["size_bytes"] >= _LEAST_BYTES and row["op"] in WORDS:
                log.call(comm, row["op"], numbers[number], size_bytes=int(row["size_bytes"]), **took)
    return [log.write(folder, version) for log in logs.values()]
