from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.image_loader import ImageRows
from softnce.lab.data.image_module import ImageData
from softnce.lab.data.images import ImageFiles
from softnce.lab.recipes.recipe import Data, Model, Recipe


@pytest.fixture
def files(tmp_path):
    paths = []
    for i in range(6):
        paths.append(tmp_path / f"{i}.png")
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(paths[-1])
    return paths


def red(image):
    return torch.tensor(float(image.getpixel((0, 0))[0]))


def test_corrupt_image_fails_with_its_path(files):
    files[2].write_bytes(files[2].read_bytes()[:40])
    rows = ImageRows(ImageFiles(files, [0, 1] * 3, ["a", "b"]), red)
    with pytest.raises(RuntimeError, match=r"2\.png.*data\.corrupt skip"):
        next(iter(Loader(rows, EvaluationBatches(6, 6))))


def test_corrupt_image_is_replaced_by_the_next_of_its_class_and_counted(files):
    files[4].write_bytes(b"nothing")
    rows = ImageRows(ImageFiles(files, [0, 1] * 3, ["a", "b"]), red, skip=True)
    loader = Loader(rows, EvaluationBatches(6, 6))
    with pytest.warns(UserWarning, match=r"skipped .*4\.png"):
        batch = next(iter(loader))
    assert batch.skipped == 1
    assert batch.inputs.tolist() == [0, 40, 80, 120, 0, 200]  # 4 → 0, both of class a
    assert next(iter(loader)).skipped == 1  # counted again, named once
    for i in (0, 2):
        files[i].write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(RuntimeError, match="no image of class a can be read"),
    ):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # as many as this machine has cores, or more
def test_loaders_divide_the_cores_of_one_machine_among_its_devices(monkeypatch):
    """16 machines of 8 devices and 64 cores: 8 loader processes per device."""
    data = ImageData(Recipe(data=Data("digits", image_size=32, workers=9), model=Model("test_vit")), world=128)
    monkeypatch.setattr("softnce.lab.cores.cores", lambda: 64)
    data.trainer = SimpleNamespace(global_rank=0, num_devices=8)
    assert data.train_dataloader().num_workers == data.val_dataloader().num_workers == 8
    data.trainer.num_devices = 1
    assert data.train_dataloader().num_workers == 9  # as many as asked for
