"""`run --step-on` ends a step where a function of the script returns, whatever kind of function that is."""

from types import ModuleType

import pytest

from commtrace.profiling.script.config import StepOn
from commtrace.profiling.script.returns import Returns

SCRIPT = """
import asyncio

class Model:
    @classmethod
    def of_class(cls): work(cls.__name__)
    @staticmethod
    def static(): work("static")

def generator():
    work((yield from ["first", "second"]))
    return "returned"

async def coroutine():
    await asyncio.sleep(0)
    work("awaited")
    return "returned"

def took_all():
    work((yield from generator()))
"""


@pytest.mark.parametrize(
    ("name", "use", "expected"),
    [
        ("Model.of_class", "Model.of_class(); Model().of_class()", ["Model", "|", "Model", "|"]),
        ("Model.static", "Model.static(); Model().static()", ["static", "|", "static", "|"]),
        ("generator", "[work(item) for item in took_all()]", ["first", "second", None, "|", "returned"]),
        ("generator", "next(generator()).upper()", []),
        ("coroutine", "work(asyncio.run(coroutine()))", ["awaited", "|", "returned"]),
    ],
)
def test_a_step_ends_where_the_function_has_run(name, use, expected) -> None:
    seen: list[object] = []
    module = ModuleType("script")
    module.work = seen.append  # type: ignore[attr-defined]
    returns = Returns(StepOn.parsed(name), lambda: seen.append("|"))
    exec(returns.compiled(SCRIPT, "script.py", module), vars(module))
    exec(use, vars(module))
    assert seen == expected
