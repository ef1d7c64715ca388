"""Which tests are slow follows from how long they took."""

from __future__ import annotations

from slow_tests import slow_of


def test_a_case_of_each_function_stays_unless_it_is_long_as_well() -> None:
    report = "\n".join((
        "0.90s call     tests/a.py::test_x[1]", "0.60s call     tests/a.py::test_x[2]",
        "2.00s call     tests/a.py::test_y[1]", "1.10s call     tests/a.py::test_y[2]",
        "0.34s call     tests/a.py::test_z", "0.70s call     tests/a.py::test_alone",
        "9.00s setup    tests/a.py::test_z", "5.00s call     tests/docs/test_page.py::test_page",
    ))  # fmt: skip
    assert slow_of(report) == [
        "tests/a.py::test_alone", "tests/a.py::test_x[1]", "tests/a.py::test_y[1]", "tests/a.py::test_y[2]",
    ]  # fmt: skip
