"""README and site: examples run as they stand, links lead somewhere, the site builds without a warning."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import softnce

ROOT = Path(__file__).parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(softnce.__path__, "softnce."))
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
def test_examples_run(page: str) -> None:
    namespace: dict = {}
    for block in examples(page):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}, which is not there"


def test_theory_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", (ROOT / "docs/theory.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    for path, names in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        for name in names.split("::"):
            assert re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch, "SoftTargets": softnce.SoftTargets}).failed == 0


def test_no_command_that_cannot_work() -> None:
    """Before a release nothing can be installed from an index."""
    for path in [*(ROOT / page for page in PAGES), *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"pip install ['\"]?softnce", path.read_text(encoding="utf-8")), path
