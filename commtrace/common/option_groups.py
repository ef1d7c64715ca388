"""Options that belong together as one argument of a command; typer itself only takes single parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command whose arguments are groups of options one that typer accepts.

    A group is a function or a dataclass. The command gets its result in place of its options, which are declared as
    typer wants them: `name: Annotated[type, typer.Option(...)] = default`. In `--help` they stand where the group
    stands among the parameters.
    """
    options = {group: inspect.signature(make, eval_str=True).parameters for group, make in groups.items()}

    def with_groups(command: Callable[..., None]) -> Callable[..., None]:
        def flat(**given: Any) -> None:
            made = {group: make(**{name: given.pop(name) for name in options[group]}) for group, make in groups.items()}
            command(**given, **made)

        own = inspect.signature(command, eval_str=True).parameters.values()
        shown = [each for one in own for each in (options[one.name].values() if one.name in groups else [one])]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
        flat.__name__, flat.__doc__, flat.__module__ = command.__name__, command.__doc__, command.__module__
        flat.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        flat.__annotations__ = {each.name: each.annotation for each in keywords}
        return flat

    return with_groups
