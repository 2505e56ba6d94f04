from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from softnce.lab.data import frozen
from softnce.lab.data.frozen import cache_path, features_of
from softnce.lab.data.images import ImageArray, Part
from softnce.lab.recipes.recipe import Compute, Data, Model, Recipe


class Brightness(nn.Module):
    """Mean of each channel; counts its passes."""

    passes = 0

    def forward(self, images):
        self.passes += 1
        return images.mean((2, 3))


def images(n=5):
    pixels = np.random.default_rng(0).integers(0, 255, (n, 8, 8, 3), dtype=np.uint8)
    return ImageArray(pixels, np.arange(n) % 2, ["a", "b"], "test")


@pytest.fixture
def recipe(tmp_path):
    data = Data("arrays", tmp_path, image_size=8, crop=1.0, workers=0, cache=tmp_path / "cache")
    return Recipe(data=data, model=Model("test_vit"), compute=Compute("cpu", progress=False))


def test_features_are_computed_once_and_kept(recipe):
    backbone, collection = Brightness(), images()
    first = features_of(recipe, backbone, collection)
    assert first.shape == (5, 3)
    assert [path.name for path in recipe.data.cache.iterdir()] == [cache_path(recipe, collection).name]
    passes = backbone.passes
    assert torch.equal(features_of(recipe, backbone, collection), first)
    assert backbone.passes == passes


def test_a_part_takes_its_rows_of_the_whole(recipe):
    backbone, collection = Brightness(), images()
    part = Part(collection, torch.tensor([3, 1]))
    assert torch.equal(features_of(recipe, backbone, part), features_of(recipe, backbone, collection)[[3, 1]])
    assert len(list(recipe.data.cache.iterdir())) == 1


def test_the_last_batch_is_filled_up_and_cut_again(recipe):
    whole = frozen.compute_features(recipe, Brightness(), images(103))
    assert whole.shape == (103, 3)
    torch.testing.assert_close(whole[:5], frozen.compute_features(recipe, Brightness(), images(5)))
    last = Part(images(103), torch.arange(98, 103))
    torch.testing.assert_close(whole[98:], frozen.compute_features(recipe, Brightness(), last))


def test_what_changes_features_changes_the_file(recipe):
    collection = images()
    others = [
        replace(recipe, model=Model("test_vit2")),
        replace(recipe, model=replace(recipe.model, weights="packaged")),
        replace(recipe, data=replace(recipe.data, crop=0.9)),
        replace(recipe, data=replace(recipe.data, mean=[0.1, 0.2, 0.3])),
        replace(recipe, compute=replace(recipe.compute, precision="bf16")),
    ]
    paths = {cache_path(changed, collection) for changed in [recipe, *others]} | {cache_path(recipe, images(6))}
    assert len(paths) == 7
    assert cache_path(replace(recipe, seed=9), collection) == cache_path(recipe, collection)
