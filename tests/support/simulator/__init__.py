"""Worlds of distributed training that are simulated, so that what is true of their traces is known: see README.md.

from simulator import World, simulate, draw, score
made = simulate(draw(17))
made.write(folder)
print(score(analyse(folder), made.truth))
"""

from __future__ import annotations

from .hard import draw_hard
from .score import Score, score
from .simulation import Simulated, simulate
from .truth import Truth
from .world import Clocks, Hang, Hardware, Injection, Jump, Layout, Losses, Window, World
from .worlds import PRESETS, draw

__all__ = [
    "PRESETS",
    "Clocks",
    "Hang",
    "Hardware",
    "Injection",
    "Jump",
    "Layout",
    "Losses",
    "Score",
    "Simulated",
    "Truth",
    "Window",
    "World",
    "draw",
    "draw_hard",
    "score",
    "simulate",
]
