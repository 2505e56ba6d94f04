"""Which loss to use when: what the studies advise, each line with the measurement behind it.

A study's ``findings.py`` may advise:

    def choices(rows: Sequence[Row]) -> list[Choice]:
        return [Choice("votes of several people", "all logits fit", "`SoftTargetCrossEntropy`", "KL −0.018 nats")]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from softnce.lab.experiment.text import prose


@dataclass(frozen=True)
class Choice:
    """A line of the table.

    Attributes:
        targets: what the user has: labels, smoothed labels, votes, …
        setting: classes, batch and what else decides.
        use: the loss, in Markdown.
        measured: the figures behind it; may be written over several lines.
    """

    targets: str
    setting: str
    use: str
    measured: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", prose(self.measured))


def as_markdown(advised: Mapping[str, Sequence[Choice]]) -> str:
    """The table, in the order of the studies, by their names."""
    lines = ["| your targets | your setting | use | measured (study) |", "|---|---|---|---|"]
    for study, choices in advised.items():
        for one in choices:
            lines.append(f"| {one.targets} | {one.setting} | {one.use} | {one.measured} (`{study}`) |")
    return "\n".join(lines) + "\n"
