"""The page says the numbers of the rows."""

import pytest
from lab.studies.distillation.rows import TOP1, rows_with

from softnce.lab.report import charts, drawing
from softnce.lab.studies.distillation import findings, page
from softnce.lab.studies.distillation import run as study


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(TOP1)
    section = page.section(rows)
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    for words in ("gains the most with soft target cross-entropy, +5.00 [+5.00, +5.00]",
                  "+26.05 [+25.93, +26.17] points if all rows share", "70.0 % top-1"):  # fmt: skip
        assert words.replace(" %", "\N{NO-BREAK SPACE}%") in text
    chosen = findings.find(rows).chosen
    behind = chosen[study.OURS, findings.ALL].minus(chosen[study.CE, findings.ALL], findings.TOP1)
    assert (behind.low, behind.mean, behind.high) == pytest.approx((-3, -3, -3))
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert page.section(rows[1:2]).title
    assert findings.claims(rows[:2]) == {}
