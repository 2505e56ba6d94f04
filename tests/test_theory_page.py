"""docs/theory.md names a test for every equation of the paper; here it is held to that."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", PAGE)))

# All labelled equations of the paper.
LABELS = [
    "eq:nll",
    "eq:softtargetce_optimum",
    "eq:SoftTargetCE",
    "eq:infonce",
    "eq:stnce_likelihood",
    "eq:stnce_marginal",
    "eq:stnce_posterior",
    "eq:stnce_mle",
    "eq:theo-soft-target-infonce",
    "eq:soft-target-infonce",
    "eq:energyXent",
    "fig:SoftTargetInfoNCE_code",
    "eq:softdistribution",
    "eq:MI_prebound",
    "eq:softMIbound",
    "eq:energyXent_",
    "eq:attr_energyXent",
    "eq:rep_energyXent",
    "eq:gradient_magnitude",
    "eq:sdinfonce_deriv1",
    "eq:sdinfonce_deriv2",
    "eq:sdinfonce_posterior",
    "eq:parametric_model",
    "supp:prebound",
    "supp:mi_deriv_1",
    "supp:softMIbound",
]


@cache
def names_in(path: Path) -> set[str]:
    """Names as pytest has them after the file's: ``test_x``, ``TestY::test_z``."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return {name for name in names if name.split("::")[-1].startswith("test_")}


@pytest.mark.parametrize("name", NAMED)
def test_a_test_named_on_the_page_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert (ROOT / file).is_file(), file
    assert test in names_in(ROOT / file)


@pytest.mark.parametrize("label", LABELS)
def test_every_labelled_equation_is_on_the_page(label: str) -> None:
    rows = [line for line in PAGE.splitlines() if f"`{label}`" in line]
    assert any("tests/" in row for row in rows)


def test_every_row_names_a_test_and_a_verdict() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| equation")]
    assert len(rows) > 40
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert "::" in cells[2], row
        assert re.search(r"\b(holds|misprint|corrected|needed)\b", cells[3]), row
