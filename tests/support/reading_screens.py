"""What a first screen says, read from its text as a person reads it, and what in it cannot be true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.cells import cell_len

from commtrace.analysis.core.schema import records
from commtrace.analysis.metrics.typical_step import STEP_PARTS
from commtrace.analysis.metrics.verdicts.of_idle import IDLE_CAUSES
from commtrace.analysis.results.analysis import Analysis

_UNITS = {"us": 1e3, "ms": 1e6}
_TIME = r"([\d,]+(?:\.\d+)?) (ms|us)"
_ROW = re.compile(rf"^(\s+)(\S.*?)\s+{_TIME}\s+([\d.]+)%(?:  \S*)?$")
_FIRST = re.compile(rf"([\d,.]+) of {_TIME} in (?:an? (?:[a-z]+ )?step|the window) \((\d+)%\)")
_HEADLINE = re.compile(r"^(?P<headline>.*?)(?: \((?P<verdict>[a-z-]+)\)|(?<=Nothing was measured))\.(?: (?P<why>.*))?$")
_OF_EVERY = re.compile(rf"{_TIME} of (?:every|the) {_TIME} (?:[a-z]+ )?(?:step|window)")
_ALIKE = r"(?: and (?:rank \d+ \(nearly as late\)|\d+ ranks nearly as late \([^)]*\)))?"
_WHO = re.compile(rf"^  rank (\d+)(?: \(\S+\))?{_ALIKE}: {_TIME}(?: a step)?, (\d+)% of the exposed\b")
_IMPOSSIBLE = re.compile(r"\bnan\b|<NA>|\bNone(?! of)\b|\binf\b|-0\.0|\be[+-]\d\d|  \.|(?<!\w)\(\)", re.IGNORECASE)
_LOSSES = {"idle_ns": "idle", "exposed_memory_ns": "copies"}
_COMM = ("exposed_transfer_ns", "exposed_wait_ns", "exposed_unsplit_ns")
_OF_IDLE = ("sync-bound", "allocator-bound", "input-bound", "launch-bound", "host-bound", "idle")
_OF_COMM = ("skew-bound", "link-bound", "transfer-bound", "inconclusive")


@dataclass
class Line:
    """`idle   7.5 ms  52.0%`; times in ns, and by how much they are rounded."""

    name: str
    ns: float
    off_ns: float
    percent: float


@dataclass
class Read:
    """A first screen, in parts."""

    verdict: str = ""
    headline: str = ""
    why: str = ""
    because: str = ""
    """Of the table `verdicts`."""
    not_known: str = ""
    title: str = ""
    parts: list[Line] = field(default_factory=list)
    causes: list[Line] = field(default_factory=list)
    who: list[tuple[int, float, int]] = field(default_factory=list)
    tips: list[Line] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def _line(text: str) -> Line | None:
    match = _ROW.match(text)
    if match is None:
        return None
    _, name, number, unit, percent = match.groups()
    return Line(name, *_ns(number, unit), float(percent))


def _ns(number: str, unit: str) -> tuple[float, float]:
    """A time, and half of its last digit."""
    digits = len(number.partition(".")[2])
    return float(number.replace(",", "")) * _UNITS[unit], 0.5 * 10**-digits * _UNITS[unit]


def read(screen: str) -> Read:
    """The parts of a screen without colours."""
    blocks = [block.splitlines() for block in screen.split("\n\n")]
    result = Read(lines=screen.splitlines())
    said = " ".join(line.strip() for line in blocks[1])
    said, _, result.not_known = said.partition("Not known: ")
    first = _HEADLINE.match(said.strip())
    if first is not None:
        result.verdict, result.headline, result.why = first["verdict"] or "", first["headline"], first["why"] or ""
    for block in blocks[2:]:
        title = block[0]
        if re.match(r"An? (?:\w+ )?step takes|Steps |The window is", title):
            rows = [line for line in block if _ROW.match(line)]
            result.title = " ".join(line.strip() for line in block[: block.index(rows[0])]) if rows else title
            result.parts = [row for text in rows if not text.startswith("    ") and (row := _line(text))]
            result.causes = [row for text in rows if text.startswith("    ") and (row := _line(text))]
        elif title.startswith("Who makes the others wait"):
            result.who = [
                (int(found[1]), _ns(found[2], found[3])[0], int(found[4]))
                for line in block
                if (found := _WHO.match(line))
            ]
        elif title.startswith("What to try"):
            result.tips = [row for text in block[1:] if (row := _line(text))]
    return result


def contradictions(analysis: Analysis, screen: str, width: int) -> list[str]:
    """What two numbers of a screen, or a number and a table, say differently; empty if all agree."""
    said = read(screen)
    said.because = " ".join(analysis.verdicts["because"])  # none where nothing was measured
    return [
        *_in_text(said, width),
        *(_in_step(analysis, said) if len(analysis.breakdown) else ()),
        *_in_who(analysis, said),
    ]


def _in_text(said: Read, width: int) -> Iterator[str]:
    copied = ("Everything: ", "Pictures: ")
    for line in said.lines:
        if not line.startswith(copied) and cell_len(line) > width:
            yield f"wider than {width}: {line}"
        if not line.startswith(copied) and (found := _IMPOSSIBLE.search(line)):
            yield f"{found[0]!r} on the screen: {line}"
        if re.search(r"\s0(\.0)? (ms|us)\s+0\.0%", line):
            yield f"says nothing: {line}"
    if "hidden" in said.because.replace("every transfer hidden behind compute", ""):
        yield f"calls something hidden: {said.because}"
    if not said.headline:
        yield f"no headline: {said.lines[:5]}"


def _in_step(analysis: Analysis, said: Read) -> Iterator[str]:
    typical, steps = analysis.typical_step, records(analysis.steps)
    parts, whole = typical.parts, typical.parts["window_ns"]
    counted = [row for row in steps if row["left_out"] is None]
    if counted:
        mean = sum(row["window_ns"] for row in counted) / len(counted)
        if abs(mean - whole) > 1:
            yield f"a step is {whole}, the mean of the counted ones {mean}"
        if tuple(row["step"] for row in counted) != typical.steps:
            yield f"counted: {typical.steps}, in the table: {counted}"
    if abs(sum(parts[part] for part in STEP_PARTS) - whole) > len(STEP_PARTS):
        yield f"parts do not add up: {parts}"

    # The title, and the rows below it.
    times = re.findall(_TIME, said.title)
    near = [ns for number, unit in times for ns, off in [_ns(number, unit)] if abs(ns - whole) <= off * 1.01 + 1]
    if not near:
        yield f"{said.title!r} does not say {whole}"
    by_name = {name: part for part, name in STEP_PARTS.items()}
    for row in said.parts:
        yield from _differs(row, parts[by_name[row.name]], whole)
    shown = {row.name for row in said.parts}
    for part, name in STEP_PARTS.items():
        if name not in shown and parts[part] > 0.01 * whole:
            yield f"{name} of {parts[part]} is not shown"
    causes = analysis.idle_causes or {}
    for row in said.causes:
        cause = next(column for column, name in IDLE_CAUSES.items() if name == row.name)
        yield from _differs(row, causes[cause], whole)
    if sum(row.ns - row.off_ns for row in said.causes) > parts["idle_ns"]:
        yield "the causes of idle time add up to more than it"
    for row in said.tips:
        if row.ns - row.off_ns > whole:
            yield f"more than a step: {row}"
        if abs(row.ns / whole - row.percent / 100) > 0.0006 + row.off_ns / whole:
            yield f"its percentage is another: {row} of {whole}"
    yield from _in_verdict(analysis, said, parts, whole)


def _differs(row: Line, ns: float, whole: float) -> Iterator[str]:
    if abs(row.ns - ns) > row.off_ns * 1.01 + 1:
        yield f"{row} is {ns} in the table"
    if whole and abs(row.percent / 100 - ns / whole) > 0.00051:
        yield f"{row} is {ns / whole:.2%} in the table"


def _in_verdict(analysis: Analysis, said: Read, parts: dict[str, float], whole: float) -> Iterator[str]:
    verdict = said.verdict
    losses = {name: parts[part] for part, name in _LOSSES.items()}
    losses["communication"] = sum(parts[part] for part in _COMM)
    largest = max(losses, key=lambda name: losses[name])
    if len(analysis.hangs):
        if verdict != "hang":
            yield f"a hang is called {verdict}"
        if said.tips:
            yield "tips beside a hang"
        return
    if verdict == "event-bound":
        yield from _in_event(analysis, said, whole)
        return
    kind = (
        largest if verdict == "mixed" else "idle" if verdict in _OF_IDLE else "copies" if verdict == "copy-bound"
        else "communication" if verdict in _OF_COMM else "compute" if verdict == "compute-bound" else "?"
    )  # fmt: skip
    is_loss = whole > 0 and losses[largest] >= 0.05 * whole
    # A loss of a tenth may gain nothing, and idle time in front of all that was traced may be none.
    computing = parts["compute_alone_ns"] + parts["overlap_ns"]
    unseen = "from before the trace" in str(analysis.verdicts["not_known"].iloc[0])
    if kind == "compute" and (computing >= 0.9 * whole or (unseen and computing >= losses[largest])):
        is_loss = False
    if verdict == "inconclusive" and unseen and computing < losses[largest]:
        kind = largest
    by_price = verdict in _first_prices(analysis)
    if not by_price and kind != (largest if is_loss else "compute") and losses.get(kind) != losses[largest]:
        yield f"{verdict}, but the losses are {losses} of {whole}"
    first = _FIRST.search(said.because)
    if first is None:
        yield f"no number first: {said.because}"
        return
    number, of, unit, percent = first.groups()
    of_ns, of_off = _ns(of, unit)
    ns, off = _ns(number, unit)
    if abs(of_ns - whole) > of_off * 1.01 + 1:
        yield f"of {of} {unit}, but a step is {whole}"
    if whole and abs(int(percent) / 100 - ns / whole) > 0.00501 + off / whole:
        yield f"{first[0]} is {ns / whole:.1%}"
    amounts = {
        "Devices are idle for": parts["idle_ns"], "Copies": parts["exposed_memory_ns"],
        "Exposed communication takes": losses["communication"], "Ranks wait": parts["exposed_wait_ns"],
        "Exposed transfers take": parts["exposed_transfer_ns"],
        "Compute fills": parts["compute_alone_ns"] + parts["overlap_ns"],
    }  # fmt: skip
    yield from _in_headline(said, amounts, whole)
    usual = _of_usual_steps(said)
    sentences = re.split(r"(?<=\.) (?=[A-Z])", usual)
    for sentence in sentences:
        for start, amount in amounts.items():
            if not sentence.lower().startswith(start.lower()):
                continue
            number, unit = re.findall(r"([\d,.]*\d)(?: of [\d,.]+)? (ms|us)\b", sentence)[0]
            ns, off = _ns(number, unit)
            if abs(ns - amount) > off * 1.01 + 1:
                yield f"{sentence!r}, but it is {amount}"
            share = re.findall(r"\((\d+)%\)", sentence)[0]
            if whole and abs(int(share) / 100 - amount / whole) > 0.00501:
                yield f"{sentence!r}, but it is {amount / whole:.1%}"
    words = {
        "move data": "exposed_transfer_ns",
        "are the latency": "exposed_transfer_ns",
        "wait": "exposed_wait_ns",
        "may be either": "exposed_unsplit_ns",
    }
    for text, part in words.items():
        for number, unit in re.findall(rf"{_TIME} {text}\b", usual):
            ns, off = _ns(number, unit)
            if abs(ns - parts[part]) > off * 1.01 + 1:
                yield f"{number} {unit} {text}, but it is {parts[part]}"
    for number, unit in re.findall(_TIME, re.split(r", which|; its CPU| begins| later than", usual)[0]):
        if _ns(number, unit)[0] - _ns(number, unit)[1] > whole + of_off:
            yield f"{number} {unit} is more than a step"


def _first_prices(analysis: Analysis) -> set[str]:
    """What the verdict may be by what a step gains: that of the first remedy, if it gains 5 %."""
    [*first] = records(analysis.remedies.head(1))
    if not first or (first[0]["gain_frac"] or 0) < 0.05 or analysis.prices is None:
        return set()
    return {change.verdict for change in analysis.prices.changes if change.remedy == first[0]["remedy"]} | {"mixed"}


def _in_event(analysis: Analysis, said: Read, usual_ns: float) -> Iterator[str]:
    """What steps take that are long once: more than usual, of all that was traced."""
    steps = analysis.steps
    long, counted = steps[steps["left_out"] == "long"], steps[steps["left_out"].isna()]
    traced_ns = long["window_ns"].sum() + counted["window_ns"].sum()
    numbers = re.search(r"([0-9,.]+) of the ([0-9,.]+) ms that were traced", f"{said.headline}. {said.why}")
    expected = (long["window_ns"].sum() - len(long) * usual_ns, traced_ns)
    if numbers is None or any(
        abs(float(number.replace(",", "")) - ns / 1e6) > 0.051
        for number, ns in zip(numbers.groups(), expected, strict=True)
    ):
        yield f"{said.headline!r}, but it is {expected}"


def _in_headline(said: Read, amounts: dict[str, float], whole: float) -> Iterator[str]:
    """The headline's number is that of the table, its base is the step."""
    found = _OF_EVERY.search(said.headline)
    if found is None:
        yield f"no number in {said.headline!r}"
        return
    (ns, off), (of_ns, of_off) = _ns(found[1], found[2]), _ns(found[3], found[4])
    if abs(of_ns - whole) > of_off * 1.01 + 1:
        yield f"{said.headline!r}, but a step is {whole}"
    for start, amount in amounts.items():
        if said.headline.startswith(start) and abs(ns - amount) > off * 1.01 + 1:
            yield f"{said.headline!r}, but it is {amount}"
    if " others wait " in said.headline and ns - off > amounts["Ranks wait"]:
        yield f"{said.headline!r}, but ranks wait {amounts['Ranks wait']}"


