"""Scenarios as written on the command line, in a file, or in Python: options and their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from ..ceilings.files import read_ceiling
from ..core import markers
from ..core.kinds import COMPUTE
from ..errors import BadScenario, NothingMeasured
from ..metrics.device.idle import is_alloc
from ..replay import changes
from ..replay.links import Linked, links_of
from ..replay.scenarios import host, sharded, transfers, usual
from ..replay.scenarios.buckets import gradients_of, rebucketed
from ..replay.scenarios.experts import balanced_experts
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

Given = Mapping[str, Any]
"""Options of one scenario: name -> value, or values."""
_MOST_MIB = 1e6
_ALL = "all"
_Make = TypeVar("_Make", bound=Callable[..., Scenario])
_PLAYED: dict[str, Callable[..., Scenario]] = {}
"""How each change is played, by its name: in an analysis, with its value unless it is a flag, and with what stands
beside it."""


def scenario_of(analysis: Analysis, options: Given) -> Scenario:
    """The scenario of all these options together. Raises BadScenario, NothingMeasured."""
    found = list(_scenarios(analysis, options))
    if not found:
        raise BadScenario("a scenario changes nothing; give it one of " + ", ".join(_PLAYED))
    name = options.get("name")
    if name is None and len(found) == 1:
        return found[0]
    return all_at_once(str(name or ", ".join(each.name for each in found)), found)


def _scenarios(analysis: Analysis, options: Given) -> Iterator[Scenario]:
    if "ranks" in options:
        raise BadScenario("the option `ranks` of a scenario is now `world_size`")
    unknown = sorted(set(options) - {*changes.OPTIONS, "name"})
    if unknown:
        raise BadScenario(f"no such option of a scenario: {', '.join(unknown)}; known are {', '.join(changes.OPTIONS)}")
    beside: dict[str, dict[str, Any]] = {name: {} for name in _PLAYED}
    asked = []
    for name, option in changes.OPTIONS.items():
        given = options.get(name, option.default)
        values = [] if given is None or given is False else given if isinstance(given, list) else [given]
        for value in values:
            option.check(value)
        if option.beside:
            beside[option.beside][name] = given
        else:
            asked += [(option, value) for value in values]
    for option, value in asked:
        yield _PLAYED[option.name](analysis, *([] if option.is_flag else [value]), **beside[option.name])


def _plays(option: changes.Option) -> Callable[[_Make], _Make]:
    """This is how the change of that option is played."""

    def register(make: _Make) -> _Make:
        _PLAYED[option.name] = make
        return make

    return register


@_plays(changes.WITHOUT_STRAGGLER)
def _without(analysis: Analysis, who: Any) -> Scenario:
    if who == "all":
        return usual.without_stragglers()
    return usual.without_stragglers(_ranks_of(analysis, who), who if who in analysis.run.hosts.values() else None)


def _ranks_of(analysis: Analysis, who: Any) -> list[int]:
    """The ranks of a host, or ranks written as 5 or 0-3. Raises BadScenario."""
    hosts = analysis.run.hosts
    if who in hosts.values():
        return [rank for rank, host in hosts.items() if host == who]
    parts = [re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip()) for part in str(who).split(",")]
    of_parts = [
        [rank for rank in analysis.run.ranks if part and int(part[1]) <= rank <= int(part[2] or part[1])]
        for part in parts
    ]
    missing = [text.strip() for text, ranks in zip(str(who).split(","), of_parts, strict=True) if not ranks]
    if missing:
        raise BadScenario(f"{', '.join(map(repr, missing))}: no rank or host of this run")
    return [rank for ranks in of_parts for rank in ranks]


@_plays(changes.LINKS_AS_OTHERS)
def _as_others(analysis: Analysis, who: Any) -> Scenario:
    """The links of a process group, of ranks or a host, or all slow ones, as fast as similar links."""
    links = analysis.links
    if who == "slow":
        slow = slow_groups(links)
        if not slow:
            raise NothingMeasured("no links are slower than comparable ones, or nothing is comparable")
        every = [transfers.links_as_others(each) for each in slow]
        return every[0] if len(every) == 1 else all_at_once(", ".join(each.name for each in every), every)
    groups = {linked.group: linked.ranks for linked in _known(analysis).values()}
    compared = against_others(links, groups[who] if who in groups else _ranks_of(analysis, who))
    if compared is None:
        raise NothingMeasured(
            f"nothing to compare {who} with: no other group runs the same collective over as many ranks and hosts"
        )
    return transfers.links_as_others(compared)


@_plays(changes.LINKS)
def _faster_links(analysis: Analysis, text: Any) -> Scenario:
    return transfers.faster_links(*_factor(analysis, text))


@_plays(changes.LATENCY)
def _lower_latency(analysis: Analysis, text: Any) -> Scenario:
    return transfers.lower_latency(*_factor(analysis, text))


def _factor(analysis: Analysis, text: Any) -> tuple[float, dict[int, Linked], str]:
    """A factor, the collectives that it is of, and their group, from 2 or between=1.5. Raises BadScenario."""
    group, _, factor = str(text).rpartition("=")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", factor) or not float(factor):
        raise BadScenario(f"{str(text)!r} is not a factor, such as 2 or between=1.5")
    return float(factor), _known(analysis, group), group


def _known(analysis: Analysis, group: str = "") -> dict[int, Linked]:
    return links_of(analysis.links, group)


@_plays(changes.NO_JITTER)
def _no_jitter(_: Analysis) -> Scenario:
    return usual.no_jitter()


@_plays(changes.BALANCED_EXPERTS)
def _balanced_experts(analysis: Analysis) -> Scenario:
    passes = analysis.expert_passes
    if not (passes["missing"].isna() & passes["expert_ns"].notna()).any():
        raise NothingMeasured(
            f"{analysis.run.name}: the traces show no experts whose time is known on all ranks of a group; see "
            "`commtrace table experts`"
        )
    return balanced_experts(passes)


@_plays(changes.OVERLAP)
def _overlap(_: Analysis, __: Any) -> Scenario:
    return usual.perfect_overlap()


@_plays(changes.FUSE)
def _fuse(analysis: Analysis) -> Scenario:
    return fused(_known(analysis))


@_plays(changes.WORLD_SIZE)
def _world_size(analysis: Analysis, text: Any, *, batch: str, new_links: Any) -> Scenario:
    """Another total number of ranks; the groups of all ranks grow, or the named one and all like it."""
    group, _, number = str(text).rpartition("=")
    if not re.fullmatch(r"[0-9]{1,6}", number) or not int(number):
        raise BadScenario(f"{str(text)!r} is not a number of ranks, such as 16 or dp=16")
    world = analysis.run.world_size or len(analysis.run.ranks)
    ranks = int(number)
    every = _known(analysis)
    growing = _like(every, _known(analysis, group)) if group else every
    sizes = {len(linked.ranks) for linked in growing.values()} - {1}
    if not group and sizes != {world}:
        named = sorted({f"{each.group} ({len(each.ranks)} ranks)" for each in every.values() if len(each.ranks) > 1})
        raise BadScenario(
            f"this run has groups smaller than its {world} ranks: say which grows, as in GROUP={number}; there are "
            f"{', '.join(named[:8])}{', ...' if len(named) > 8 else ''}"
        )
    uneven = [size for size in sorted(sizes) if size * ranks % world]
    if uneven:
        raise BadScenario(
            f"groups of {uneven[0]} of {world} ranks do not become whole ones with {ranks}; choose another number"
        )
    return more_ranks(
        ranks / world,
        with_sizes(analysis.links, growing),
        hosts=_hosts(analysis.run),
        new_links=measured_links(analysis.links, every) if new_links is None else _new_links(new_links),
        shared_batch=batch == "shared",
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
            f"new_links is {str(text)!r}; expected GB/s (50), GB/s and latency in us (50,30), or a file of "
            "`commtrace comms`"
        )
    ceiling = read_ceiling(path)
    return ceiling_links(ceiling.name, ceiling.table)


@_plays(changes.BUCKET_MB)
def _buckets(analysis: Analysis, size: Any) -> Scenario:
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < _MOST_MIB:
        raise BadScenario(f"bucket_mb is {size!r}, but should be a size in MiB, such as 25")
    return rebucketed(size, gradients_of(analysis.run.annotations, analysis.clocks), _known(analysis))


@_plays(changes.NO_SYNC)
def _no_sync(analysis: Analysis, what: Any) -> Scenario:
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


@_plays(changes.NO_DATA_WAIT)
def _no_data_wait(analysis: Analysis) -> Scenario:
    if not _annotated(analysis).str.startswith(markers.LOADING).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no data loader")
    return host.no_data_wait()


@_plays(changes.NO_GC)
def _no_gc(analysis: Analysis) -> Scenario:
    if not (_annotated(analysis) == markers.PYTHON_GC).any():
        raise NothingMeasured(
            f"{analysis.run.name}: the traces show no garbage collection; with torch 2.9 or later, "
            "`commtrace run --with-stack` records them, or a profiler with_stack=True and "
            "experimental_config=_ExperimentalConfig(record_python_gc_info=True)"
        )
    return host.no_gc()


@_plays(changes.NO_LONG_CALLS)
def _no_long_calls(analysis: Analysis) -> Scenario:
    _with_kind(analysis, "long", "take 100 times as long as usual while a device is idle")
    return host.no_long_calls()


@_plays(changes.NO_COMPILATION)
def _no_compilation(analysis: Analysis) -> Scenario:
    _with_kind(analysis, "compile", "compile")
    return host.no_compilation()


def _with_kind(analysis: Analysis, kind: str, what: str) -> None:
    """Raise NothingMeasured if `syncs` has no rows of this kind, which do `what`."""
    if not (analysis.table("syncs")["kind"] == kind).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no calls or operators that {what}")


@_plays(changes.NO_ALLOCATION)
def _no_allocation(analysis: Analysis) -> Scenario:
    _with_calls(analysis)
    if not any(map(is_alloc, analysis.run.runtime_calls["name"].unique().tolist())):
        raise NothingMeasured(f"{analysis.run.name}: no call of the runtime in these traces allocates or frees memory")
    return host.no_allocation()


@_plays(changes.CUDA_GRAPHS)
def _cuda_graphs(analysis: Analysis) -> Scenario:
    _with_calls(analysis)
    return host.no_launch_overhead()


@_plays(changes.NO_PAUSES)
def _no_pauses(analysis: Analysis) -> Scenario:
    _with_calls(analysis)
    return host.no_pauses()


@_plays(changes.PINNED_COPIES)
def _pinned_copies(analysis: Analysis) -> Scenario:
    _with_calls(analysis)
    if not analysis.run.activities["name"].str.contains(markers.FROM_PAGEABLE, regex=False).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no copy from pageable memory to a device")
    return host.pinned_copies()


@_plays(changes.NO_COPIES)
def _no_copies(analysis: Analysis, which: Any) -> Scenario:
    if analysis.run.is_of_cpus and not analysis.run.activities["name"].isin(markers.COPYING_OPERATORS).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no operators that only copy")
    if which in (True, _ALL):
        return host.no_copies()
    if which not in markers.COPY_KINDS:
        raise BadScenario(f"{str(which)!r} is no kind of copy; those are {', '.join(markers.COPY_KINDS)}, or all")
    if not analysis.run.activities["name"].str.contains(str(which), regex=False).any():
        raise NothingMeasured(f"{analysis.run.name}: the traces show no copies {which}")
    return host.no_copies([str(which)])


@_plays(changes.NO_RESHARD)
def _no_reshard(analysis: Analysis) -> Scenario:
    links = _known(analysis)
    sharded.check_gathered_twice(links)
    return sharded.parameters_kept(links)


@_plays(changes.SEPARATE_GATHERS)
def _separate_gathers(analysis: Analysis) -> Scenario:
    links = _known(analysis)
    sharded.check_sharded(links)
    return sharded.gathers_beside(links)


def _annotated(analysis: Analysis) -> pd.Series[str]:
    return analysis.run.annotations["name"].fillna("")


def _with_calls(analysis: Analysis) -> None:
    """Raise NothingMeasured if no runtime call was recorded."""
    if not len(analysis.run.runtime_calls):
        raise NothingMeasured(f"{analysis.run.name}: the traces show no calls of the runtime")


def _like(every: Mapping[int, Linked], named: Mapping[int, Linked]) -> dict[int, Linked]:
    """The collectives of groups with as many ranks, equally far apart."""
    shapes = {_shape(linked) for linked in named.values()}
    return {number: linked for number, linked in every.items() if _shape(linked) in shapes}


def _shape(linked: Linked) -> tuple[int, ...]:
    return tuple(rank - linked.ranks[0] for rank in linked.ranks)
