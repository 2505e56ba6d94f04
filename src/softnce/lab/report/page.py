"""The HTML page: one self-contained file with a verdict and a chart, the paper's claims, and a section per study.

Charts are interactive on a screen (hover for values, switch losses on and off for the whole page); on paper or without
JavaScript the drawn figures are shown. A click on a header sorts a table. plotly.js, most of the page's size, is
inlined once, compressed. The download links of a figure lead to ``figures`` beside the page.
"""

import base64
import datetime
import gzip
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softnce.lab.atomic import write_text
from softnce.lab.experiment.claims import MEANING, NOT_YET_RUN, Claim, Finding
from softnce.lab.experiment.text import counted, minus, prose
from softnce.lab.report import drawing, interactive
from softnce.lab.report.charts import Figure
from softnce.lab.report.style import FONT, LOSSES

LONG = 12
"""Rows beyond which a table is folded."""
UNFINISHED = "The runs of this study are not finished yet."


@dataclass(frozen=True)
class Table:
    """``rows`` of cells under a ``header``; the first column is text, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [[minus(cell) for cell in row] for row in self.rows])
        object.__setattr__(self, "caption", prose(self.caption))


Block = str | Figure | Table | None
"""A paragraph, a figure, a table, or nothing."""


@dataclass(frozen=True)
class Headline:
    """What a study says at the top of the page.

    Attributes:
        rank: the lowest ranks are shown: two sentences and one chart.
        text: one sentence.
        figure: name of one of the section's figures.
    """

    rank: int
    text: str
    figure: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", prose(self.text))


@dataclass(frozen=True)
class Section:
    """A study's section: paragraphs, figures and tables, in order.

    Texts may span several lines and use hyphens as minus signs: :func:`prose` cleans up both.

    Attributes:
        title: of the section.
        summary: one or two sentences, shown large.
        blocks: paragraphs, figures and tables; None and empty texts are left out.
        method: paragraphs on how it was done, shown folded.
        headline: for the top of the page, if the study matters that much.
    """

    title: str
    summary: str
    blocks: Sequence[Block]
    method: Sequence[str] = field(default_factory=tuple)
    headline: Headline | None = None

    def __post_init__(self) -> None:
        blocks = [prose(block) if isinstance(block, str) else block for block in self.blocks if block]
        object.__setattr__(self, "summary", prose(self.summary))
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "method", [prose(paragraph) for paragraph in self.method])
        names = Counter(block.name for block in self.blocks if isinstance(block, Figure))
        if self.headline and self.headline.figure not in names:
            raise ValueError(f"headline: {self.headline.figure!r} is not a figure of the section: {', '.join(names)}")
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"blocks: {count} figures are named {name!r}, but names must be unique")


@dataclass(frozen=True)
class Part:
    """What one study adds to the page, and where its numbers come from.

    Attributes:
        study: its name.
        section: its section.
        findings: what it found about the paper's claims, by their keys.
        runs, minutes, latest, versions: number of its runs, their time, day of the last and what computed them.
    """

    study: str
    section: Section
    findings: Mapping[str, Finding]
    runs: int
    minutes: float
    latest: str
    versions: str


@dataclass(frozen=True)
class Answer:
    """A line of the table of claims."""

    claim: Claim
    finding: Finding | None

    @property
    def verdict(self) -> str:
        return self.finding.verdict if self.finding else NOT_YET_RUN

    @property
    def ours(self) -> list[str]:
        """Our figures: what is shown, and what is folded. Split at the first semicolon outside of brackets."""
        text = self.finding.ours if self.finding else "–"
        ends = [i for i, letter in enumerate(text) if letter == ";" and text.count("(", 0, i) == text.count(")", 0, i)]
        return [text[: ends[0]], text[ends[0] + 2 :]] if ends else [text]

    @property
    def command(self) -> str:
        return (self.finding and self.finding.command) or self.claim.command


def build(parts: Sequence[Part], claims: Sequence[Claim], path: Path) -> None:
    """Write the page atomically. The files of its figures must exist.

    Args:
        parts: of the studies with results, in the order of the page.
        claims: every claim, answered or not, in the order of the page.
        path: of the HTML file.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softnce.lab.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    figures = [
        block for part in parts for block in part.section.blocks if isinstance(block, Figure) and block.interactive
    ]
    losses = {
        mark.loss for figure in figures for panel in figure.panels for mark in panel.marks if hasattr(mark, "loss")
    }
    findings = {key: finding for part in parts for key, finding in part.findings.items()}
    answers = [Answer(claim, findings.get(claim.key)) for claim in claims]
    by_verdict = {verdict: [answer for answer in answers if answer.verdict == verdict] for verdict in MEANING}
    headlines = [(part, part.section.headline) for part in parts if part.section.headline]
    headlines.sort(key=lambda found: found[1].rank)
    text = environment.get_template("page.html").render(
        verdicts=[(verdict, found, MEANING[verdict]) for verdict, found in by_verdict.items() if found],
        opening=[_tally(by_verdict), *(headline.text for _, headline in headlines[:2])],
        chart=_opening_chart(*headlines[0], path.parent) if headlines else None,
        remarks=map(prose, remarks()),
        parts=[(part, [_block(block, part.study, path.parent) for block in part.section.blocks]) for part in parts],
        losses=[(key, look) for key, look in LOSSES.items() if key in losses],
        plotly=_compressed(get_plotlyjs()) if figures else "",
        font=FONT,
        built=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(path, text)


def _tally(by_verdict: Mapping[str, Sequence[Answer]]) -> str:
    """The first sentence of the page: how many claims have which verdict."""
    counts = {verdict: len(found) for verdict, found in by_verdict.items() if found and verdict != NOT_YET_RUN}
    named = {"beyond": "beyond the paper"}
    listed = ", ".join(f"{count} {named.get(verdict, verdict)}" for verdict, count in counts.items())
    return (
        f"Of {counted(sum(counts.values()), 'claim')} tested here: {listed}." if counts else "No claim was tested here."
    )


def _opening_chart(part: Part, headline: Headline, directory: Path) -> dict[str, Any]:
    """The figure of a headline, with the study it belongs to."""
    figure = next(b for b in part.section.blocks if isinstance(b, Figure) and b.name == headline.figure)
    return _block(figure, part.study, directory) | {"study": part.study}


def remarks() -> list[str]:
    """Where the paper's text disagrees with its tables, or leaves something out."""
    text = Path(__file__).with_name("remarks.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["remarks"])


def _compressed(script: str) -> str:
    """gzip in base64, two fifths of the size; the page decompresses it."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _block(block: Block, study: str, directory: Path) -> dict[str, Any]:
    match block:
        case str():
            return {"kind": "paragraph", "text": block}
        case Table():
            return {"kind": "table", "table": block, "long": len(block.rows) > LONG}
        case Figure():
            files = {ending: f"figures/{study}-{block.name}.{ending}" for ending in drawing.ENDINGS}
            # "</" would end the script element that holds the data.
            panels = [interactive.plotly_json(panel).replace("</", "<\\/") for panel in block.panels]
            return {
                "kind": "figure",
                "figure": block,
                "image": base64.b64encode((directory / files["png"]).read_bytes()).decode(),
                "panels": panels if block.interactive else [],
                "legend": interactive.legend(block),
                "files": files,
            }
    raise TypeError(f"blocks: got {block!r}, need a text, a Figure or a Table")
