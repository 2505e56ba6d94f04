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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}, which is not there"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
