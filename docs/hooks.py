"""What the site needs beside Markdown: links that leave ``docs``, and cross-references written for ``help()``."""

import re
from typing import Any

import griffe


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files outside ``docs`` (examples, sources) work in the repository; on the site they are plain text."""
    return re.sub(r"\[([^\]]+)\]\(\.\./(?!\.)[^)]*\)", r"\1", markdown)


class Roles(griffe.Extension):
    """``:func:`~softnce.noise.smoothed``` in a docstring becomes a link to that entry, if the site has it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r":(?:func|class|mod|meth|attr):`(~?)([\w.]+)`", _link, obj.docstring.value)


def _link(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
