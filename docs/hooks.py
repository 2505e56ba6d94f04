"""What the site needs beside Markdown: links out of ``docs``, wide tables, cross-references written for ``help()``."""

import re
from itertools import cycle
from typing import Any

import griffe

LONG = 30  # characters of a cell that is tall and narrow on a phone, if there are two more


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
    """Say which cells are long. ``site.css`` shows rows as cards on phones, but for tables of numbers."""
    texts = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td\b.*?>(.*?)</td>", table, re.DOTALL)]
    heads = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<th\b.*?>(.*?)</th>", table, re.DOTALL)]
    columns = [texts[column :: len(heads)] for column in range(1, len(heads))]
    long = any(sum(map(len, column)) > LONG * len(column) for column in columns)
    if long and len(heads) > 2 and "text-align: right" not in table:
        labels = cycle(heads)
        table = re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels)}"', table)
        return table.replace("<table>", "<table data-cards>")
    cells = iter(texts)
    return re.sub(r"<td\b", lambda cell: cell[0] + " data-long" * (len(next(cells)) > 2 * LONG), table)


class Docstrings(griffe.Extension):
    """Docstrings are written for ``help()``: roles become links to entries that the site has, examples become code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            linked = re.sub(r":(?:func|class|mod|meth|attr):`(~?)([\w.]+)`", _link, obj.docstring.value)
            obj.docstring.value = re.sub(r"^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", linked, flags=re.MULTILINE)


def _link(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
