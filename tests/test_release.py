"""What is released: the wheel and the sdist, installed where nothing but torch is, and used by another project."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import softnce

ROOT = Path(__file__).parent.parent
SCRIPT = """
import softnce, sys, torch
from softnce import ExpectedInfoNCE, mixing

torch.manual_seed(0)
x = torch.randn(256, 2)
labels = (x[:, 0] > 0).long()
model, criterion = torch.nn.Linear(2, 2), ExpectedInfoNCE()
optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
for _ in range(30):
    mixed, targets = mixing.mixup(x, labels, num_classes=2, alpha=0.2)
    optimiser.zero_grad()
    criterion(model(mixed), targets).backward()
    optimiser.step()
assert (model(x).argmax(1) == labels).float().mean() > 0.95
assert "numpy" not in sys.modules
print(softnce.__version__, softnce.__file__)
"""
PROJECT = """
import torch
from torch import Tensor, nn

from softnce import BatchCandidates, ExpectedInfoNCE, SampledCandidates, SoftTargetInfoNCE, SoftTargets, calibration
from softnce.heads import LabelEmbeddingHead


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = LabelEmbeddingHead(8, 100)
        self.criterion = ExpectedInfoNCE(label_smoothing=0.1)
        self.contrast = SoftTargetInfoNCE(candidates=BatchCandidates() + SampledCandidates(64), reduction="mean")

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        targets = SoftTargets.from_labels(labels, num_classes=100)
        mixed: SoftTargets = targets.mix(targets.flip(0), 0.7)
        logits: Tensor = self.head(features)
        return self.criterion(logits, mixed) + self.head.loss(features, mixed, self.contrast)


error: Tensor = calibration.expected_calibration_error(torch.rand(4, 3).softmax(1), torch.randint(3, (4,)))
temperature: float = calibration.fit_temperature(torch.rand(4, 3), torch.randint(3, (4,)))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment that holds the wheel and, linked, torch with what torch requires."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in requirements("torch"):
        for entry in {Path(str(file)).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (packages / entry).exists():
                (packages / entry).symlink_to(Path(str(distribution(name).locate_file(entry))))
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(built[0])], check=True)
    return python


def requirements(name: str) -> set[str]:
    """The distribution and everything it requires that is installed."""
    found, todo = set(), [name]
    while todo:
        name = todo.pop()
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        if name not in found:
            found.add(name)
            todo += [re.match(r"[\w.-]+", line)[0] for line in needed if "extra ==" not in line]
    return found


def run(python: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(python), *arguments], env=environment, cwd=python.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_one_version() -> None:
    version = softnce.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1] == version
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]


@pytest.mark.slow
def test_wheel_and_sdist_hold_what_they_should(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    files = zipfile.ZipFile(wheel).namelist()
    assert {"softnce/py.typed", "softnce/lab/report/page.html", "softnce/lab/studies/digits/run.py"} <= set(files)
    assert all(name.startswith(("softnce/", f"softnce-{softnce.__version__}.dist-info/")) for name in files)
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "src/softnce/losses.py",
        "tests/test_losses.py",
    } <= sources


@pytest.mark.slow
def test_the_wheel_works_beside_torch_alone(clean: Path) -> None:
    version, where = run(clean, "-c", SCRIPT).split()
    assert version == softnce.__version__
    assert Path(where).is_relative_to(clean.parent.parent)
    assert "usage: softnce" in run(clean, "-m", "softnce", "--help")


@pytest.mark.slow
def test_a_users_project_passes_mypy_strict(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    arguments = ["--strict", "--config-file=", f"--python-executable={clean}", f"--cache-dir={tmp_path}", "project.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
