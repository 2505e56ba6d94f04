"""What the site needs beside Markdown: links out of ``docs``, wide tables, cross-references written for ``help()``."""

import re
from itertools import cycle
from typing import Any

import griffe

LONG = 40  # characters of a cell that is tall and narrow on a phone, if there are two more


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files outside ``docs`` (examples, sources) work in the repository; on the site they are plain text."""
    return re.sub(r"\[([^\]]+)\]\(\.\./(?!\.)[^)]*\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Fit tables to narrow columns: names may break where a reader would, and long rows can become cards."""
    return re.sub(r"<table>.*?</table>", lambda table: _labelled(_breakable(table[0])), html, flags=re.DOTALL)


def _breakable(table: str) -> str:
    """Names such as ``tests/test_theory.py::test_…`` get places to break at."""
    return re.sub(r"(?<=<code>)[^<]{25,}", lambda name: re.sub(r"::|[_/(.,=]", r"\g<0><wbr>", name[0]), table)


def _labelled(table: str) -> str:
    """Cells of a table with long cells are labelled by their column; ``site.css`` shows its rows as cards on phones."""
    heads, cells = (
        [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(rf"<{tag}\b.*?>(.*?)</{tag}>", table, re.DOTALL)]
        for tag in ("th", "td")
    )
    columns = [cells[column :: len(heads)] for column in range(len(heads))]
    if len(columns) < 3 or all(sum(map(len, column)) <= LONG * len(column) for column in columns[1:]):
        return table
    labels = cycle(heads)
    labelled = re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels)}"', table)
    return labelled.replace("<table>", "<table data-cards>")


class Roles(griffe.Extension):
    """``:func:`~softnce.noise.smoothed``` in a docstring becomes a link to that entry, if the site has it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r":(?:func|class|mod|meth|attr):`(~?)([\w.]+)`", _link, obj.docstring.value)


def _link(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
