"""Options that belong together as one dataclass; typer itself only takes single parameters."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def takes(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command with dataclasses as parameters one that typer accepts: the fields become its parameters.

    A field is declared as typer wants it, `name: Annotated[type, typer.Option(...)] = default`. In `--help` the fields
    stand where their dataclass stands among the parameters.
    """

    def with_groups(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        names = {group: [field.name for field in fields(kind)] for group, kind in groups.items()}

        def flat(**given: Any) -> None:
            made = {group: kind(**{name: given.pop(name) for name in names[group]}) for group, kind in groups.items()}
            command(**given, **made)

        shown = [each for one in own for each in (_parameters(groups[one.name]) if one.name in groups else [one])]
        flat.__name__, flat.__doc__, flat.__module__ = command.__name__, command.__doc__, command.__module__
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
        flat.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        flat.__annotations__ = {each.name: each.annotation for each in keywords}
        return flat

    return with_groups


def _parameters(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
