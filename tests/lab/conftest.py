"""Data and a trained network that tests of the laboratory share."""

import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from softnce.lab.recipes.recipe import Compute, Data, Head, Loss, Model, Optimiser, Recipe, Schedule
from softnce.lab.train import run as train

if find_spec("torch_geometric"):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # PyG uses it while it is imported
        import torch_geometric.nn  # noqa: F401


@pytest.fixture(scope="session")
def tissue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of ten small specimens of two stages, for tests that only read."""
    from softnce.lab.data.tissue import TissueConfig, write_tissue

    return write_tissue(TissueConfig(tmp_path_factory.mktemp("tissue"), specimens=10, stages=2, cells=(90, 140)))


@pytest.fixture(scope="session")
def graphs(tissue: Path) -> list:
    from softnce.lab.data.celltypegraph import find_specimens, read_specimen

    return [read_specimen(specimen.path) for specimen in find_specimens(tissue)]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of exported real data, from SOFTNCE_DATA."""
    folder = os.environ.get("SOFTNCE_DATA")
    if not folder:
        pytest.skip("SOFTNCE_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A network that tells dark from bright images, at temperature 2."""
    root = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(0)
    for name, n in (("train", 64), ("test", 30)):
        y = np.arange(n) % 2
        x = random.integers(0, 60, (n, 20, 20, 3)) + 180 * y[:, None, None, None]
        np.savez(root / f"{name}.npz", x=x.astype(np.uint8), y=y, classes=["dark", "bright"])
    recipe = Recipe(
        data=Data("arrays", root, image_size=32, workers=0, augment="none", crop=1.0),
        model=Model("test_vit", drop_path=0.0),
        head=Head("linear"),
        loss=Loss("nll", temperature=2.0),
        optimiser=Optimiser(batch=32, base_lr=2e-2),
        schedule=Schedule(epochs=4, warmup_epochs=1.0),
        compute=Compute("cpu", progress=False),
    )
    results = train.train(recipe, root / "out")
    return root, results
