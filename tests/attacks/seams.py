"""Small traces of which pieces meet at boundaries of JSON: `python tests/attacks/seams.py --tries 60000`.

A piece is lost, or there twice; it begins and ends behind commas, before brackets, within keys,
numbers, blanks and letters of several bytes, everywhere in the document. What is read of it is judged as in
damaged_traces.py; a file is small, so that thousands of pairs of boundaries can be tried in a minute.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

from attacking import run_attack
from builders import LAYOUTS, MS, Trace
from damaged_traces import BOUNDARIES, is_json, outcome

from commtrace.analysis.recording.sizes import USUAL_SIZES

_SHAPES = b'"Input Dims": [[1, 2], [3]], "Input type": ["float", "long int"], "Concrete Inputs": ["", "1"]'
_LETTER = "ä"


def small(layout: str) -> bytes:
    """A trace with all sorts of events, letters of several bytes in names, and lists within lists."""
    made = Trace(0, 2, groups={"0": [0, 1]}).step(1, 0, 90 * MS)
    for number in range(5):
        begin = number * 10 * MS
        made.kernel(f"gemm {number}", begin, 3 * MS).op(f"{{shapes}} aten::mm<{number}>", begin, MS)
        made.event("python_function", f"tr{_LETTER}in.py({number}): f{_LETTER}", begin, 9 * MS)
        made.op("record_param_comms", begin + 1, 5)
    made.nccl("all_reduce", 80 * MS, 5 * MS, Seq=1)
    for event in made.events:
        if "{shapes}" in event["name"]:
            event["args"] = {"External id": 3, **json.loads(b"{" + _SHAPES + b"}")}
    escaped = json.dumps(_LETTER)[1:-1].encode()
    return LAYOUTS[layout](made.document()).replace(escaped, _LETTER.encode())


def attack(folder: Path, tries: int, seed: int) -> tuple[Counter[str], list[str]]:
    """See `attacking.Attack`."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    path = folder / "rank0.json"
    texts = [small(layout) for layout in sorted(LAYOUTS)]
    places = [sorted({at.end(at.lastindex or 0) for one in BOUNDARIES for at in one.finditer(text)}) for text in texts]
    sound = []
    for text in texts:
        path.write_bytes(text)
        sound.append({details: outcome(path, details=details, sizes=USUAL_SIZES)[0] for details in (False, True)})
    assert all(all(found.values()) for found in sound)
    for number in range(tries):
        which, details = chance.randrange(len(texts)), chance.random() < 0.3
        begin, end = sorted(chance.sample(places[which], 2))
        text = texts[which]
        begin, end = chance.choice(((begin, end), (begin, end), (end, begin)))  # backwards, a piece is repeated
        damaged = text[:begin] + text[end:]
        path.write_bytes(damaged)
        found, _ = outcome(path, details=details, sizes=USUAL_SIZES)
        if found is None:
            what = "refused"
        elif found == sound[which][details]:
            what = "unharmed"
        elif is_json(damaged):
            what = "still JSON"
        else:
            what = "wrong"
            seam = damaged[max(0, begin - 40) : begin + 40]
            wrong.append(f"try {number} of seed {seed}: layout {sorted(LAYOUTS)[which]}, {seam!r}")
        counts[what] += 1
    return counts, wrong


if __name__ == "__main__":
    sys.exit(run_attack(attack, __doc__))
