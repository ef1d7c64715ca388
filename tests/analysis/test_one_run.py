"""Files of two runs in one folder are told apart before anything is matched; those of one run stay together."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from simulator import simulate
from simulator.programs import ddp
from simulator.world import World

from commtrace import analyse
from commtrace.analysis.errors import MixedJobs
from commtrace.analysis.run.one_run import CapturedSpan, OneProcess, if_of_one_run, runs_apart
from commtrace.cli import main

S = 1_000_000_000


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Traces of four ranks on two hosts, in a folder."""
    folder = tmp_path_factory.mktemp("job")
    simulate(World(3, ddp, 2, 2, 4)).write(folder)
    return sorted(folder.iterdir())


def copied(source: Path, folder: Path, *, later_s: float = 0.0, pid: int = 0, host: str | None = None, nccl=None):
    """A file of the same job, so much later, from another process."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    trace["baseTimeNanoseconds"] += round(later_s * S)
    trace["host_name"] = host if host is not None else trace["host_name"]
    own, name = trace["traceEvents"][0].get("pid"), source.name
    if pid:
        own = next(event["pid"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation")
        for event in trace["traceEvents"]:
            event["pid"] = pid if event.get("pid") == own else event.get("pid")
        name = name.replace(f"_{own}.", f"_{pid}.")
    if nccl:
        trace["distributedInfo"]["nccl_version"] = nccl
    name = f"rank{trace['distributedInfo']['rank']}.json.gz" if host == "" else name
    (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


@pytest.mark.slow
@pytest.mark.parametrize("later_s", [0.3, 1.2, 3600.0, -86400.0])
def test_ranks_of_two_runs_are_shown_apart(job, tmp_path, later_s, capsys):
    """Rank 0 of a job and rank 1 of its next, on the same host."""
    copied(job[0], tmp_path)
    copied(job[1], tmp_path, later_s=later_s, pid=4711)
    with pytest.raises(MixedJobs, match=r"files of 2 runs: on node00 rank \d had ended .* before the capture of rank"):
        analyse(tmp_path)
    assert main([str(tmp_path), "--no-cache"]) == 0
    shown = capsys.readouterr().out
    assert "2 engines or runs" in shown
    assert all(f"rank {rank}" in shown for rank in (0, 1))
    assert "straggl" not in shown


def test_each_host_has_its_part_of_each_run(job, tmp_path):
    """Ranks 0 and 2 of one job, 1 and 3 of the next, on two hosts whose clocks differ by more than lies between."""
    for rank, path in enumerate(job):
        copied(path, tmp_path, later_s=(rank % 2) * 600 + (rank // 2) * 7200)
    with pytest.raises(MixedJobs) as refused:
        analyse(tmp_path)
    assert [len(run.paths) for run in refused.value.runs] == [2, 2]
    assert refused.value.runs[0].name.startswith("ranks 0, 2, ")


def test_other_libraries_are_of_another_run(job, tmp_path):
    for rank, path in enumerate(job):
        copied(path, tmp_path, nccl="2.21.5" if rank == 3 else None)
    with pytest.raises(MixedJobs, match=r"rank 0 has NCCL 2\.27\.5 and rank 3 has NCCL 2\.21\.5"):
        analyse(tmp_path)


def test_what_would_have_to_be_true_is_said_where_hosts_are_not_known(job, tmp_path):
    copied(job[0], tmp_path, host="")
    copied(job[1], tmp_path, host="", later_s=3600.0, pid=4711)
    notes = analyse(tmp_path).run.notes
    assert any(
        "ranks 0 and 1 have no time in common: either they ran on hosts whose clocks differ by" in n for n in notes
    )


def process(rank, begin, end, *, host="a", steps=(3, 4), **facts):
    return OneProcess(
        rank=rank, paths=(Path(f"rank{rank}.json"),), host=host, clock=host, device=rank, pid=1000 + rank,
        span=CapturedSpan(begin, end),
        steps=dict.fromkeys(steps, CapturedSpan(begin, end)), facts=facts, groups=frozenset(),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_drawn_mixes_of_two_runs(seed):
    """Runs of drawn lengths, hosts, clocks and steps, of which each rank has a file in one."""
    rng = Random(seed)
    hosts = rng.choice([1, 1, 2, 4])
    ranks = hosts * rng.choice([2, 4, 8])
    length, gap = rng.randrange(10**7, 10**10), rng.randrange(10**6, 10**13)
    clock = {host: rng.choice([0, rng.randrange(-(10**14), 10**14)]) if hosts > 1 else 0 for host in range(hosts)}
    first = {0, *(rank for rank in range(ranks) if rng.random() < 0.5)} - {ranks - 1}
    for host in range(hosts):  # each host has ranks of both runs
        own = [rank for rank in range(ranks) if rank % hosts == host]
        first = (first | {own[0]}) - {own[-1]}
    steps = rng.choice([((3, 4), (3, 4)), ((3, 4), (103, 104)), ((), ())])
    processes = []
    for rank in range(ranks):
        host, late = rank % hosts, rank not in first
        begin = 10**18 + clock[host] + late * (length + gap) + rng.randrange(length // 8)
        processes.append(process(rank, begin, begin + length // 8 * 7, host=f"host{host}", steps=steps[late]))
    rng.shuffle(processes)
    runs, _ = runs_apart(processes)
    told = [{int(path.stem.removeprefix("rank")) for path in run.paths} for run in runs]
    assert sorted(map(sorted, told)) == sorted(map(sorted, [first, set(range(ranks)) - first]))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_runs_stay_one(seed):
    """Ranks whose windows are shifted by less than they are long, on hosts with clocks of their own, some not known."""
    rng = Random(seed)
    hosts, length = rng.choice([1, 2, 4]), rng.randrange(10**7, 10**10)
    clock = [rng.choice([0, rng.randrange(-(10**11), 10**11)]) for _ in range(hosts)]
    unknown = rng.random() < 0.3
    processes = []
    for rank in range(hosts * rng.choice([1, 2, 8])):
        begin = 10**18 + clock[rank % hosts] + rng.randrange(length - 1)
        host = None if unknown else f"host{rank % hosts}"
        shift = rng.randrange(2)
        processes.append(process(rank, begin, begin + length, host=host, steps=range(3 + shift, 6 + shift)))
    assert runs_apart(processes) == ((), "")
    assert list(if_of_one_run(processes)) == [] or hosts > 1


def test_jobs_beside_each_other_on_one_host():
    """At the same time in steps of other numbers; what says nothing of steps does not tell."""
    processes = [process(0, 0, S, steps=(3, 4)), process(1, 0, S, steps=(103, 104)), process(2, 0, S, steps=())]
    runs, why = runs_apart(processes)
    assert [len(run.paths) for run in runs] == [2, 1]
    assert why == "at the same time, rank 0 was in steps 3 to 4 and rank 1 was in steps 103 to 104"
    assert runs_apart([processes[0], processes[2]]) == ((), "")


@pytest.mark.parametrize(
    ("groups", "parts"),
    [
        ([{(0, 1), (0, 2)}, {(1, 3), (0, 1, 2)}], 2),
        ([{(0, 1)}, {(0, 1)}, {(2, 3)}, {(2, 3)}, {(0, 4)}, {(1, 5)}, {(2, 6)}, {(3, 7)}], 2),
        ([{(0, 1)}, {(0, 1)}, {(2, 3)}, {(2, 3)}], 1),
        ([{(0, 1)}, set(), {(2, 3)}, {(2, 3)}], 1),  # what lists nothing contradicts nothing
    ],
    ids=["both ways", "one way", "none", "one lists none"],
)
def test_groups_that_contradict_each_other(groups, parts):
    grouped = [replace(process(rank, 0, S), groups=frozenset(own)) for rank, own in enumerate(groups)]
    runs, why = runs_apart(grouped)
    assert len(runs) == (parts if parts > 1 else 0)
    assert parts == 1 or "has a group of ranks" in why


def test_other_steps_on_one_host_beside_another_host():
    """GPUs of the other host say nothing of whether this one is two that share a name."""
    on_one = [process(0, 0, S, steps=(5, 8)), process(1, 0, S, steps=(105, 108))]
    elsewhere = replace(process(2, 0, S, host="b", steps=(105, 108)), device=0)
    assert [len(run.paths) for run in runs_apart([*on_one, elsewhere])[0]] == [1, 2]


def test_hosts_that_share_a_name():
    """One GPU, or one process id, in both: then times of one name prove nothing."""
    first, second = process(0, 0, S), process(1, 5 * S, 6 * S)
    assert len(runs_apart([first, second])[0]) == 2
    for shared in ("device", "pid"):
        assert runs_apart([first, replace(second, **{shared: getattr(first, shared)})]) == ((), "")
