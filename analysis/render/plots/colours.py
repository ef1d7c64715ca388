"""The look of all plots: colours in light and dark. A colour means the same in every picture.

The colours of parts of a step differ in lightness as well as in hue, so that they are told apart with colour blindness
and on paper; scales of amounts go from the ground to one of these colours, by lightness alone.
"""

from __future__ import annotations

LEVELS = 12

_KINDS = {
    # what: (light, dark)
    "compute": ("#3b6ea8", "#5a8fcb"),
    "hidden": ("#8fb3d9", "#345b86"),
    "transfer": ("#d9822b", "#e8964a"),
    "wait": ("#b3261e", "#f07167"),
    "unsplit": ("#a08060", "#b99a7b"),
    "memory": ("#6b4fa0", "#9d86cf"),
    "idle": ("#dfe3e8", "#3a3f46"),
    "cpu": ("#8b96a3", "#77828f"),
    "a": ("#7a8594", "#8a95a4"),
    "b": ("#0f7c8a", "#53bccb"),
}
PART_KINDS = {
    "compute_alone_ns": "compute",
    "overlap_ns": "hidden",
    "exposed_transfer_ns": "transfer",
    "exposed_wait_ns": "wait",
    "exposed_unsplit_ns": "unsplit",
    "exposed_memory_ns": "memory",
    "idle_ns": "idle",
}
"""Colours of what a step consists of, in every picture: columns of `steps` -> kinds."""
SERIES = 8
_LINES = (
    ("#3b6ea8", "#6ea3dc"), ("#d9822b", "#e8964a"), ("#2a7f62", "#58b894"), ("#8a4f9e", "#bd8bd0"),
    ("#7a6a00", "#c9b64a"), ("#b3261e", "#f07167"), ("#4f5d6b", "#a5b3c1"), ("#0f7c8a", "#53bccb"),
)  # fmt: skip
_FRAME = {
    "ink": ("#16191d", "#e8eaed"),
    "faint": ("#5b6570", "#a2abb5"),
    "grid": ("#dfe3e7", "#363c43"),
    "page": ("#fafaf9", "#14171a"),
    "card": ("#ffffff", "#1c2024"),
    "link": ("#2f62a0", "#7fb2ea"),
    "on": ("#ffffff", "#14171a"),
    "good": ("#1f7a4d", "#5cc08d"),
}


_COLOURED = (*_KINDS, *(f"s{number}" for number in range(SERIES)))
_SHARES = (5, *(12 + round(78 * number / (LEVELS - 1)) for number in range(1, LEVELS)))
"""Shades of an amount: percent of the full colour, over the ground."""
PAPER_FONTS = "Helvetica,Arial,'DejaVu Sans','Liberation Sans',sans-serif"


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
        ".ct text{font:12px system-ui,sans-serif;fill:var(--ink)}",
        ".ct .faint{fill:var(--faint)}.ct .end{text-anchor:end}.ct .mid{text-anchor:middle}",
        ".ct .grid{stroke:var(--grid);fill:none}.ct .axis{stroke:var(--faint);fill:none}",
        ".ct .line{fill:none;stroke-width:1.8}.ct .thin{fill:none;stroke:var(--ink);stroke-width:1}",
        ".ct .frame{fill:none;stroke:var(--wait);stroke-width:2}",
        ".ct .band{fill:var(--ink);opacity:.14}",
    ]
    rules += [f".ct .f-{name}{{fill:var(--{name})}}.ct .l-{name}{{stroke:var(--{name})}}" for name in _COLOURED]
    rules += [f".ct .b-{name}{{background:var(--{name})}}" for name in _KINDS]
    for number, share in enumerate(_SHARES):
        mixed = f"color-mix(in srgb,var(--hue,var(--wait)) {share}%,transparent)"
        rules.append(f".ct .h{number}{{fill:{mixed};background:{mixed}}}")
    rules += [f".ct .of-{name}{{--hue:var(--{name})}}" for name in _KINDS]
    return "".join(rules)


def paper_stylesheet() -> str:
    """CSS of a picture by itself: light colours, and neither variables nor mixes, which few programs draw."""
    light = {name: pair[0] for name, pair in (_FRAME | _KINDS).items()}
    light |= {f"s{number}": pair[0] for number, pair in enumerate(_LINES)}
    rules = [
        f"text{{font-family:{PAPER_FONTS};font-size:12px;fill:{light['ink']}}}",
        f".faint{{fill:{light['faint']}}}.end{{text-anchor:end}}.mid{{text-anchor:middle}}",
        f".grid{{stroke:{light['grid']};fill:none}}.axis{{stroke:{light['faint']};fill:none}}",
        f".line{{fill:none;stroke-width:1.8}}.thin{{fill:none;stroke:{light['ink']};stroke-width:1}}",
        f".frame{{fill:none;stroke:{light['wait']};stroke-width:2}}.band{{fill:{light['ink']};opacity:.14}}",
        *(f".f-{name}{{fill:{light[name]}}}.l-{name}{{stroke:{light[name]}}}" for name in _COLOURED),
    ]
    for number, share in enumerate(_SHARES):
        rules.append(f".h{number}{{fill:{light['wait']};fill-opacity:{share / 100:g}}}")
        rules += [f".of-{kind} .h{number},.h{number}.of-{kind}{{fill:{light[kind]}}}" for kind in _KINDS]
    return "".join(rules)
