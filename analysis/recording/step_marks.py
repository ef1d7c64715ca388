"""Find the annotations that mark steps, and what they say of them.

The first of these that a file has:
- those that `--steps` names;
- ProfilerStep#N of torch.profiler, unless one of them holds several steps of a serving engine;
- annotations of engines and trainers that are known by name: vLLM, SGLang, ATOM, TensorRT-LLM, Megatron, Lightning;
- annotations of users that are named like steps, with a number or without, and follow each other on one thread which
  launches something. Of several the one counts that covers most time, so that an iteration counts rather than the
  micro-batches in it. One that is only named a little like a step has to cover nearly all the time.

Where they are taken, they get the name of torch's, ProfilerStep#N, so that nothing behind needs to know of others.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from ..core.escaping import encodable
from ..core.expressions import search
from ..core.markers import PROFILER_STEP
from ..core.step_names import (
    BY_ENGINES,
    BY_TRAINERS,
    WORD,
    Said,
    kind_beside,
    kind_in,
    known,
    may_mark_steps,
    said_by,
    said_in,
)
from .arrays import integers
from .recording import Annotation, RawTrace

_BY_TORCH = re.compile(re.escape(PROFILER_STEP) + "[0-9]{1,18}")
_LEAST, _LEAST_UNNAMED = 2, 3
"""So many annotations of a word are steps, and so many of another name; a single one may be anything."""
_LEAST_COVERED, _LEAST_BESIDE, _LEAST_AFTER = 0.8, 0.5, 0.1
"""Part of the time that steps of another name cover; part of the time from step to step that an evaluation in one
takes, or after one, if that makes it an evaluation.
"""
_ROUNDED_US = 1.0
"""Annotations that follow each other may overlap by as much, where times are whole microseconds."""


class StepMark(NamedTuple):
    """A step, and what the annotation `name` says of it: kind, number of requests and of tokens; None if unknown."""

    step: int
    name: str
    kind: str | None
    requests: int | None
    tokens: int | None


class Marked(NamedTuple):
    """A trace whose steps are all marked as by torch, what their annotations say, and notes on the choice."""

    trace: RawTrace
    marks: tuple[StepMark, ...]
    notes: tuple[str, ...]


class _Chosen(NamedTuple):
    """The annotations that are steps, in order, what they say, and why they were chosen; None if that is obvious.

    Without steps, `why` there are none although some are named like steps.
    """

    steps: list[Annotation]
    said: list[Said]
    why: str | None


def with_marked_steps(raw: RawTrace, marker: str | None, first_step: int = 0) -> Marked:
    """Name the annotations that mark steps as torch.profiler names its own; those without numbers from `first_step`.

    `marker` is a regular expression that finds them by their names; what its groups `kind`, `requests`, `tokens` and
    `number` match is what they say.
    """
    candidates = _candidates(raw.annotations, marker)
    launching = set(integers(raw.launches["thread"]).tolist()) if candidates else set()
    chosen = _chosen(candidates, launching, marker)
    if not chosen.steps and not any(one.name.startswith(PROFILER_STEP) for one in candidates):
        return Marked(raw, (), () if chosen.why is None else (chosen.why,))
    numbers, note = _numbers(chosen.said, first_step)
    names = {id(one): f"{PROFILER_STEP}{number}" for one, number in zip(chosen.steps, numbers, strict=True)}
    annotations = [
        msgspec.structs.replace(one, name=names[id(one)]) if id(one) in names else one
        for one in raw.annotations
        if id(one) in names or not one.name.startswith(PROFILER_STEP)
    ]
    notes = []
    if chosen.steps and chosen.why is not None:
        how = note or ("with their numbers" if chosen.said[0].number is not None else "numbered in their order")
        notes.append(f"{_such(chosen.steps)} are taken for steps, {how}: {chosen.why}")
    elif note:
        notes.append(f"{_such(chosen.steps)}: the steps are {note}")
    marks = tuple(_marks(chosen, numbers, candidates)) if chosen.steps else ()
    return Marked(msgspec.structs.replace(raw, annotations=annotations), marks, tuple(notes))


def step_annotations(
    annotations: Sequence[Annotation], launching: Collection[int], marker: str | None
) -> list[Annotation]:
    """Those of the annotations that mark steps; `launching` are the threads that launched something, if it is known."""
    return _chosen(_candidates(annotations, marker), launching, marker).steps


def _candidates(annotations: Sequence[Annotation], marker: str | None) -> list[Annotation]:
    """The annotations that may matter: most are of collectives, and their names are few."""
    names = {
        name
        for name in {one.name for one in annotations}
        if name.startswith(PROFILER_STEP) or may_mark_steps(name, marker)
    }
    return [one for one in annotations if one.name in names]


def _chosen(annotations: Sequence[Annotation], launching: Collection[int], marker: str | None) -> _Chosen:
    if marker is not None:
        found = {id(one): match for one in annotations if (match := search(marker, one.name))}
        steps = _of_one_thread([one for one in annotations if id(one) in found], launching)
        return _Chosen(steps, [_said_of(one.name, found[id(one)]) for one in steps], None)
    by_torch = sorted((one for one in annotations if _BY_TORCH.fullmatch(one.name)), key=lambda one: one.ts)
    of_engine, of_trainer = (
        _of_one_thread([one for one in annotations if known(one.name, names)], launching)
        for names in (BY_ENGINES, BY_TRAINERS)
    )
    if by_torch and not any(len(own) > 1 for own in _inside(by_torch, of_engine)):
        said = [said_by(own[0].name) if own else Said() for own in _inside(by_torch, of_engine or of_trainer)]
        numbers = [int(one.name.removeprefix(PROFILER_STEP)) for one in by_torch]
        return _Chosen(by_torch, [one._replace(number=n) for one, n in zip(said, numbers, strict=True)], None)
    steps = of_engine or of_trainer
    if steps:
        why = "a step of torch.profiler holds several" if by_torch else None
        return _Chosen(steps, [said_by(one.name) for one in steps], why)
    return _named_like_steps(annotations, launching)


def _said_of(name: str, match: re.Match[str]) -> Said:
    """What the groups of the given marker say, and where they say nothing, what the name says by itself."""
    given, known_of = said_in(match), said_by(name)
    return Said(
        kind=given.kind or known_of.kind or kind_in(name),
        requests=known_of.requests if given.requests is None else given.requests,
        tokens=known_of.tokens if given.tokens is None else given.tokens,
        number=given.number,
    )


def _inside(steps: list[Annotation], annotations: Iterable[Annotation]) -> list[list[Annotation]]:
    """The annotations that begin in each of the steps, which follow each other."""
    inside: list[list[Annotation]] = [[] for _ in steps]
    starts = [one.ts for one in steps]
    for one in annotations:
        place = bisect_right(starts, one.ts) - 1
        if place >= 0 and one.ts < steps[place].ts + steps[place].dur:
            inside[place].append(one)
    return inside


def _of_one_thread(marked: Iterable[Annotation], launching: Collection[int]) -> list[Annotation]:
    """The outermost of these annotations on the thread on which they cover most time, by start.

    Threads that launch nothing do not count, unless no other one has any.
    """
    threads: dict[int, list[Annotation]] = {}
    for one in marked:
        threads.setdefault(one.thread, []).append(one)
    of_interest = [own for thread, own in threads.items() if thread in launching] or list(threads.values())
    return max(map(_outermost, of_interest), key=_covered_us, default=[])


def _outermost(annotations: Iterable[Annotation]) -> list[Annotation]:
    """These annotations of one thread without those inside another, by start."""
    kept: list[Annotation] = []
    for one in sorted(annotations, key=lambda one: (one.ts, -one.dur)):
        until = kept[-1].ts + kept[-1].dur if kept else one.ts
        if one.ts >= until or one.ts + one.dur > until + _ROUNDED_US:
            kept.append(one)
    return kept


def _covered_us(annotations: Iterable[Annotation]) -> float:
    return sum(one.dur for one in annotations)


def _named_like_steps(annotations: Sequence[Annotation], launching: Collection[int]) -> _Chosen:
    """Annotations of users that are steps by a word of their name, else by a name that covers nearly all the time."""
    words: dict[tuple[str, int], list[Annotation]] = {}
    others: dict[tuple[str, int], list[Annotation]] = {}
    for one in annotations:
        if (one.thread in launching or not launching) and may_mark_steps(one.name):
            word = WORD.fullmatch(one.name.strip(" #"))
            if word:
                words.setdefault((word["family"].lower(), one.thread), []).append(one)
            else:
                others.setdefault((re.sub("[0-9]+", "0", one.name), one.thread), []).append(one)
    named = [own for group in words.values() if len(own := _outermost(group)) >= _LEAST]
    usable = [own for own in named if _follow_each_other(own)]
    usable = usable or [own for own in others.values() if len(own) >= _LEAST_UNNAMED and _fills_the_time(own)]
    if not usable:
        return _Chosen(
            [], [], f"{_such(named[0])} are not taken for steps, as they overlap; --steps takes them" if named else None
        )
    usable.sort(key=_covered_us, reverse=True)
    steps = usable[0]
    kinds = {kind_in(steps[0].name)}
    for own in usable[1:]:  # such as evaluation beside training
        kind = kind_in(own[0].name)
        both = sorted((*steps, *own), key=lambda one: one.ts)
        if own[0].thread == steps[0].thread and kind not in (None, *kinds) and _follow_each_other(both):
            steps, kinds = both, {*kinds, kind}
    said = []
    for one in steps:
        word = WORD.fullmatch(one.name.strip(" #"))
        number = int(word["number"]) if word and word["number"] else None
        said.append(Said(kind=kind_in(one.name), number=number))
    return _Chosen(steps, said, "torch.profiler marks none")


def _such(annotations: Sequence[Annotation]) -> str:
    return f"annotations such as {encodable(annotations[0].name[:80])!r}"


def _follow_each_other(annotations: Iterable[Annotation]) -> bool:
    ordered = sorted(annotations, key=lambda one: one.ts)
    return all(a.ts + a.dur <= b.ts + _ROUNDED_US for a, b in pairwise(ordered))


def _fills_the_time(annotations: Sequence[Annotation]) -> bool:
    begin, end = min(one.ts for one in annotations), max(one.ts + one.dur for one in annotations)
    return _follow_each_other(annotations) and _covered_us(annotations) >= _LEAST_COVERED * (end - begin)


def _numbers(said: Sequence[Said], first_step: int) -> tuple[list[int], str | None]:
    """The numbers of the steps: their own, if all have one and these go up; a note if some have and do not count."""
    own = [one.number for one in said if one.number is not None]
    if said and len(own) == len(said) and all(a < b for a, b in pairwise(own)):
        return own, None
    why = "these do not go up" if len(own) == len(said) else "some have none"
    note = f"numbered in their order and not by their own numbers, as {why}" if own else None
    return list(range(first_step, first_step + len(said))), note


def _marks(chosen: _Chosen, numbers: Sequence[int], annotations: Sequence[Annotation]) -> Iterator[StepMark]:
    """Yield what is known of each step; one that is mostly a checkpoint or an evaluation is of that kind.

    A step that is called one of training is so unless that comes after it, before the next step.
    """
    beside = list(_beside(chosen.steps, annotations))
    ends = [*(one.ts for one in chosen.steps[1:]), chosen.steps[-1].ts + chosen.steps[-1].dur]
    for step, said, number, end in zip(chosen.steps, chosen.said, numbers, ends, strict=True):
        length_us, until = end - step.ts, step.ts + step.dur - _ROUNDED_US
        own = [
            one
            for one in beside
            if step.ts <= one.ts < end
            and one.dur >= (_LEAST_BESIDE if one.ts < until else _LEAST_AFTER) * length_us
            and (one.ts >= until or said.kind is None or _BY_TORCH.fullmatch(step.name))
        ]
        kind = said.kind
        if own and kind in (None, "train"):
            kind = kind_beside(max(own, key=lambda one: one.dur).name)
        yield StepMark(number, step.name, kind, said.requests, said.tokens)


def _beside(steps: Sequence[Annotation], annotations: Iterable[Annotation]) -> Iterator[Annotation]:
    """Yield the annotations of checkpoints and evaluations, without those that are steps or hold some."""
    starts = [step.ts for step in steps]
    for one in annotations:
        if kind_beside(one.name) is not None:
            place = bisect_left(starts, one.ts)
            if place == len(starts) or starts[place] >= one.ts + one.dur:
                yield one
