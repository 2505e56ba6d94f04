"""The page says the numbers of the rows."""

from lab.studies.head.rows import GAINS, rows_with

from softnce.lab.report import charts, drawing
from softnce.lab.studies.head import page


def test_the_page_says_the_numbers_of_the_rows():
    section = page.section(rows_with(GAINS, lead=-0.3))
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    for number in ("+0.90", "+0.40", "+0.50 [+0.50, +0.50]", "−0.30 [−0.30, −0.30]"):
        assert number in text
    assert page.section(rows_with(GAINS)[:1]).title
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
