"""The examples in README and docs run as they stand, and links lead somewhere."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import softnce

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(softnce.__path__, "softnce.")
    if not module.name.startswith("softnce.lab") and module.name != "softnce.__main__"
)
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
def test_examples_run(page: str) -> None:
    namespace: dict = {}
    for block in examples(page):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("block", examples("README.md"), ids=lambda block: block.splitlines()[-1][:40])
def test_each_example_of_the_readme_can_be_pasted_alone(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def advice(page: str) -> list[tuple[str, set[str], str]]:
    """Rows of the page's table of losses: study, losses to use, the cell of measured numbers."""
    rows = re.findall(
        r"^\|.*\| ([^|]+) \| ([^|]+ \(`([\w-]+)`\)) \|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
    )
    return [(study, set(re.findall(r"`(\w+)", use.split(", not ")[0])), cell) for use, cell, study in rows]


def numbers(text: str) -> list[str]:
    return re.findall(r"[−+]?\d[\d,]*(?:\.\d+)?", re.sub(r"\w-\d+|\d-\w+", "", text))


def test_the_readme_advises_what_the_whole_table_does() -> None:
    """Every row of README's table is a row of docs/which-loss.md, its losses the same, its numbers rounded at most."""
    whole, short = advice("docs/which-loss.md"), advice("README.md")
    assert len(short) == 8
    for study, losses, cell in short:
        matches = [row for row in whole if row[:2] == (study, losses)]
        assert matches, f"README advises {sorted(losses)} from {study}; docs/which-loss.md does not"
        said = [number for _, _, measured in matches for number in numbers(measured)]
        for number in numbers(cell):
            digits = len(number.partition(".")[2])
            value = float(number.replace("−", "-").replace(",", ""))
            rounded = {round(float(other.replace("−", "-").replace(",", "")), digits) for other in said}
            assert value in rounded, f"README says {number} of {study}; docs/which-loss.md has {said}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}, which is not there"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
