from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from softnce.lab.data.transforms import (
    STATISTICS,
    evaluation_transform,
    statistics,
    training_transform,
)
from softnce.lab.recipes.recipe import Data, Model
from softnce.lab.seeds import borrowed_generators, start_generators


def test_evaluation_transform_resizes_to_256_and_crops_224():
    width = Image.linear_gradient("L").resize((300, 400)).convert("RGB")
    out = evaluation_transform(Data("imagenet"), Model())(width)
    from torchvision.transforms import functional as F

    resized = F.center_crop(F.resize(width, 256, F.InterpolationMode.BICUBIC), [224, 224])
    expected = F.normalize(F.to_tensor(resized), *STATISTICS["imagenet"])
    torch.testing.assert_close(out, expected)


def test_packaged_weights_get_the_inputs_they_were_trained_on():
    image = Image.new("RGB", (128, 128), (0, 127, 255))
    data = Data("cifar100", image_size=128, crop=1.0)
    pixel = evaluation_transform(data, Model("tf_efficientnet_lite0", "packaged"))(image)[:, 5, 5]
    torch.testing.assert_close(pixel, torch.tensor([-127 / 128, 0.0, 1.0]), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "mean"), [("vit_small_patch16_224.augreg_in21k", 0.5), ("resnet10t", 0.485)])
def test_weights_of_the_hub_get_the_inputs_they_were_trained_on(name, mean):
    data = Data("cifar100")
    assert statistics(data, Model(name, "hub"))[0][0] == mean
    assert statistics(data, Model(name))[0] == tuple(STATISTICS["cifar100"][0])
    assert statistics(replace(data, mean=[0.1, 0.2, 0.3]), Model(name, "hub"))[0] == (0.1, 0.2, 0.3)


def test_augmentation_is_a_function_of_seed_epoch_and_sample():
    image = Image.effect_noise((64, 64), 80).convert("RGB")
    transform = training_transform(Data("imagenet", image_size=32, erasing=1.0), Model())

    def augmented(*key):
        with borrowed_generators():
            start_generators(*key)
            return transform(image)

    torch.manual_seed(7)
    before = torch.rand(1)
    torch.manual_seed(7)
    a, b = augmented(0, 1, 2), augmented(0, 1, 2)
    assert torch.equal(a, b)
    assert torch.equal(torch.rand(1), before)  # and it leaves the caller's generators alone
    assert all(not torch.equal(a, augmented(*key)) for key in ((1, 1, 2), (0, 2, 2), (0, 1, 3)))


@pytest.mark.parametrize(("smallest", "least", "most"), [(0.08, 0.0, 0.5), (0.9, 0.75, 1.0)])
def test_a_random_crop_keeps_a_share_of_the_area(smallest, least, most):
    """Of a gradient, the range of values that is left is the share of one side."""
    image = Image.linear_gradient("L").convert("RGB")
    data = Data("imagenet", image_size=32, smallest_crop=smallest, augment="crop", erasing=0.0)
    transform = training_transform(replace(data, mean=[0.0] * 3, std=[1.0] * 3), Model())
    with borrowed_generators():
        start_generators(0)
        kept = min((crop := transform(image)).max().item() - crop.min().item() for _ in range(50))
    assert least < kept < most


def test_the_strongest_posterisation_is_black():
    from timm.data import auto_augment

    image = Image.effect_noise((8, 8), 80).convert("RGB")
    op = auto_augment.AugmentOp("PosterizeIncreasing", prob=1.0, magnitude=10)
    assert np.asarray(op(image)).max() == 0
