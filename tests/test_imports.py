"""Who imports whom: no cycle anywhere, and the layers of the laboratory.

Every import counts, also one inside a function or under ``TYPE_CHECKING``. That a module runs its package's
``__init__`` does not.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "softnce").rglob("*.py"))
}

LAYERS = {
    # who (THIS is the study): whom it may import, beside the library; of several that fit, the first counts
    "studies.THIS.page": "report experiment data losses studies.THIS",
    "studies.THIS.findings": "experiment data losses studies.THIS",
    "studies.THIS": "experiment train data models losses heads recipes studies.THIS GROUND",
    "studies": "experiment",
    "sweeps": "sweeps experiment train recipes data GROUND",
    "report": "report experiment losses atomic",
    "experiment": "experiment data losses heads optimiser recipes GROUND",
    "train": "train data models losses heads optimiser recipes GROUND",
    "data": "data models recipes GROUND",
    "models": "models heads recipes GROUND",
    "recipes": "recipes losses heads GROUND",
    "optimiser": "recipes",
    "losses": "GROUND",
    "heads": "GROUND",
    "targets": "GROUND",
    "scores": "GROUND",
    "configuration": "",
    "seeds": "",
    "atomic": "",
    "stored": "",
    "cores": "",
    "malloc": "",
    "diverged": "",
}
GROUND = "configuration targets scores seeds atomic stored cores malloc diverged"


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that ``module`` imports by name."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(str(origin), names, 0):
                # from package import name: the module of that name, if it is one
                found |= {name if (name := f"{origin}.{alias.name}") in MODULES else origin for alias in names}
            case ast.ImportFrom():
                pytest.fail(f"{module} has a relative import")
    return frozenset(found & MODULES.keys() - {module})


def cycles() -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imports(module)):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            position = stack.index(module)
            group = stack[position:]
            del stack[position:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in MODULES:
        if module not in index:
            visit(module)
    return groups


def test_no_cycle():
    assert cycles() == []


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("softnce.lab")])
def test_the_library_does_not_know_the_laboratory(module):
    assert not [other for other in imports(module) if other.startswith("softnce.lab") and module != "softnce.__main__"]


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("softnce.lab.")])
def test_layers(module):
    parts = module.split(".")
    study = parts[3] if parts[2] == "studies" and len(parts) > 3 else "none"

    def within(module: str, layer: str) -> bool:
        return f"{module}.".startswith(f"softnce.lab.{layer.replace('THIS', study)}.")

    whom = next((whom for who, whom in LAYERS.items() if within(module, who)), None)
    if whom is None:
        assert parts[2] in ("commands", "bench"), "a layer without a rule"  # these may import everything
        return
    allowed = whom.replace("GROUND", GROUND).split()
    laboratory = [other for other in sorted(imports(module)) if other.startswith("softnce.lab")]
    assert not [other for other in laboratory if not any(within(other, layer) for layer in allowed)]


@pytest.mark.parametrize("module", [module for module in MODULES if re.search(r"\.(run|findings)$", module)])
def test_runs_and_findings_do_not_draw(module):
    text = MODULES[module].read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) (matplotlib|plotly|jinja2)\b", text, re.M)