def _of_usual_steps(said: Read) -> str:
    """Without what is said of steps that are not counted, or longer than the others."""
    return re.split(r"(?<=\.) Steps? \d", said.because)[0]


def _in_who(analysis: Analysis, said: Read) -> Iterator[str]:
    shares = [share for _, _, share in said.who]
    if sum(shares) > 100 + len(shares):
        yield f"shares add up to more than all: {said.who}"
    if shares != sorted(shares, reverse=True):
        yield f"not the largest first: {said.who}"
    waited = analysis.typical_step.parts["exposed_wait_ns"] if len(analysis.breakdown) else 0.0
    for rank, ns, share in said.who:
        if abs(ns - share / 100 * waited) > 0.00501 * waited + 0.06e6:
            yield f"rank {rank}: {ns} is not {share}% of {waited}"
    usual = _of_usual_steps(said)
    if said.verdict not in ("hang", "event-bound") and (
        named := re.findall(r"(\d+)% of [^,]{2,60}? for rank (\d+)", usual)
    ):
        share, rank = (int(text) for text in named[0])
        if not said.who and said.headline.startswith((f"Rank {rank} ", f"Waiting for rank {rank} ")):
            return
        if not said.who or said.who[0][0] != rank:
            yield f"rank {rank} is named, but the list begins with {said.who[:1]}"
        elif said.who[0][2] != share:
            yield f"{share}% for rank {rank}, but {said.who[0][2]}% in the list"
