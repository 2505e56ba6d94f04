from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
import torch
from torch import nn

from softnce.lab.data import frozen
from softnce.lab.data.frozen import cache_path, features_of
from softnce.lab.data.images import ImageArray, ImageFiles, Part
from softnce.lab.models.images import build_backbone
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
    assert [path.name for path in recipe.data.cache.iterdir()] == [cache_path(recipe, backbone, collection).name]
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
    backbone, collection = Brightness(), images()
    others = [
        replace(recipe, model=Model("test_vit2")),
        replace(recipe, model=replace(recipe.model, weights="packaged")),
        replace(recipe, data=replace(recipe.data, crop=0.9)),
        replace(recipe, data=replace(recipe.data, mean=[0.1, 0.2, 0.3])),
        replace(recipe, data=replace(recipe.data, corrupt="skip")),
        replace(recipe, compute=replace(recipe.compute, precision="bf16")),
    ]
    paths = {cache_path(changed, backbone, collection) for changed in [recipe, *others]}
    paths.add(cache_path(recipe, backbone, images(6)))
    assert len(paths) == 8
    assert cache_path(replace(recipe, seed=9), backbone, collection) == cache_path(recipe, backbone, collection)


def test_other_weights_of_the_same_size_change_the_file(recipe, tmp_path):
    """In a file that keeps its name and size, or drawn from another seed: what counts is what the network holds."""
    paths = []
    for seed in (0, 1, 1):
        torch.manual_seed(seed)
        torch.save(build_backbone(recipe.model, 32).state_dict(), tmp_path / "weights.pth")
        for weights in (str(tmp_path / "weights.pth"), "none"):
            torch.manual_seed(seed)
            backbone = build_backbone(replace(recipe.model, weights=weights), 32)
            paths.append(cache_path(recipe, backbone, images()))
    assert paths[0] == paths[1] != paths[2] == paths[3] == paths[4]


def test_other_images_under_the_same_names_change_the_file(recipe, tmp_path):
    files = []
    for i in range(4):
        files.append(tmp_path / f"{i}.png")
        PIL.Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(files[-1])
    collection, backbone = ImageFiles(files, [0, 1] * 2, ["a", "b"]), Brightness()
    first, path = features_of(recipe, backbone, collection), cache_path(recipe, backbone, collection)
    content = files[1].read_bytes()
    PIL.Image.new("RGB", (8, 8), (50, 0, 0)).save(files[1])
    assert not torch.equal(features_of(recipe, backbone, collection), first)
    files[1].write_bytes(content)
    assert cache_path(recipe, backbone, collection) == path
    moved = [file.rename(tmp_path / f"moved-{file.name}") for file in files]
    assert cache_path(recipe, backbone, ImageFiles(moved, [0, 1] * 2, ["a", "b"])) == path


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "other"])
def test_a_damaged_file_is_computed_again(recipe, damage):
    backbone, collection = Brightness(), images()
    first = features_of(recipe, backbone, collection)
    path = cache_path(recipe, backbone, collection)
    content = bytearray(path.read_bytes())
    place = content.find(first.numpy().tobytes())
    content[place + 3] ^= 64
    kept = {"flipped": content, "truncated": content[:200], "empty": b""}
    if damage == "other":
        torch.save({"features": first}, path)
    else:
        path.write_bytes(kept[damage])
    with pytest.warns(UserWarning, match=f"computing features again: .*{path.name}"):
        assert torch.equal(features_of(recipe, backbone, collection), first)
    assert torch.equal(features_of(recipe, backbone, collection), first)


def test_a_cache_that_cannot_be_written_costs_a_warning(recipe, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="the features are not kept: cannot write"):
        features = features_of(recipe, Brightness(), images())
    assert features.shape == (5, 3)
