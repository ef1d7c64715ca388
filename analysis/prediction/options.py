"""Scenarios as written on the command line, in a file, or in Python: options and their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..ceilings.files import read_ceiling
from ..core import markers
from ..core.kinds import COMPUTE
from ..errors import BadScenario, NothingMeasured
from ..metrics.device.idle import is_alloc
from ..replay.links import Linked, links_of
from ..replay.scenarios import host, sharded, transfers, usual
from ..replay.scenarios.buckets import gradients_of, rebucketed
from ..replay.scenarios.fused import fused
from ..replay.scenarios.growth import (
    Hosts,
    NewLinks,
    ceiling_links,
    given_links,
    measured_links,
    more_ranks,
    with_sizes,
)
from ..replay.scenarios.scenario import Scenario, all_at_once
from ..replay.slow_links import against_others, slow_groups
from ..results.analysis import Analysis
from ..run.run import Run

Option = Mapping[str, Any]
"""Options of one scenario: name -> value, or values."""
_MOST_MIB = 1e6
_BATCHES = ("kept", "shared")
_ALL = "all"


def scenario_of(analysis: Analysis, options: Option) -> Scenario:
    """The scenario of all these options together. Raises BadScenario, NothingMeasured."""
    found = list(_scenarios(analysis, options))
    if not found:
        raise BadScenario("a scenario changes nothing; give it one of " + ", ".join(_KNOWN))
    name = options.get("name")
    if name is None and len(found) == 1:
        return found[0]
    return all_at_once(str(name or ", ".join(each.name for each in found)), found)


def _scenarios(analysis: Analysis, options: Option) -> Iterator[Scenario]:
    if "ranks" in options:
        raise BadScenario("the option `ranks` of a scenario is now `world_size`")
    unknown = sorted(set(options) - {*_KNOWN, "name", "batch", "new_links"})
    if unknown:
        raise BadScenario(f"no such option of a scenario: {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    if options.get("batch", "kept") not in _BATCHES:
        raise BadScenario(f"batch is {options['batch']!r}, but can be only kept or shared")
    for name, make in _KNOWN.items():
        if name in options and options[name] is not False:
            values = options[name] if isinstance(options[name], list) else [options[name]]
            for value in values:
                yield make(analysis, value, options)


def _without(analysis: Analysis, who: Any, _: Option) -> Scenario:
    if who == "all":
        return usual.without_stragglers()
    return usual.without_stragglers(_ranks_of(analysis, who), who if who in analysis.run.hosts.values() else None)


def _ranks_of(analysis: Analysis, who: Any) -> list[int]:
    """The ranks of a host, or ranks written as 5 or 0-3. Raises BadScenario."""
    hosts = analysis.run.hosts
    if who in hosts.values():
        return [rank for rank, host in hosts.items() if host == who]
    parts = [re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip()) for part in str(who).split(",")]
    found = [rank for rank in analysis.run.ranks for p in parts if p and int(p[1]) <= rank <= int(p[2] or p[1])]
    if not found or None in parts:
        raise BadScenario(f"{str(who)!r} is no rank or host of this run")
    return found


def _as_others(analysis: Analysis, who: Any, _: Option) -> Scenario:
    """The links of a process group, of ranks or a host, or all slow ones, as fast as similar links."""
    links = analysis.links
    if who == "slow":
        slow = slow_groups(links)
        if not slow:
            raise NothingMeasured("no links are slower than others like them, or none are like others")
        every = [transfers.links_as_others(each) for each in slow]
        return every[0] if len(every) == 1 else all_at_once(", ".join(each.name for each in every), every)
    groups = {linked.group: linked.ranks for linked in _known(analysis).values()}
    compared = against_others(links, groups[who] if who in groups else _ranks_of(analysis, who))
    if compared is None:
        raise NothingMeasured(
            f"nothing is like the links of {who}: no other ranks ran the same collective, equally spread over hosts"
        )
    return transfers.links_as_others(compared)


def _links(analysis: Analysis, text: Any, make: Callable[..., Scenario]) -> Scenario:
    group, _, factor = str(text).rpartition("=")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", factor) or not float(factor):
        raise BadScenario(f"{str(text)!r} is not a factor, such as 2 or between=1.5")
    return make(float(factor), _known(analysis, group), group)


def _known(analysis: Analysis, group: str = "") -> dict[int, Linked]:
    return links_of(analysis.links, group)


def _no_jitter(_: Analysis, value: Any, __: Option) -> Scenario:
    _only_true("no_jitter", value)
    return usual.no_jitter()


def _overlap(_: Analysis, how: Any, __: Option) -> Scenario:
    if how != "perfect":
        raise BadScenario(f"overlap is {how!r}, but can be only perfect")
    return usual.perfect_overlap()


def _fuse(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("fuse", value)
    return fused(_known(analysis))


def _world_size(analysis: Analysis, text: Any, options: Option) -> Scenario:
    """Another total number of ranks; the groups of all ranks grow, or the named one and all like it."""
    group, _, number = str(text).rpartition("=")
    if not re.fullmatch(r"[0-9]{1,6}", number) or not int(number):
        raise BadScenario(f"{str(text)!r} is not a number of ranks, such as 16 or dp=16")
    world = analysis.run.world_size or len(analysis.run.ranks)
    grown = int(number) / world
    every = _known(analysis)
    growing = _like(every, _known(analysis, group)) if group else every
    sizes = {len(linked.ranks) for linked in growing.values()} - {1}
    if not group and sizes != {world}:
        named = sorted({f"{each.group} ({len(each.ranks)} ranks)" for each in every.values() if len(each.ranks) > 1})
        raise BadScenario(
            f"not all communication is of all {world} ranks: say which groups grow, as in GROUP={number}; "
            f"there are {', '.join(named[:8])}{', ...' if len(named) > 8 else ''}"
        )
    if any(round(size * grown) != size * grown or size * grown < 1 for size in sizes):
        raise BadScenario(f"{number} ranks do not make whole groups of the {min(sizes)} of {world} that there are")
    new_links = _new_links(options["new_links"]) if options.get("new_links") is not None else None
    return more_ranks(
        grown,
        with_sizes(analysis.links, growing),
        hosts=_hosts(analysis.run),
        new_links=new_links or measured_links(analysis.links, every),
        shared_batch=options.get("batch") == "shared",
    )


def _hosts(run: Run) -> Hosts:
    """The hosts and their room: the number of ranks on each; for a single host, the GPUs in its traces."""
    number_on = Counter(run.hosts.get(rank) for rank in run.ranks)
    most = max(number_on.values(), default=1)
    ranks = run.world_size or len(run.ranks)
    if len(number_on) > 1:
        return Hosts(run.hosts, ranks, most)
    return Hosts(run.hosts, ranks, None if run.is_of_cpus else max([most, *map(len, run.gpus_listed.values())]))


def _new_links(text: Any) -> NewLinks:
    """Parse GB/s, or GB/s,us, or read a ceiling. Raises BadScenario, UnreadableFile, NotACeiling."""
    numbers = re.fullmatch(
        r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:,([0-9]{1,6}(?:\.[0-9]{1,6})?))?", str(text).replace(" ", "")
    )
    if numbers and float(numbers[1]) > 0:
        return given_links(float(numbers[1]), None if numbers[2] is None else float(numbers[2]))
    path = Path(str(text))
    if numbers or not path.exists():
        raise BadScenario(
            f"new_links is {str(text)!r}, but should be GB/s, such as 50 or 50,30 with a latency of 30 us, or a file"
        )
    ceiling = read_ceiling(path)
    return ceiling_links(ceiling.name, ceiling.table)


def _buckets(analysis: Analysis, size: Any, _: Option) -> Scenario:
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < _MOST_MIB:
        raise BadScenario(f"bucket_mb is {size!r}, but should be a size in MiB, such as 25")
    return rebucketed(size, gradients_of(analysis.run.annotations, analysis.clocks), _known(analysis))


def _no_sync(analysis: Analysis, what: Any, _: Option) -> Scenario:
    """Without all calls that wait for the device, those of one name, or those in an operator.

    Without a GPU only an operator, before which the CPU waits for communication.
    """
    if analysis.run.is_of_cpus:
        return _no_wait_on_cpu(analysis, str(what))
    _with_calls(analysis)
    if what in (True, _ALL):
        return host.no_blocking()
    text = str(what)
    if (analysis.run.runtime_calls["name"] == text).any():
        return host.no_blocking(names=[text])
    if not (analysis.run.cpu_operators["name"] == text).any():
        raise BadScenario(f"{text!r} is neither a call of the runtime nor an operator in these traces")
    return host.no_blocking(operator=text)


def _no_wait_on_cpu(analysis: Analysis, operator: str) -> Scenario:
    activities = analysis.run.activities
    if not (activities["name"][activities["kind"] == COMPUTE] == operator).any():
        raise NothingMeasured(
            f"{analysis.run.name}: without a GPU nothing waits for a device; give an operator before which the CPU "
            "waits for communication, such as aten::item"
        )
    return host.no_blocking(operator=operator)


def _no_data_wait(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_data_wait", value)
    if not _annotated(analysis).str.startswith(markers.LOADING).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no data loader")
    return host.no_data_wait()


def _no_gc(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_gc", value)
    if not (_annotated(analysis) == markers.PYTHON_GC).any():
        raise NothingMeasured(
            f"{analysis.run.name}: the traces show no garbage collection; with torch 2.9 or later, "
            "`commtrace run --with-stack` records them, or a profiler with_stack=True and "
            "experimental_config=_ExperimentalConfig(record_python_gc_info=True)"
        )
    return host.no_gc()


def _no_long_calls(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_long_calls", value)
    _with_kind(analysis, "long", "take 100 times as long as usual while a device is idle")
    return host.no_long_calls()


def _no_compilation(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_compilation", value)
    _with_kind(analysis, "compile", "compile")
    return host.no_compilation()


def _with_kind(analysis: Analysis, kind: str, what: str) -> None:
    """Raise NothingMeasured if `syncs` has no rows of this kind, which do `what`."""
    if not (analysis.table("syncs")["kind"] == kind).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no calls or operators that {what}")


def _no_allocation(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_allocation", value)
    _with_calls(analysis)
    if not any(map(is_alloc, analysis.run.runtime_calls["name"].unique().tolist())):
        raise NothingMeasured(f"{analysis.run.name}: no call of the runtime in these traces allocates or frees memory")
    return host.no_allocation()


def _cuda_graphs(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("cuda_graphs", value)
    _with_calls(analysis)
    return host.no_launch_overhead()


def _no_pauses(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_pauses", value)
    _with_calls(analysis)
    return host.no_pauses()


def _pinned_copies(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("pinned_copies", value)
    _with_calls(analysis)
    if not analysis.run.activities["name"].str.contains(markers.FROM_PAGEABLE, regex=False).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no copy from pageable memory to a device")
    return host.pinned_copies()


def _no_copies(analysis: Analysis, which: Any, _: Option) -> Scenario:
    if analysis.run.is_of_cpus and not analysis.run.activities["name"].isin(markers.COPYING_OPERATORS).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no operators that only copy")
    if which in (True, _ALL):
        return host.no_copies()
    if which not in markers.COPY_KINDS:
        raise BadScenario(f"{str(which)!r} is no kind of copy; those are {', '.join(markers.COPY_KINDS)}, or all")
    if not analysis.run.activities["name"].str.contains(str(which), regex=False).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no copies {which}")
    return host.no_copies([str(which)])


def _no_reshard(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("no_reshard", value)
    links = _known(analysis)
    sharded.check_gathered_twice(links)
    return sharded.parameters_kept(links)


def _separate_gathers(analysis: Analysis, value: Any, _: Option) -> Scenario:
    _only_true("separate_gathers", value)
    links = _known(analysis)
    sharded.check_sharded(links)
    return sharded.gathers_beside(links)


def _annotated(analysis: Analysis) -> pd.Series[str]:
    return analysis.run.annotations["name"].fillna("")


def _with_calls(analysis: Analysis) -> None:
    """Raise NothingMeasured if no runtime call was recorded."""
    if not len(analysis.run.runtime_calls):
        raise NothingMeasured(f"{analysis.run.name}: the traces show no calls of the runtime")


def _only_true(name: str, value: Any) -> None:
    if value is not True:
        raise BadScenario(f"{name} is {value!r}, but can be only true")


def _like(every: Mapping[int, Linked], named: Mapping[int, Linked]) -> dict[int, Linked]:
    """The collectives of groups with as many ranks, equally far apart."""
    shapes = {_shape(linked) for linked in named.values()}
    return {number: linked for number, linked in every.items() if _shape(linked) in shapes}


def _shape(linked: Linked) -> tuple[int, ...]:
    return tuple(rank - linked.ranks[0] for rank in linked.ranks)


_KNOWN: dict[str, Callable[[Analysis, Any, Option], Scenario]] = {
    "without_straggler": _without,
    "links": lambda analysis, text, _: _links(analysis, text, transfers.faster_links),
    "latency": lambda analysis, text, _: _links(analysis, text, transfers.lower_latency),
    "links_as_others": _as_others,
    "no_jitter": _no_jitter,
    "overlap": _overlap,
    "fuse": _fuse,
    "world_size": _world_size,
    "bucket_mb": _buckets,
    "no_sync": _no_sync,
    "no_data_wait": _no_data_wait,
    "cuda_graphs": _cuda_graphs,
    "no_pauses": _no_pauses,
    "no_allocation": _no_allocation,
    "no_copies": _no_copies,
    "pinned_copies": _pinned_copies,
    "no_gc": _no_gc,
    "no_long_calls": _no_long_calls,
    "no_compilation": _no_compilation,
    "no_reshard": _no_reshard,
    "separate_gathers": _separate_gathers,
}
"""What a scenario can say."""
