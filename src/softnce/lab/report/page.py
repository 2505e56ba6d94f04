"""The HTML page: one file that needs nothing else, with every study's section.

Charts are interactive on a screen (hover for values, switch losses on and off for the whole page), and are the
drawn figures on paper or without JavaScript. plotly.js is inlined once.
"""

import base64
import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softnce.lab.report import charts
from softnce.lab.report.charts import Figure
from softnce.lab.report.style import FONT, LOSSES


def prose(text: str) -> str:
    """Text written over several lines as one, with minus signs and percent signs that stay with their number."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", minus(" ".join(text.split())))


def minus(text: str) -> str:
    """Hyphens before digits as minus signs, except inside words and exponents."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text)


def counted(number: int, noun: str) -> str:
    """The number with its noun: 1 seed, 2 seeds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Table:
    """``rows`` of cells under a ``header``; the first column is text, the others are set as numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """What a study says: paragraphs (text), figures and tables, in the order they are read.

    Attributes:
        title: of the section.
        summary: one or two sentences, shown large.
        blocks: str (a paragraph), Figure or Table.
        method: paragraphs shown folded, for those who want to know how.
    """

    title: str
    summary: str
    blocks: Sequence[str | Figure | Table]
    method: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Origin:
    """Where a section's numbers come from."""

    study: str
    runs: int
    minutes: float
    latest: str
    versions: str


def build(sections: Sequence[tuple[Section, Origin]], path: Path) -> None:
    """Write the page, atomically."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softnce.lab.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    figures = [
        block for section, _ in sections for block in section.blocks if isinstance(block, Figure) and block.interactive
    ]
    shown = {
        mark.loss for figure in figures for panel in figure.panels for mark in panel.marks if hasattr(mark, "loss")
    }
    text = environment.get_template("page.html").render(
        sections=[(section, origin, [_block(block) for block in section.blocks]) for section, origin in sections],
        losses=[(key, look) for key, look in LOSSES.items() if key in shown],
        plotly=get_plotlyjs() if figures else "",
        font=FONT,
        built=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    partial = path.with_suffix(".partial.html")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _block(block: str | Figure | Table) -> dict[str, Any]:
    match block:
        case str():
            return {"kind": "paragraph", "text": block}
        case Table():
            return {"kind": "table", "table": block}
        case Figure():
            # "</" would end the script element that holds the data.
            panels = [charts.plotly_json(panel).replace("</", "<\\/") for panel in block.panels]
            return {
                "kind": "figure",
                "figure": block,
                "image": base64.b64encode(charts.png(block)).decode(),
                "panels": panels if block.interactive else [],
                "legend": charts.legend(block),
            }
