"""Tables: computed from rows, printed in the terminal, and shown by Markdown pages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.harness.claims import Claim, Finding


@dataclass(frozen=True)
class Table:
    """Cells of text under a header; the first column is a name. One number (± half of its interval) per cell."""

    name: str  # of its file, "density-kl"
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = field(default="", kw_only=True)  # above it in the terminal

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.name}: a row has {len(row)} cells under {len(self.header)} titles: {row}")

    def markdown(self) -> str:
        rule = ["---:" if self._is_number(place) else "---" for place in range(len(self.header))]
        return "".join(f"| {' | '.join(line)} |\n" for line in (self.header, rule, *self.rows))

    def show(self) -> None:
        """Prints the table, at most 100 columns wide."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        table = RichTable(title=self.title or self.name, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if self._is_number(place) else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        _print(table)

    def _is_number(self, place: int) -> bool:
        return place > 0 and all(re.match(r"[-−–+±<>]?\d|–|diverged|$", row[place]) for row in self.rows)


@dataclass(frozen=True)
class ClaimList:
    """The claims of an experiment that have a finding, each with its verdict."""

    name: str
    claims: Sequence[Claim]
    findings: Mapping[str, Finding]

    def markdown(self) -> str:
        return "".join(
            f"- **{found.verdict}**: {claim.text}\n"
            f"    - paper ({claim.where}): {claim.paper}\n"
            f"    - ours ({found.on}): {found.ours}\n"
            for claim in self.claims
            if (found := self.findings.get(claim.key))
        )

    def show(self) -> None:
        _print(self.markdown().replace("**", ""))


def _print(what: Any) -> None:
    from rich.console import Console

    console = Console()
    Console(width=min(100, console.width) if console.is_terminal else 100, highlight=False).print(what, markup=False)
