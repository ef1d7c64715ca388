"""Loss and accuracy by epoch, as a page that needs no network."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from ..core.escaping import printable
from ..errors import MissingLibrary

# (column, what it is of, how its line is drawn), by panel.
_CURVES = (
    (("train_loss", "training", "dot"), ("test_loss", "test", "solid")),
    (("train_accuracy_frac", "training", "dot"), ("test_accuracy_frac", "test", "solid")),
)
_PANELS = ("loss", "accuracy")


def training_plot(epochs: pd.DataFrame) -> str:
    """HTML with both curves of every training in the table `training_epochs`. Raises MissingLibrary."""
    graphs, make_subplots = _plotly()
    figure = make_subplots(rows=1, cols=2, subplot_titles=_PANELS)
    colours = graphs.Figure().layout.template.layout.colorway
    for number, (_, rows) in enumerate(epochs.groupby("training", sort=False, dropna=False)):
        name = escape(printable(str(rows["run"].iloc[0])))  # plotly takes tags in names
        colour = colours[number % len(colours)]
        for panel, curves in enumerate(_CURVES, start=1):
            for column, part, dash in curves:
                figure.add_trace(
                    graphs.Scatter(
                        x=rows["after_epochs"].tolist(),
                        y=[None if pd.isna(value) else float(value) for value in rows[column]],
                        name=f"{name}, {part}",
                        legendgroup=f"{number} {part}",
                        showlegend=panel == 1,
                        mode="lines+markers",
                        line={"color": colour, "dash": dash},
                    ),
                    row=1,
                    col=panel,
                )
    figure.update_xaxes(title_text="epochs trained", rangemode="tozero")
    figure.update_yaxes(title_text="cross entropy (nats)", row=1, col=1)
    figure.update_yaxes(title_text="classified correctly", tickformat=".0%", row=1, col=2)
    figure.update_layout(title_text="Training", hovermode="x unified")
    page: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return page


def _plotly() -> tuple[Any, Any]:
    """plotly's graph objects and maker of panels. Half a second of imports that only a plot needs."""
    try:
        from plotly import graph_objects
        from plotly.subplots import make_subplots
    except ImportError as err:
        raise MissingLibrary('plotly is not installed, and --plot needs it: pip install "commtrace[plot]"') from err
    return graph_objects, make_subplots
