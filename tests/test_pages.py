"""The examples in README and the guide run as they stand."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import softnce
from softnce import candidates, contrast, functional, heads, losses, noise, targets, validation

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/library.md"])
def test_examples_run(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}, which is not there"


@pytest.mark.parametrize(
    "module", [softnce, targets, functional, losses, noise, heads, validation, candidates, contrast]
)
def test_docstring_examples_run(module) -> None:
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
