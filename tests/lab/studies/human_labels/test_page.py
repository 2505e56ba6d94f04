"""The page says the numbers of the rows."""

from lab.studies.human_labels.rows import KL, rows_with

from softnce.lab.report import charts, drawing
from softnce.lab.studies.human_labels import findings, page


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(KL)
    section = page.section(rows)
    text = section.summary + " ".join(block for block in section.blocks if isinstance(block, str))
    assert "−0.0300 [−0.0300, −0.0300]" in text  # soft target cross-entropy against NLL
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert findings.claims(rows[:1]) == {}
