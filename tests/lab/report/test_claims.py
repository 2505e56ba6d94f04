"""The table of claims as text."""

from softnce.lab.report import claims


def test_the_table_as_text():
    text = claims.as_markdown({"bound": claims.Finding("1.0 | 2", "a table", "reproduced")})
    assert text.count("\n") == 3
    assert "1.0 \\| 2" in text
    assert "**reproduced**" in text
