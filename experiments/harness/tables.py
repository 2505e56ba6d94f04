"""Tables: computed from rows, printed in the terminal, and written between markers of Markdown pages.

<!-- table: density-kl -->
…replaced by `python -m experiments report`…
<!-- end -->
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from experiments.harness.claims import Claim, Finding

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """Cells of text under a header; the first column is a name. One number (± half of its interval) per cell.

    Attributes:
        name: the marker's, "density-kl".
        header: column titles with units.
        rows: of cells.
        title: one line above it in the terminal.
    """

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.name}: a row has {len(row)} cells under {len(self.header)} titles: {row}")

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)

    def show(self) -> None:
        """Prints the table, at most 100 columns wide."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(title=self.title or self.name, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for place, name in enumerate(self.header):
            is_number = place > 0 and all(len(row[place]) < 30 for row in self.rows)
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console = Console()
        Console(width=min(100, console.width) if console.is_terminal else 100).print(table, markup=False)


def claims_table(claims: Sequence[Claim], findings: Mapping[str, Finding], name: str) -> Table:
    """The claims with a finding, each with its verdict."""
    rows = [
        [
            claim.text,
            claim.paper,
            findings[claim.key].ours,
            findings[claim.key].on,
            f"**{findings[claim.key].verdict}**",
        ]
        for claim in claims
        if claim.key in findings
    ]
    return Table(name, ("claim", "the paper", "ours", "on", "verdict"), rows)


def filled(text: str, table: Callable[[str], str | None]) -> str:
    """A page with its marked tables replaced; a table that is None stays as it is."""

    def fill(found: re.Match[str]) -> str:
        body = table(found[2])
        return found[0] if body is None else f"{found[1]}\n{body}\n{found[3]}"

    return MARKED.sub(fill, text)
