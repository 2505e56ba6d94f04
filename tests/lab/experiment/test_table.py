from softnce.lab.experiment.table import Table


def test_markdown_can_be_pasted() -> None:
    table = Table("title", ["loss", "a"], [["x", "1"], ["y", "2"]])
    assert table.markdown() == "**title**\n\n| loss | a |\n| --- | ---: |\n| x | 1 |\n| y | 2 |"
