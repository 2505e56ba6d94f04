"""Tables of text: printed, or pasted into a Markdown page as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column is a name."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self) -> "RichTable":
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, title_justify="left", title_style="bold")
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row, style="bold" if row[0].startswith("softnce") else "")
        return table
