"""The look of all plots: colours in light and dark, and colour scales.

Source of the scale: cividis (Nunez, Anderton and Renslow, 2018), which is read alike with and without colour blindness.
"""

from __future__ import annotations

LEVELS = 12

_CIVIDIS = (
    "#00224e", "#08306f", "#32406d", "#48516d", "#5b616f", "#6d7173",
    "#808278", "#959377", "#aba574", "#c2b76c", "#dacb60", "#fee838",
)  # fmt: skip
_KINDS = {
    # what: (light, dark)
    "compute": ("#3b6ea8", "#5a8fcb"),
    "hidden": ("#8fb3d9", "#345b86"),
    "transfer": ("#d9822b", "#e8964a"),
    "wait": ("#b3261e", "#f07167"),
    "unsplit": ("#a08060", "#b99a7b"),
    "memory": ("#6b4fa0", "#9d86cf"),
    "idle": ("#dfe3e8", "#3a3f46"),
    "a": ("#7a8594", "#8a95a4"),
    "b": ("#3b6ea8", "#5a8fcb"),
}
SERIES = 8
_LINES = (
    ("#3b6ea8", "#6ea3dc"), ("#d9822b", "#e8964a"), ("#2a7f62", "#58b894"), ("#8a4f9e", "#bd8bd0"),
    ("#7a6a00", "#c9b64a"), ("#b3261e", "#f07167"), ("#4f5d6b", "#a5b3c1"), ("#0f7c8a", "#53bccb"),
)  # fmt: skip
_FRAME = {"ink": ("#1b1f24", "#e6e8eb"), "faint": ("#5b6570", "#a2abb5"), "grid": ("#d8dde3", "#3d434b")}


def level(value: float | None, largest: float) -> int | None:
    """The step of the scale for a value between 0 and `largest`; None for None."""
    if value is None:
        return None
    return min(int(LEVELS * max(value, 0) / largest), LEVELS - 1) if largest > 0 else 0


def stylesheet() -> str:
    """CSS of the plots, all below the class `ct`, for light and dark pages and for paper."""
    names = _FRAME | _KINDS | {f"s{number}": pair for number, pair in enumerate(_LINES)}
    light, dark = (";".join(f"--{name}:{pair[side]}" for name, pair in names.items()) for side in (0, 1))
    rules = [
        f".ct{{{light}}}",
        f"@media (prefers-color-scheme:dark){{.ct{{{dark}}}}}",
        f"@media print{{.ct{{{light}}}}}",
        ".ct svg{display:block;max-width:100%;height:auto;overflow:visible}",
        ".ct text{font:11px system-ui,sans-serif;fill:var(--ink)}",
        ".ct .faint{fill:var(--faint)}.ct .end{text-anchor:end}.ct .mid{text-anchor:middle}",
        ".ct .grid{stroke:var(--grid);fill:none}.ct .axis{stroke:var(--faint);fill:none}",
        ".ct .line{fill:none;stroke-width:1.8}.ct .thin{fill:none;stroke:var(--ink);stroke-width:1}",
        ".ct .frame{fill:none;stroke:var(--wait);stroke-width:2}",
        ".ct .band{fill:var(--ink);opacity:.14}",
    ]
    coloured = (*_KINDS, *(f"s{number}" for number in range(SERIES)))
    rules += [f".ct .f-{name}{{fill:var(--{name})}}.ct .l-{name}{{stroke:var(--{name})}}" for name in coloured]
    rules += [f".ct .h{number}{{fill:{colour}}}" for number, colour in enumerate(_CIVIDIS)]
    return "".join(rules)
