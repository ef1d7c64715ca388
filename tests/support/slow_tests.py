"""Which tests are to be marked as slow, so that `make test` leaves them to `make test-all`, from measured durations.

    .venv/bin/python -m pytest -m "not slow and not alone" --durations=0 --durations-min=0.3 ... > durations.txt
    .venv/bin/python tests/support/slow_tests.py durations.txt

A test is slow if it takes 0.35 s on a quiet machine with two cores. Of the cases of one test function, the
quickest stays if it takes less than a second, so that `make test` still looks at what the function is about. Tests of
documentation and of the house stay: they say what else has to change with a change.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

_CALL = re.compile(r"^(?P<s>[\d.]+)s call +(?P<id>tests/\S.*?)$")
_SLOW_S, _SAMPLE_S = 0.35, 1.0
_STAY = ("tests/docs/", "tests/house/")


def slow_of(report: str) -> list[str]:
    """The ids of tests that are slow by the durations in a report of pytest."""
    took = {found["id"]: float(found["s"]) for found in map(_CALL.match, report.splitlines()) if found}
    cases: dict[str, list[str]] = defaultdict(list)
    for test in took:
        cases[test.partition("[")[0]].append(test)
    slow = {test for test, s in took.items() if s >= _SLOW_S and not test.startswith(_STAY)}
    for ids in cases.values():
        quickest = min(ids, key=lambda test: took[test])
        if len(ids) > 1 and slow.issuperset(ids) and took[quickest] < _SAMPLE_S:
            slow.discard(quickest)
    return sorted(slow)


if __name__ == "__main__":
    print("\n".join(slow_of(Path(sys.argv[1]).read_text(encoding="utf-8"))))
