"""The package as it is built, installed and read: its requirements, its wheel, its size and its shape."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch

import softnce

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "softnce"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = sorted(SOURCE.rglob("*.py"))
SCRIPT = """
# everything but SoftTargets.numpy, LabelIndex and the estimator, without numpy
import sys, warnings
warnings.simplefilter("ignore")
import tempfile, torch, softnce
from softnce import SoftTargets, calibration, distributions, draws, functional, heads, mixing, noise
from softnce.teacher import TeacherOutputs
from softnce.theory import dynamics, information
from torch.utils.data import DataLoader, TensorDataset
labels, logits = torch.tensor([0, 1, 2, 1]), torch.randn(4, 3)
t = SoftTargets.from_labels([0, 1, 2, -100], 3, 0.1)
for made in (t, SoftTargets.from_dense([[0.5, 0.5]]), SoftTargets.from_pairs([[0], [1, 2]], [[1.0], [0.5, 0.5]], 3),
             SoftTargets.from_topk(logits, 2), SoftTargets.from_votes([[1, 2]], 2),
             SoftTargets.from_annotations([0, 0], ["a", "b"], [0, 1], 2).targets):
    repr(made), made.argmax(), made.entropy(), made == made, made[[0]], made[0], made.sample(), made.dense()
list(DataLoader(TensorDataset(labels, t), batch_size=2))
mixing.mixup(torch.rand(4, 2), labels, num_classes=3), mixing.cutmix(torch.rand(4, 1, 3, 3), t, per_row=True)
for draw in (None, draws.Categorical(), draws.Averaged(2), draws.ContinuousCategorical()):
    softnce.SoftTargetInfoNCE(noise.from_labels(labels, 3), draw=draw, label_smoothing=0.1)(logits, labels)
sampled = softnce.BatchCandidates() + softnce.SampledCandidates(4, mix_alpha=1.0)
softnce.SoftTargetInfoNCE(candidates=sampled)(logits, labels)
softnce.ExpectedInfoNCE()(logits, labels), softnce.NLL()(logits, labels), functional.probabilities(logits)
head = heads.LabelEmbeddingHead(2, 3, bias=True)
head.loss(torch.rand(4, 2), labels, softnce.InfoNCE()).backward(), head.topk(torch.rand(4, 2), 2)
meter = calibration.CalibrationMeter()
meter.update(logits, labels), meter.compute(), calibration.fit_temperature(logits, labels)
calibration.expected_calibration_error(logits.softmax(1).tolist(), [0, 1, 2, 1])
distributions.ContinuousCategorical(torch.ones(3) / 3).sample((2,)), information.entropy(torch.ones(3) / 3)
dynamics.score_gradient(logits, t[:3], torch.tensor([0, 1, 2, 1]))
with tempfile.TemporaryDirectory() as folder:
    TeacherOutputs.from_logits(logits, 2).save(folder + "/t.pt", labels)
    TeacherOutputs.load(folder + "/t.pt", labels, 3).targets()

torch.manual_seed(0)
x = torch.randn(256, 2)
labels = (x[:, 0] > 0).long()
model, criterion = torch.nn.Linear(2, 2), softnce.ExpectedInfoNCE()
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
USER = """
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


def imported(*paths: Path) -> set[str]:
    """Top-level modules of every import in files, also of imports inside functions."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"softnce"}


def test_torch_is_the_only_requirement() -> None:
    assert [requirement.split(">")[0] for requirement in PROJECT["dependencies"]] == ["torch"]
    assert imported(*FILES) == {"torch", "faiss", "numpy", "sklearn"}  # the last three where they are asked for
    code = "import sys, torch; before = set(sys.modules); import softnce; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & {"faiss", "numpy", "sklearn", "lightning", "matplotlib"}


def test_everything_imported_is_declared() -> None:
    names = {"faiss-cpu": "faiss", "pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
    extras = PROJECT["optional-dependencies"].values()
    declared = {re.match(r"[\w-]+", line)[0] for extra in extras for line in extra} - {"softnce"}
    declared = {names.get(name, name.replace("-", "_")) for name in declared} | {"torch", "torchrec", "experiments"}
    folders = [ROOT / name for name in ("experiments", "benchmarks", "examples")]
    assert imported(*(path for folder in folders for path in folder.rglob("*.py"))) - {"benchmarks"} <= declared
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]}
    wanted = {re.match(r"[\w-]+", line)[0].lower() for extra in extras for line in extra} - {"softnce"}
    assert wanted <= pinned


def test_no_import_cycle() -> None:
    """Between the library's files, counting imports at the top of a file."""
    names = {path: ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in FILES}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    edges: dict[str, set[str]] = {}
    for path, name in names.items():
        edges[name] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("softnce"):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                edges[name] |= {found if found in names.values() else node.module for found in full} - {"softnce"}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path, name))
        if name not in done:
            for other in sorted(edges.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_functions_are_short() -> None:
    """At most 60 lines, and 8 parameters where they are not a public signature."""
    public = {"autograd.py", "exact.py", "heads.py", "losses.py", "functional.py", "sklearn.py"}
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            is_public = path.name in public and (node.name == "__init__" or not node.name.startswith("_"))
            named = [a.arg for a in [*node.args.args, *node.args.kwonlyargs] if a.arg not in ("self", "cls", "ctx")]
            if node.end_lineno - node.lineno >= 60 or (len(named) > 8 and not is_public):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.name}")
    assert wrong == []


@pytest.mark.parametrize(("noise", "further"), [("uniform", set()), ("running", {"noise.py"})])
@pytest.mark.parametrize("kind", [softnce.InfoNCE, softnce.ExpectedInfoNCE])
def test_a_label_crosses_seven_files(kind, noise: str, further: set[str]) -> None:
    """CONTRIBUTING draws the way of ``loss(logits, labels)``; a trace enters those files and no others."""
    loss, logits, labels = kind(noise), torch.randn(64, 10, requires_grad=True), torch.randint(10, (64,))
    loss(logits, labels)
    entered: set[str] = set()

    def trace(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(SOURCE)):
            entered.add(Path(name).relative_to(SOURCE).as_posix())

    sys.setprofile(trace)
    try:
        loss(logits, labels).backward()
    finally:
        sys.setprofile(None)
    drawn = set(re.findall(r"^ +(?:└ )?([\w/]+\.py)", section("The way of a label"), re.MULTILINE))
    assert len(drawn) <= 7
    assert entered == drawn | further


def section(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition(f"## {title}")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    subprocess.run([*install, str(wheel)], check=True)
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


def test_there_is_one_version() -> None:
    version = softnce.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1] == version


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    assert "softnce/py.typed" in files
    assert all(name.startswith(("softnce/", f"softnce-{softnce.__version__}.dist-info/")) for name in files)
    assert not any("entry_points" in name or "/lab/" in name for name in files)
    assert len(files) <= 60


@pytest.mark.slow
def test_the_wheel_works_beside_torch_alone(clean: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(clean), "-c", SCRIPT], env=environment, cwd=clean.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, where = done.stdout.split()
    assert version == softnce.__version__
    assert Path(where).is_relative_to(clean.parent.parent)


@pytest.mark.slow
def test_a_users_project_passes_mypy_strict(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(USER)
    arguments = ["--strict", "--config-file=", f"--python-executable={clean}", f"--cache-dir={tmp_path}", "project.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
