"""What the package imports is what it declares, each with a lower bound, and the library imports torch alone."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"faiss-cpu": "faiss", "pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Distributions whose module has another name."""
THROUGH_OTHERS = {"onnx", "onnxscript", "tensorboard", "wandb"}
"""What torch and Lightning import where they are asked for ONNX or a logger."""
COMMANDS = {"hatchling", "mypy", "pytest_xdist", "ruff"}
SKIPPED_WITHOUT = {"accelerate", "transformers"}
"""Of tests in other people's training loops, which run where those are installed."""

INSTALLED_BY_HAND = {"torchrec"}
"""By examples: their own dependencies do not fit the others'."""


def imported(*paths: Path) -> set[str]:
    """Top-level modules of every import in files and folders, also of imports inside functions."""
    found = set()
    for path in (file for given in paths for file in ([given] if given.is_file() else given.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module)
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"softnce"}


def declared(*extras: str) -> set[str]:
    """Modules of the requirements of some extras."""
    names = (re.match(r"[\w-]+", requirement)[0] for extra in extras for requirement in EXTRAS[extra])
    return {MODULES.get(name, name.replace("-", "_")) for name in names} - {"softnce"}


def test_declared_is_imported() -> None:
    extras = [extra for extra in EXTRAS if extra not in ("dev", "docs", "examples")]
    found = imported(ROOT / "src", ROOT / "experiments") - {"experiments"}
    assert declared(*extras) - THROUGH_OTHERS | {"torch"} == found


def test_the_library_needs_torch_alone_and_faiss_or_scikit_learn_where_asked_for() -> None:
    package = ROOT / "src" / "softnce"
    library = [path for path in package.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "lab")]
    assert imported(*library) == {"torch", "faiss", "numpy", "sklearn"}


def test_tests_need_nothing_undeclared() -> None:
    helpers = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"lab", "experiments"}
    assert imported(ROOT / "tests") - helpers <= declared(*EXTRAS) | {"torch"} | SKIPPED_WITHOUT
    assert declared("dev") - COMMANDS <= imported(ROOT / "tests")


def test_examples_need_nothing_undeclared() -> None:
    found = imported(ROOT / "examples")
    assert found - INSTALLED_BY_HAND <= declared(*EXTRAS) | {"torch"}
    assert declared("examples") <= found


def test_every_requirement_has_a_lower_bound() -> None:
    everything = [*PROJECT["dependencies"], *(requirement for extra in EXTRAS.values() for requirement in extra)]
    assert all(">=" in requirement for requirement in everything if not requirement.startswith("softnce["))


def test_constraints_fix_what_make_installs() -> None:
    fixed = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]}
    installed = [requirement for extra, found in EXTRAS.items() if extra != "wandb" for requirement in found]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in installed} - {"softnce"}
    assert names <= fixed
