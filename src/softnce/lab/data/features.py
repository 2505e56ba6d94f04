"""Features and labels to train heads on, in three parts: training, held out (for choices) and test (to report)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from softnce.lab.data.images import Images, digits, open_images, stratified
from softnce.lab.recipes.recipe import Recipe

Source = Literal["digits", "cifar100", "tiny-imagenet"]
NAMES: dict[str, str] = {"digits": "digits", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny ImageNet"}
HELD_OUT = 0.1
FOLDER = "SOFTNCE_DATA"
"""The environment variable that names the folder with the image sets, one folder per set."""


@dataclass(frozen=True)
class Part:
    """Features (N, d) with labels (N,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> "Part":
        return Part(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Features:
    """A data set as a head sees it. Features are standardised by the training part's mean and deviation, or left."""

    train: Part
    held_out: Part
    test: Part
    num_classes: int

    @property
    def dim(self) -> int:
        return self.train.x.shape[1]


def split(train: Part, test: Part, num_classes: int, held_out: float = HELD_OUT, standardised: bool = True) -> Features:
    """Hold a share of every class out of ``train``, the same rows for every seed, and standardise all three parts."""
    kept, held = stratified(train.y, held_out)
    if not standardised:
        return Features(train[kept], train[held], test, num_classes)
    mean, deviation = train.x[kept].mean(0), train.x[kept].std(0)
    # a feature that never varies is left at 0
    scale = torch.where(deviation > 0, 1 / deviation, torch.zeros_like(deviation))
    a, b, c = (Part((part.x - mean) * scale, part.y) for part in (train[kept], train[held], test))
    return Features(a, b, c, num_classes)


@cache
def load(source: Source, standardised: bool = True) -> Features:
    """The features of a data set; those of images are computed once and kept in the laboratory's cache.

    Digits are their 64 pixels. CIFAR-100 and Tiny ImageNet are seen through EfficientNet-Lite0, trained on ImageNet,
    at 128 px; the images are in the folder that SOFTNCE_DATA names.
    """
    if source == "digits":
        train, test = (_pixels(digits(part)) for part in ("train", "evaluation"))
        return split(train, test, 10, standardised=standardised)
    recipe = _recipe(source)
    images = [open_images(recipe.data, part) for part in ("train", "evaluation")]
    train, test = (Part(_features(recipe, part), part.labels) for part in images)
    return split(train, test, len(images[0].classes), standardised=standardised)


def prepare(sources: Iterable[Source]) -> None:
    """Compute what is missing, before several processes ask for it. Raises ValueError where images are missing."""
    for source in dict.fromkeys(sources):
        if source not in get_args(Source):
            raise ValueError(f"data: got {source!r}, need one of {', '.join(get_args(Source))}")
        load(source)


def folder(name: str) -> Path:
    """The folder of the data set ``name``."""
    root = os.environ.get(FOLDER)
    if root is None:
        raise ValueError(f"data: {name} is read from the folder in the environment variable {FOLDER}, which is not set")
    path = Path(root).expanduser() / name
    if not path.is_dir():
        raise ValueError(f"data: {name} is not in {FOLDER}={root}; docs/evidence.md describes the folder")
    return path


def _pixels(images: Images) -> Part:
    import numpy as np

    rows = [np.asarray(images.image(i).convert("L"), dtype=np.float32).ravel() for i in range(len(images.labels))]
    return Part(torch.from_numpy(np.stack(rows)), images.labels)


def _recipe(source: Source) -> Recipe:
    from softnce.lab import recipes

    recipe = recipes.load("laptop/cifar100-features")
    assert isinstance(recipe, Recipe)
    return replace(recipe, data=replace(recipe.data, kind=source, dir=folder(source), workers=0))


def _features(recipe: Recipe, images: Images) -> Tensor:
    from softnce.lab.data.frozen import features_of
    from softnce.lab.models.images import build_backbone

    return features_of(recipe, build_backbone(recipe.model, recipe.data.image_size), images)
