"""The table of which loss to use when."""

from softnce.lab import studies
from softnce.lab.experiment.choices import Choice, as_markdown


def test_the_table_has_a_line_for_every_choice_with_its_study():
    one = Choice("votes", "all logits fit", "`NLL`", "a\n   gap of -0.1 nats")
    text = as_markdown({"human-labels": [one], "digits": []})
    assert text.splitlines()[2:] == ["| votes | all logits fit | `NLL` | a gap of −0.1 nats (`human-labels`) |"]


def test_a_study_without_advice_gives_none():
    assert studies.load("dynamics").advise([]) == []
