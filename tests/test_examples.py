"""Every file in examples/ runs, at small size, and learns something. Those of absent frameworks are skipped."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from example_files import EXAMPLES, example
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
    "torchrec_sharding": ["torchrec", "fbgemm_gpu"],
    "torchvision_cutmix": ["torchvision"],
}
"""Modules of the examples that go beyond torch and scikit-learn."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what the frameworks say of each other
]


def skip_without_frameworks(name: str) -> None:
    for module in NEEDS.get(name, []):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: see docs/examples.md")


def load(name: str) -> ModuleType:
    skip_without_frameworks(name)
    return example(name)


def run(name: str, *arguments: str, processes: int | None = None) -> str:
    """What a script prints, on its own or by torchrun."""
    skip_without_frameworks(name)
    command = [sys.executable]
    if processes is not None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command += ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", f"--master_port={port}"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(EXAMPLES / f"{name}.py"), *arguments],
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


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("plain_pytorch", {"epochs": 4}),
        ("timm_mixup", {"epochs": 6, "samples": 768}),
        ("torchvision_cutmix", {"epochs": 8, "samples": 768}),
        ("lightning_module", {"epochs": 3}),
        ("accelerate_loop", {"epochs": 3}),
        ("hugging_face_trainer", {"samples": 768, "epochs": 4}),
        ("skorch_grid_search", {"epochs": 3}),
        ("keras_on_torch", {"epochs": 4}),
    ],
)
def test_ten_classes(name: str, sizes: dict[str, int]) -> None:
    torch.manual_seed(0)
    assert load(name).main(**sizes) > 4 * CHANCE


def test_the_estimator() -> None:
    assert load("scikit_learn_estimator").main(epochs=10) > 0.9


def test_votes_tell_more_than_their_majority() -> None:
    divergence = load("human_votes").main(samples=2000, steps=200)
    assert divergence["votes"] < divergence["majority label"] / 2


def test_text_and_images_of_ones_own() -> None:
    likely = load("text_from_csv").main(new=("the soup was superb", "a bland soup", "the soup was awful"))["positive"]
    assert likely[0] > 0.8 > 0.5 > likely[1] > likely[2]  # two of three annotators are against bland
    found = load("image_folder").main()
    assert found == sorted(str(label) for label in load_digits().target[600:610])  # files in the order of their classes


def test_a_student_learns_from_a_file() -> None:
    accuracy = load("distillation_from_file").main(samples=2000, steps=200)
    assert accuracy["teacher"] > accuracy["labels"] > 0.3


def test_a_teacher_of_the_top_k_is_one_group() -> None:
    found = load("distil_top_k").main()
    assert found["group"] < min(found["spread"], found["renormalise"]) / 2


def test_a_recommender_finds_the_next_item() -> None:
    assert load("recommender").main(items=500, users=2000, epochs=4)["recall@10"] > 0.5  # the most popular: below 0.3


def test_many_classes() -> None:
    found, _ = load("many_classes").main(num_classes=20_000, steps=150)
    assert found > 0.9


def test_a_knowledge_graph() -> None:
    assert load("knowledge_graph").main(entities=400, epochs=20) > 0.1  # a random order of 400 gives 0.016


def test_nodes_of_a_graph() -> None:
    assert load("pyg_nodes").main(nodes_per_class=100, steps=60) > 0.6


def test_soft_positives_rank_the_group() -> None:
    found = load("image_text_pairs").main(steps=100, batch=128)
    assert found["soft positives"] > found["one positive"]


def test_sentence_pairs() -> None:
    assert load("sentence_transformers_soft_pairs").main(pairs=300, epochs=3) > 0.8


def test_two_processes_print_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("ddp_torchrun").main()
    assert run("ddp_torchrun", processes=2) == capsys.readouterr().out
    assert accuracy > 4 * CHANCE


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss (\S+)", text)]


def test_a_sharded_table_is_one_table() -> None:
    one, two = (run("torchrec_sharding", "100000", "5", processes=n) for n in (1, 2))
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    assert losses(one)[-1] < losses(one)[0] - 1
    # Two ranks exchange ids, rows and gradients of the classes named, whatever the number of classes.
    named, sent = int(re.findall(r"(\d+) of", two)[-1]), int(re.search(r"exchange: ([\d,]+)", two)[1].replace(",", ""))
    assert sent < 3 * named * 16 * 4


def test_workers_of_ray() -> None:
    accuracy = re.search(r"accuracy ([\d.]+)%", run("ray_train"))
    assert float(accuracy[1]) / 100 > 4 * CHANCE
