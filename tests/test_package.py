"""The package as it is installed: its names, its imports, its command."""

import compileall
import inspect
import os
import re
import shutil
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


@pytest.mark.slow
def test_importing_every_name_takes_a_tenth_of_a_second_after_torch(tmp_path) -> None:
    """Processor time with bytecode in place, as after an installation; the best of three, for busy machines."""
    code = """
import time, torch
start = time.process_time()
import softnce
for name in softnce.__all__:
    getattr(softnce, name)
print(time.process_time() - start)
"""
    package = tmp_path / "softnce"
    shutil.copytree(Path(softnce.__file__).parent, package, ignore=shutil.ignore_patterns("lab", "__pycache__"))
    compileall.compile_dir(package, quiet=1)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    runs = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(3)
    )
    assert min(float(run.stdout) for run in runs) <= 0.1


@pytest.mark.slow
def test_the_library_works_without_numpy() -> None:
    """Everything but ``SoftTargets.numpy`` and ``LabelIndex`` (faiss): with numpy hidden from Python and from torch."""
    code = """
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["numpy"] = None
import tempfile, torch, softnce
from softnce import SoftTargets, calibration, distributions, draws, dynamics, functional, heads, information
from softnce import mixing, noise
from softnce.teacher import TeacherOutputs
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
softnce.ExpectedInfoNCE()(logits, labels), softnce.NLL()(logits, labels), functional.ranking(logits)
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
print("done")
"""
    assert python(code) == "done\n"


def test_torch_is_the_only_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [requirement.split(">")[0] for requirement in project["dependencies"]] == ["torch"]


def test_every_public_name_is_there() -> None:
    for name in softnce.__all__:
        assert getattr(softnce, name) is not None
    assert softnce.__all__ == sorted(softnce.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


def public_names() -> dict[str, object]:
    """Every public name of the package and of its public modules."""
    found = {name: getattr(softnce, name) for name in softnce.__all__}
    for module in [value for value in found.values() if inspect.ismodule(value)]:
        names = getattr(module, "__all__", vars(module))
        for name in (name for name in names if not name.startswith("_")):
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(module.__name__):
                found[f"{module.__name__.removeprefix('softnce.')}.{name}"] = value
    return found


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert public_names()[name].__doc__


@pytest.mark.parametrize("name", softnce.__all__)
def test_the_docs_mention_every_public_name(name: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert re.search(rf"\b{name}\b", pages)


def test_help_lists_every_command(capsys: pytest.CaptureFixture) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in COMMANDS)
    main(["--version"])
    assert capsys.readouterr().out.strip() == softnce.__version__
