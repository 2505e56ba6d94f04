"""The page says the numbers of the rows."""

from lab.studies.long_tail.rows import rows_with

from softnce.lab.report import charts, drawing
from softnce.lab.report.page import Table
from softnce.lab.studies.long_tail import findings, page


def test_the_page_says_the_numbers_of_the_rows():
    rows = rows_with(shift=0.8, effect=3.0)
    section = page.section(rows)
    assert "+3.00 [+3.00, +3.00]" in section.summary
    predictions = next(block for block in section.blocks if isinstance(block, Table))
    measured = [cells[-1] for cells in predictions.rows]
    assert measured[:2] == ["+0.00 [+0.00, +0.00]", "+1.00 [+1.00, +1.00]"]  # bare at +3, NLL switched at +2
    assert measured[2:5] == ["0.80", "+2.0 [+2.0, +2.0]; +3.0 [+3.0, +3.0]", "; ".join(3 * ["+3.0 [+3.0, +3.0]"])]
    reading = next(block for block in section.blocks if isinstance(block, str))
    assert "InfoNCE without −log η has the highest accuracy on a balanced test, 53.3\N{NO-BREAK SPACE}%" in reading
    for block in section.blocks:
        if isinstance(block, charts.Figure):
            drawing.draw(block)
    assert page.section(rows[:1]).title
    assert findings.claims(rows[:1]) == {}
