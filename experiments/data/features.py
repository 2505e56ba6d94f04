"""Features and labels to train heads on, in three parts: training, held out (for choices) and test (to report)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from experiments.data.images import open_images
from experiments.data.samples import stratified

Source = Literal["digits", "cifar100", "tiny-imagenet"]
NAMES: dict[str, str] = {"digits": "digits", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny ImageNet"}
HELD_OUT = 0.1
FOLDER = "SOFTNCE_DATA"
"""The environment variable that names the folder with the data sets, one folder per set."""


@dataclass(frozen=True)
class Part:
    """Features (N, d) with labels (N,) and, if people voted, votes by class (N, K)."""

    x: Tensor
    y: Tensor
    votes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> "Part":
        return Part(self.x[rows], self.y[rows], None if self.votes is None else self.votes[rows])


@dataclass(frozen=True)
class Features:
    """A data set as a head sees it."""

    train: Part
    held_out: Part
    test: Part
    num_classes: int

    @property
    def dim(self) -> int:
        return self.train.x.shape[1]

    def standardised(self) -> "Features":
        """Features by the training part's mean and deviation; 0 for a feature that never varies there."""
        mean, deviation = self.train.x.mean(0), self.train.x.std(0)
        scale = torch.where(deviation > 0, 1 / deviation, torch.zeros_like(deviation))
        parts = (Part((part.x - mean) * scale, part.y, part.votes) for part in (self.train, self.held_out, self.test))
        return Features(*parts, self.num_classes)


def split(train: Part, test: Part, num_classes: int, held_out: float = HELD_OUT) -> Features:
    """Holds a share of every class out of ``train``, the same rows for every seed."""
    kept, held = stratified(train.y, held_out)
    return Features(train[kept], train[held], test, num_classes)


@cache
def load(source: Source, standardised: bool = True) -> Features:
    """The features of a data set: the 64 pixels of digits, or images seen by an EfficientNet-Lite0 at 128 px.

    It was trained on ImageNet; its features are computed once and cached.
    """
    place = Path() if source == "digits" else folder(source)
    images = [open_images(source, place, part) for part in ("train", "evaluation")]
    if source == "digits":
        x = [torch.from_numpy(part.inputs.reshape(len(part), -1).astype(np.float32)) for part in images]
    else:
        from experiments.data.frozen import features_of
        from experiments.data.transforms import view
        from experiments.models.images import build_backbone
        from experiments.models.options import ImageModel

        model = ImageModel("tf_efficientnet_lite0", weights="packaged", drop_path=0.0, freeze="backbone")
        backbone, seen = build_backbone(model, 128), view(source, "packaged", model.name, 128, 1.0)
        x = [features_of(part, backbone, seen, model.name) for part in images]
    train, test = (Part(features, part.labels) for features, part in zip(x, images, strict=True))
    found = split(train, test, len(images[0].classes))
    return found.standardised() if standardised else found


def prepare(sources: Iterable[Source]) -> None:
    """Computes missing features, before several processes ask for them. Raises ValueError if images are missing."""
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
        raise ValueError(f"data: {name} is not in {FOLDER}={root}; docs/experiments.md describes the folder")
    return path
