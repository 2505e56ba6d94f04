"""Every file in examples/ runs, at small size, and learns something. Those of absent frameworks are skipped."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from example_files import EXAMPLES, example
from ranks import free_port
from sklearn.datasets import load_digits

from experiments.models import torchvision_operators  # noqa: F401  (timm, Lightning and transformers import torchvision)

ROOT = Path(__file__).parent.parent
CHANCE = 0.1
"""Of ten classes; every classifier below must do far better."""

NEEDS = {
    "accelerate_loop": ["accelerate"],
    "hugging_face_trainer": ["transformers", "accelerate"],
    "keras_on_torch": ["keras"],
    "lightning_module": ["lightning"],
    "pyg_nodes": ["torch_geometric"],
    "ray_train": ["ray", "pandas", "pyarrow"],
    "sentence_transformers_soft_pairs": ["sentence_transformers", "datasets"],
    "skorch_grid_search": ["skorch"],
    "timm_mixup": ["timm"],
    "torchrec_two_ranks": ["torchrec", "fbgemm_gpu"],
    "torchvision_cutmix": ["torchvision"],
}
"""Modules of the examples that go beyond torch and scikit-learn."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what the frameworks say of each other
]


def load(name: str) -> ModuleType:
    for module in NEEDS.get(name, []):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: see docs/examples.md")
    return example(name)


def run(name: str, *arguments: str, processes: int | None = None) -> str:
    """What a script prints, on its own or by torchrun."""
    load(name)
    ranks = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", f"--master_port={free_port()}"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *(ranks if processes else []), str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_is_tested_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    text = Path(__file__).read_text()
    assert [name for name in names if f'("{name}"' not in text] == []
    page = (ROOT / "docs" / "examples.md").read_text()
    assert [name for name in names if f"../examples/{name}.py" not in page] == []


def learns(accuracy: float) -> bool:
    return accuracy > 4 * CHANCE


@pytest.mark.parametrize(
    ("name", "sizes", "is_good"),
    [
        ("plain_pytorch", {"epochs": 4}, learns),
        ("timm_mixup", {"epochs": 6, "samples": 768}, learns),
        ("torchvision_cutmix", {"epochs": 8, "samples": 768}, learns),
        ("lightning_module", {"epochs": 3}, learns),
        ("accelerate_loop", {"epochs": 3}, learns),
        ("hugging_face_trainer", {"samples": 768, "epochs": 4}, learns),
        ("skorch_grid_search", {"epochs": 3}, learns),
        ("keras_on_torch", {"epochs": 4}, learns),
        ("scikit_learn_estimator", {"epochs": 10}, lambda accuracy: accuracy > 0.9),
        ("human_votes", {"samples": 2000, "steps": 200}, lambda kl: kl["votes"] < kl["majority label"] / 2),
        # the most popular items: below 0.3
        ("recommender", {"items": 500, "users": 2000, "epochs": 4}, lambda found: found["recall@10"] > 0.5),
        ("distillation_from_file", {"samples": 2000, "steps": 200}, lambda a: a["teacher"] > a["labels"] > 0.3),
        ("distil_top_k", {}, lambda kl: kl["group"] < min(kl["spread"], kl["renormalise"]) / 2),
        ("many_classes", {"num_classes": 20_000, "steps": 150}, lambda found: found[0] > 0.9),
        ("knowledge_graph", {"entities": 400, "epochs": 20}, lambda mrr: mrr > 0.1),  # a random order gives 0.016
        ("pyg_nodes", {"nodes_per_class": 100, "steps": 60}, lambda accuracy: accuracy > 0.6),
        ("image_text_pairs", {"steps": 100, "batch": 128}, lambda a: a["soft positives"] > a["one positive"]),
        ("sentence_transformers_soft_pairs", {"pairs": 300, "epochs": 3}, lambda correlation: correlation > 0.8),
    ],
)
def test_examples_learn(name: str, sizes: dict[str, int], is_good: Callable[[Any], bool]) -> None:
    torch.manual_seed(0)
    found = load(name).main(**sizes)
    assert is_good(found), found


def test_text_and_images_of_ones_own() -> None:
    likely = load("text_from_csv").main(new=("the soup was superb", "a bland soup", "the soup was awful"))["positive"]
    assert likely[0] > 0.8 > 0.5 > likely[1] > likely[2]  # two of three annotators are against bland
    found = load("image_folder").main()
    assert found == sorted(str(label) for label in load_digits().target[600:610])  # files in the order of their classes


def test_two_processes_print_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("ddp_torchrun").main()
    assert run("ddp_torchrun", processes=2) == capsys.readouterr().out
    assert learns(accuracy)


def test_a_table_on_two_ranks_of_torchrec_is_one_table(tmp_path: Path) -> None:
    """And a step exchanges ids, rows and gradients of the places named, whatever the number of places."""
    places, visits, named = 100_000, 8, 128 * 8 + 1024
    lines = [f"{user} {' '.join(str((user * 131 + n * 997) % places) for n in range(visits))}" for user in range(2000)]
    (tmp_path / "train.txt").write_text("\n".join([*lines, f"2000 {places - 1}"]))
    printed = run("torchrec_two_ranks", str(tmp_path / "train.txt"), "5", processes=2)
    first, last, difference = map(float, re.search(r"loss (\S+) to (\S+); .* by (\S+)", printed).groups())
    assert difference < 1e-5
    assert last < first
    assert int(re.search(r"step: ([\d,]+)", printed)[1].replace(",", "")) < 3 * named * 64 * 4


def test_workers_of_ray() -> None:
    accuracy = re.search(r"accuracy ([\d.]+)%", run("ray_train"))
    assert learns(float(accuracy[1]) / 100)
