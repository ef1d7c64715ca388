"""Names of annotations that mark steps, and what they say: kind of the step, requests and tokens in it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .expressions import compiled, search
from .markers import LOADING, PROFILER_STEP

_N = "[0-9]+"
_MOST_DIGITS = 15
"""Longer numbers are no counts, and would not fit 64 bits."""
_GROUPS = ("kind", "requests", "tokens", "number")
"""What named groups of a given marker may say."""
_OF_ENGINES = (
    # vLLM: requests in prefill ("context") and decode, and their tokens; in some versions all tokens before them, and
    # more numbers behind the tokens, which are then called `sq`.
    (
        rf"execute_(?:{_N}_)?context_(?P<context>{_N})(?:\((?:sq)?(?P<context_tokens>{_N})[^()]*\))?"
        rf"_generation_(?P<generation>{_N})(?:\((?:sq)?(?P<generation_tokens>{_N})[^()]*\))?.*"
    ),
    # vLLM before that: requests that are new, so in prefill, and others, which decode or go on with a long prefill.
    rf"execute_new_(?P<new>{_N})_cached_(?P<cached>{_N}).*",
    # SGLang; with its roofline terms, `c_sq` and `g_sq` are the tokens of a mixed step.
    (
        rf"step\[(?P<kind>[A-Za-z_][A-Za-z0-9_]*)(?: bs=(?P<requests>{_N}))?(?: toks=(?P<tokens>{_N}))?"
        rf"(?:[^]]* c_sq=(?P<context_tokens>{_N})[^]]* g_sq=(?P<generation_tokens>{_N}))?[^]]*\]"
    ),
    # ATOM.
    rf"(?P<kind>prefill|decode|mixed)\[bs=(?P<requests>{_N})(?: tok(?:en)?s?=(?P<tokens>{_N}))?[^]]*\]",
    # TensorRT-LLM: without a number at first, now with the tokens in prefill.
    (
        rf"\[Executor\] _forward_step(?: (?P<number>{_N}))?: (?P<context>{_N}) ctx reqs, "
        rf"(?:(?P<context_tokens>{_N}) ctx tokens, )?(?P<generation>{_N}) gen reqs.*"
    ),
    # Megatron's dynamic inference.
    r"(?P<kind>Prefill|Decode)",
)
_OF_TRAINERS = (
    # Lightning. Its runs of epochs and evaluations are around these.
    r"\[pl\]\[profile\](?:run_(?P<train>train)ing_batch|\[.*[.](?P<eval>validation|test|predict)_step)",
)
BY_ENGINES, BY_TRAINERS = (tuple(map(re.compile, names)) for names in (_OF_ENGINES, _OF_TRAINERS))
_KINDS = {"extend": "prefill", "target_verify": "verify", "draft_extend_v2": "draft_extend"}
"""Kinds that an engine calls by another name."""

WORD = re.compile(
    r"(?P<family>(?:(?:global|train|training|profiler|optimi[sz]ation|eval|evaluation|valid|validation|val|test|"
    r"inference)[ _:.-]?)?(?:step|iteration|iter|mini[ _-]?batch|batch)|train|training)"
    r"[ _:#=(\[-]*(?P<number>[0-9]{1,15})?[)\]]?",
    re.IGNORECASE,
)
_LIKE_STEPS = re.compile(r"step|iter|batch|train|infer|prefill|decode|generat|\[Executor\]|execute_", re.IGNORECASE)
_KIND_WORDS = {
    "checkpoint": {"checkpoint", "checkpoints", "ckpt", "save", "saving"},
    "eval": {"eval", "evaluate", "evaluation", "evaluating", "valid", "validate", "validation", "val", "test"},
    "prefill": {"prefill", "prefilling"},
    "decode": {"decode", "decoding"},
    "train": {"train", "training"},
}
_STEP_WORDS = re.compile("step|iter(?:ation)?|(?:mini)?batch", re.IGNORECASE)
_LETTERS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BESIDE = {
    "checkpoint": re.compile(
        r"\A(?:check_?point|ckpt|(?:(?:.*[\].:/])?(?:run_)?(?:save|write)_(?:(?:model|training|train|dist|full|async)_)*"
        r"(?:check_?point|ckpt|model|state|state_dict)))s?(?:_(?:step|to_disk))?(?:_[0-9]+)?",
        re.IGNORECASE,
    ),
    "eval": re.compile(
        r"\A(?:eval|(?:.*[\].:/])?(?:(?:run|do)_)?(?:evaluate|evaluation|validate|validation|"
        r"(?:eval|evaluation|validation|val|test)_(?:step|loop|epoch|phase|pass|batch|iteration|model)))(?:_[0-9]+)?",
        re.IGNORECASE,
    ),
}
"""Whole names of work beside training. A word would not do: activation checkpointing and a loss of evaluation are of
a training step. Any of ` -#` stands for an underscore.
"""
NOT_TRAINING = (*_BESIDE, "compile")
"""Kinds of work between training steps, or inside one, which it makes longer."""
_NO_STEPS = (PROFILER_STEP, LOADING, "Optimizer.", "## Call ")
_LONGEST_NAME = 1000
"""Longer names are not searched: whatever wrote them, no known marker is so long."""


class Said(NamedTuple):
    """What a name says of a step."""

    kind: str | None = None
    requests: int | None = None
    tokens: int | None = None
    number: int | None = None


@lru_cache(maxsize=4096)
def may_mark_steps(name: str, marker: str | None = None) -> bool:
    """Whether an annotation of this name may mark a step, or something that makes a step unlike others.

    `marker` is a regular expression for names that do, whatever else they are.
    """
    if marker is not None and search(marker, name) is not None:
        return True
    if name.startswith(_NO_STEPS) or len(name) > _LONGEST_NAME:
        return False
    return _LIKE_STEPS.search(name) is not None or kind_beside(name) is not None


def check_groups(marker: str) -> None:
    """Check that the named groups of a regular expression are known ones. Raises ValueError."""
    unknown = sorted(set(compiled(marker).groupindex).difference(_GROUPS))
    if unknown:
        raise ValueError(f"{marker!r} has the group {unknown[0]!r}, which says nothing; {', '.join(_GROUPS)} do")


def said_by(name: str) -> Said:
    """What a name says, if it is a known one."""
    match = known(name, (*BY_ENGINES, *BY_TRAINERS))
    return Said() if match is None else said_in(match)


@lru_cache(maxsize=4096)
def known(name: str, patterns: tuple[re.Pattern[str], ...]) -> re.Match[str] | None:
    """The match of the first of these patterns that is the whole name."""
    if len(name) > _LONGEST_NAME:
        return None
    return next((match for pattern in patterns if (match := pattern.fullmatch(name))), None)


def said_in(match: re.Match[str]) -> Said:
    """What the groups of a match say."""
    texts = {name: text for name, text in match.groupdict().items() if text}
    numbers = {name: int(text) for name, text in texts.items() if len(text) <= _MOST_DIGITS and re.fullmatch(_N, text)}
    kind: str | None = next((word for word in ("train", "eval") if word in texts), None)
    if "kind" in texts:
        kind = texts["kind"].strip().lower()
        kind = _KINDS.get(kind, kind)
    requests, tokens = numbers.get("requests"), numbers.get("tokens")
    if tokens is None and kind == "decode":
        tokens = requests  # each of them decodes one token
    if "context_tokens" in numbers and "generation_tokens" in numbers:
        tokens = numbers["context_tokens"] + numbers["generation_tokens"]
    if "context" in numbers and "generation" in numbers:
        context, generation = numbers["context"], numbers["generation"]
        requests = context + generation
        if not generation:
            tokens = numbers.get("context_tokens", tokens)  # of decoding, which may speculate, no name tells them
        kind = "mixed" if context and generation else "prefill" if context else "decode" if generation else "idle"
    if "new" in numbers and "cached" in numbers:
        new, cached = numbers["new"], numbers["cached"]
        requests = new + cached
        kind = "mixed" if new and cached else "prefill" if new else "cached" if cached else "idle"
    return Said(kind, requests, tokens, numbers.get("number"))


def kind_in(name: str) -> str | None:
    """The kind of step by the words of its name; None if these tell none or several."""
    words = {word.lower() for word in _LETTERS.findall(_STEP_WORDS.sub(" ", name))}
    kinds = [kind for kind, known in _KIND_WORDS.items() if words & known]
    return kinds[0] if len(kinds) == 1 else None


@lru_cache(maxsize=4096)
def kind_beside(name: str) -> str | None:
    """The kind of the work beside training that this is the name of, such as `save_checkpoint`; None for all else."""
    if len(name) > _LONGEST_NAME:
        return None
    plain = re.sub("[ #-]+", "_", name.strip())
    return next((kind for kind, known in _BESIDE.items() if known.fullmatch(plain)), None)
