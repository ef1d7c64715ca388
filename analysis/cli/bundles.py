"""Groups of options that many commands share, declared once and passed as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_bundle(command: Callable[..., None], name: str, make: Callable[..., Any]) -> Callable[..., None]:
    """Add the options of `make` to a command; the command gets its result as the argument `name`."""
    shared = list(inspect.signature(make, eval_str=True).parameters.values())

    def with_options(**given: Any) -> None:
        bundle = make(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        command(**given, **{name: bundle})

    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != name
    ]
    added = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shared]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature([*parameters, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *added)}
    return with_options
