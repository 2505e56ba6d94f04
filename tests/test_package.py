"""The package as it is installed: its names, its imports, its command."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import softnce
from softnce.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
LABORATORY = {"lightning", "timm", "torchvision", "torchmetrics", "sklearn", "scipy", "matplotlib", "plotly", "jinja2",
              "jsonargparse", "rich", "yaml", "h5py", "torch_geometric", "faiss"}  # fmt: skip


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_library_imports_torch_only() -> None:
    modules = "softnce, softnce.distributions, softnce.information, softnce.dynamics, softnce.calibration, softnce.cli"
    loaded = python(
        f"import sys, torch; before = set(sys.modules); import {modules}; print(*set(sys.modules) - before)"
    )
    roots = {name.split(".")[0] for name in loaded.split()}
    assert "softnce" in roots
    assert not roots & LABORATORY
    assert "softnce.lab" not in loaded.split()


def test_torch_is_the_only_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [requirement.split(">")[0] for requirement in project["dependencies"]] == ["torch"]


def test_every_public_name_is_there() -> None:
    for name in softnce.__all__:
        assert getattr(softnce, name) is not None
    assert softnce.__all__ == sorted(softnce.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_help_lists_every_command(capsys: pytest.CaptureFixture) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in COMMANDS)
    main(["--version"])
    assert capsys.readouterr().out.strip() == softnce.__version__


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(SystemExit, match="unknown command 'stdy'; the commands are study, report"):
        main(["stdy"])
