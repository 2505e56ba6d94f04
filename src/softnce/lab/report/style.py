"""One look for every figure of the project: a loss has the same colour, marker and name everywhere.

The colours are Okabe and Ito's, which readers with any colour vision can distinguish, also in grey; markers differ too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from softnce.lab.losses import TITLES


@dataclass(frozen=True)
class Look:
    """How one series is drawn. ``marker`` is matplotlib's letter."""

    name: str
    colour: str
    marker: str = "o"


LOSSES = {
    loss: Look(TITLES[loss], colour, marker)
    for loss, colour, marker in (
        ("nll", "#D55E00", "o"),
        ("info-nce", "#0072B2", "D"),
        ("soft-ce", "#E69F00", "s"),
        ("soft-dist-info-nce", "#CC79A7", "v"),
        ("soft-target-info-nce", "#009E73", "^"),
        ("expected-info-nce", "#785EF0", "P"),
    )
}
AVERAGED = ("#56B4E9", "#3F7FA6", "#7AA6C8", "#5C7C99")  # soft target InfoNCE of means of n drawn labels, by n
SHADES = ("#009E73", "#45B894", "#4E8F7C", "#8DB08B")  # soft target InfoNCE with other candidates, by their kind
SERIES = ("#8F8B2B", "#B5455F", "#5F8A99", "#A0703C")  # series that are no loss of ours: methods of others, values of ε
OTHER = "#7A7A7A"  # references, controls, everything that is not a loss; readable on white and on black
MARKERS = {
    "o": "circle",
    "D": "diamond",
    "s": "square",
    "v": "triangle-down",
    "^": "triangle-up",
    "x": "x",
    "P": "cross",
    "*": "star",
    "": "circle",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@contextmanager
def matplotlib_style() -> Iterator[None]:
    """One style for figures drawn inside: thin axes, light grid, text that can be read on a slide."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "axes.axisbelow": True,
        "axes.edgecolor": "#444444",
        "axes.grid": True,
        "axes.labelsize": 10,
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "figure.constrained_layout.h_pad": 0.06,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.w_pad": 0.06,
        "figure.dpi": 100,
        "font.size": 10,
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.7,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
        "pdf.fonttype": 42,
        "savefig.dpi": 200,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }
    with mpl.rc_context(settings):
        yield
