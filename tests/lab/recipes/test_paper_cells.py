"""The paper's 15 cells at their real size: ViT-B/16 at 224 px from an MAE file, the 4096-wide head, all classes."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from softnce.lab import recipes
from softnce.lab.train.run import prepare

import lightning as L  # isort: skip
import timm  # isort: skip

CLASSES = {"imagenet": 1000, "tiny-imagenet": 200, "cifar100": 100}


def picture(path, random):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """One small image a class, in each data set's own layout, and an MAE encoder under its original names."""
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for k in range(1000):
        for split in ("train", "val"):
            picture(root / "imagenet" / split / f"n{k:08}" / "1.JPEG", random)
    tiny = root / "tiny-imagenet"
    names = [f"n{k:08}" for k in range(200)]
    for k, name in enumerate(names):
        picture(tiny / "train" / name / "images" / f"{name}_0.JPEG", random)
        picture(tiny / "val" / "images" / f"val_{k}.JPEG", random)
    (tiny / "wnids.txt").write_text("\n".join(names))
    (tiny / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{k}.JPEG\t{name}\t0\t0\t1\t1\n" for k, name in enumerate(names))
    )
    (root / "cifar100").mkdir()
    for split in ("train", "test"):
        x = random.integers(0, 256, (100, 32, 32, 3), np.uint8)
        np.savez(root / "cifar100" / f"{split}.npz", x=x, y=np.arange(100))
    torch.manual_seed(0)
    encoder = timm.create_model("vit_base_patch16_224", num_classes=0).state_dict()
    torch.save({"model": encoder}, root / "mae_pretrain_vit_base.pth")
    return root


@pytest.fixture(autouse=True)
def memory_given_back():
    """A trainer and its module refer to each other; without a collection each cell keeps its gigabyte."""
    yield
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec")
@pytest.mark.parametrize("name", recipes.PAPER)
def test_cell_trains_at_real_size(name, data, tmp_path):
    recipe = recipes.load(name)
    kind = recipe.data.kind
    steps = 2 if kind == "cifar100" else 1
    recipe = replace(
        recipe,
        data=replace(recipe.data, dir=data / kind, workers=0),
        model=replace(recipe.model, weights=str(data / "mae_pretrain_vit_base.pth")),
        optimiser=replace(recipe.optimiser, batch=2),
        # without warm-up, whose first step has the learning rate 0
        schedule=replace(recipe.schedule, max_steps=steps, warmup_epochs=0.0),
        compute=replace(recipe.compute, accelerator="cpu", precision="32", micro_batch=0),
    )
    run = prepare(recipe, tmp_path / "run")
    network = run.classifier.model
    assert network.head[0].weight.shape == (4096, 768)
    assert network.head[6].weight.shape == (CLASSES[kind], 4096)
    assert network.backbone.fc_norm.weight.shape == (768,)
    before = {
        k: v.clone() for k, v in network.state_dict().items() if k.endswith(("blocks.0.attn.qkv.weight", "6.weight"))
    }
    losses = []
    run.classifier.log = lambda key, value, **_: losses.append(value) if key == "train/loss" else None
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(run.classifier, datamodule=run.data)
    assert len(losses) == trainer.global_step == steps
    assert all(np.isfinite(losses))
    for key, value in before.items():
        now = network.state_dict()[key]
        assert now.isfinite().all()
        assert not torch.equal(now, value), key
