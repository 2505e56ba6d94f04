"""Additions to Markdown for the site: generated tables, dark figures, the code of examples, links out of ``docs``, wide
tables, the options of losses, and cross-references written for ``help()``."""

import re
import tomllib
from itertools import cycle
from pathlib import Path
from textwrap import indent
from typing import Any

import griffe

from softnce._core import options

TABLE = re.compile(r"^\[(\**)([^]*]+)\**\]\([\w./]*tables/([\w-]+)\.md\)$", re.MULTILINE)
EXAMPLE = re.compile(r"^- \[([^\]]+)\]\(\.\./(examples/\w+\.py)\): (.*)$", re.MULTILINE)
FIGURE = re.compile(r"^!\[([^\]]+)\]\(([\w./-]+)\.svg\)(\{.*\})?$", re.MULTILINE)
LONG = 30  # characters of a cell that is tall and narrow on a phone, if there are two more


def on_config(config: Any, **_: Any) -> Any:
    """The site links to the repository if ``[project.urls]`` of pyproject.toml has a ``Repository``."""
    with (Path(config["docs_dir"]).parent / "pyproject.toml").open("rb") as file:
        config["repo_url"] = tomllib.load(file)["project"]["urls"].get("Repository")
    config["repo_name"] = config["repo_url"] and config["site_name"]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files outside ``docs`` (examples, sources) work in the repository; on the site they are plain text."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent
    if page.file.src_uri == "changes.md":  # written for the repository's top
        markdown = re.sub(r"\]\((?!https?:)", "](../", (docs.parent / "CHANGELOG.md").read_text(encoding="utf-8"))
        markdown = markdown.replace("](../docs/", "](")

    markdown = FIGURE.sub(r"![\1](\2.svg#only-light)\3\n![\1](\2-dark.svg#only-dark)\3", markdown)
    if page.file.src_uri == "examples.md":
        markdown = EXAMPLE.sub(r'??? example "\1: \3"\n\n    ```py\n    --8<-- "\2"\n    ```\n', markdown)
    markdown = TABLE.sub(lambda link: _shown(*link.groups(), docs), markdown)

    def plain(link: re.Match[str]) -> str:
        return link[0] if (here / link[2]).resolve().is_relative_to(docs) else link[1]

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]*)[^)]*\)", plain, markdown)


def _shown(bold: str, title: str, name: str, docs: Path) -> str:
    """A generated table in the place of a link to it; one whose title is not bold is folded."""
    _, _, table = (docs / "results" / "tables" / f"{name}.md").read_text(encoding="utf-8").partition("\n\n")
    table = table.replace("](../", "](")  # the table's file lies one folder below
    if name.endswith("claims"):
        return table
    return f"**{title}**\n\n{table}" if bold else f'??? abstract "{title}"\n\n' + indent(table, "    ")


def on_page_content(html: str, **_: Any) -> str:
    """Fit tables to narrow columns: names may break where a reader would, and long rows can become cards. Numbers stay
    with their units."""
    html = re.sub(r"<table>.*?</table>", lambda table: _labelled(_breakable(table[0])), html, flags=re.DOTALL)
    parts = re.split(r"(<pre.*?</pre>|<code.*?</code>)", html, flags=re.DOTALL)
    parts[::2] = [
        re.sub(r"(?<=\d) (?=(?:%|±|ms|[kMG]B|nats)(?!\w))|(?<=±) (?=\d)", "&nbsp;", part) for part in parts[::2]
    ]
    return "".join(parts)


def _breakable(table: str) -> str:
    """Names such as ``tests/test_theory.py::test_…`` get places to break at."""
    return re.sub(r"(?<=<code>)[^<]{25,}", lambda name: re.sub(r"::|[_/.,=]|\((?!\))", r"\g<0><wbr>", name[0]), table)


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


class Methods(griffe.Extension):
    """``mix = _algebra.mix`` in the body of a class is shown as that function."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            found = re.fullmatch(r"(?:classmethod\()?(_\w+\.\w+)\)?", str(getattr(member, "value", "")))
            if found and cls.module.parent:
                cls.set_member(name, griffe.Alias(name, f"{cls.module.parent.path}.{found[1]}", parent=cls))


class Options(griffe.Extension):
    """``**given: Unpack[options.OfNLL]`` is shown as the options that the dictionary declares, with their defaults."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        unpacked = next((p for p in func.parameters if p.kind is griffe.ParameterKind.var_keyword), None)
        found = re.search(r"Unpack\[.*?(\w+)\]", str(unpacked.annotation)) if unpacked else None
        kind = getattr(options, found[1], None) if found else None
        if unpacked is None or kind not in options.DECLARED:
            return
        declared = {name: option for name, option in options.DECLARED[kind].items() if name not in func.parameters}
        del func.parameters[unpacked.name]
        for name, option in declared.items():
            keyword_only = griffe.ParameterKind.keyword_only
            func.parameters.add(griffe.Parameter(name, kind=keyword_only, default=repr(option.default)))
        lines = "\n".join(f"- `{name}` = `{option.default!r}`: {option.doc}" for name, option in declared.items())
        owner = func.parent if func.name == "__init__" and func.parent else func
        if owner.docstring:
            owner.docstring.value += f"\n\n**Options**\n\n{lines}"


def _link(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
